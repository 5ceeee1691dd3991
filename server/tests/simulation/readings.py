# SPDX-License-Identifier: AGPL-3.0-only
"""What the broker says of itself, held against the ledger: stats, lists, peeks, settings.

Answers are right at the point of the group where they were asked for. A queue in which a purge or
a redrive is at work is left alone: how far that has come is not known outside.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from fila.v1 import admin_pb2 as pb
from fila_server.core.clock import Now
from fila_server.errors import FilaError
from server.tests.simulation.broken import Broken
from server.tests.simulation.model import DELAYED, LEASED, PENDING, Home, Letter

if TYPE_CHECKING:
    from server.tests.simulation.ledger import Ledger

_STATES = {
    PENDING: pb.MESSAGE_STATE_PENDING,
    DELAYED: pb.MESSAGE_STATE_DELAYED,
    LEASED: pb.MESSAGE_STATE_LEASED,
}
_COUNTED = (
    "enqueued",
    "delivered",
    "acked",
    "nacked",
    "expired",
    "dead_lettered",
    "timed_out",
    "duplicates",
)


def check(ledger: Ledger, request: Any, answer: Any, now: Now) -> None:
    """Hold the answer to a call that only reads to what is so."""
    if answer is None or type(answer) is object:
        raise Broken("10: a read is answered", f"{request} was not")
    name = getattr(request, "queue", "")
    home = ledger.model.homes.get(name)
    if name and home is None:
        _same("error", answer.reason if isinstance(answer, FilaError) else "", "QUEUE_NOT_FOUND")
        return
    if home is not None and home.number in ledger.operations.unsure:
        return
    if isinstance(answer, pb.GetStatsResponse) and home is not None:
        check_stats(ledger, home, answer, now)
    elif isinstance(answer, pb.PeekResponse) and home is not None:
        check_peek(ledger, home, {it.message.id: it for it in answer.messages}, is_all=False)
    elif isinstance(answer, pb.ListQueuesResponse):
        check_list(ledger, answer)
    elif isinstance(answer, pb.ListConfigResponse):
        _same("settings", {it.key: it.value for it in answer.entries}, ledger.model.settings)
    elif isinstance(answer, pb.ExplainResponse) and home is not None and request.message_id:
        check_explanation(ledger, home, ledger.model.letters[request.message_id], answer)
    elif isinstance(answer, pb.ListThrottlesResponse):
        check_throttles(ledger, answer)
    elif isinstance(answer, FilaError) and answer.reason == "INTERNAL":
        raise Broken("10: a read never fails", f"{request} gave {answer!r}")


def check_stats(ledger: Ledger, home: Home, stats: pb.GetStatsResponse, now: Now) -> None:
    letters = ledger.model.of(home)
    places = Counter(letter.place for letter in letters)
    waiting = [letter for letter in letters if letter.place == PENDING]
    consumers = [it for it in ledger.consumers.values() if it.queue == home.number]
    _same("depth", stats.depth, places[PENDING])
    _same("in_flight", stats.in_flight, places[LEASED])
    _same("delayed", stats.delayed, places[DELAYED])
    _same("paused", stats.paused, home.is_paused)
    _same("active_consumers", stats.active_consumers, len(consumers))
    credit = sum(max(0, it.credit - ledger.held_by(it)) for it in consumers)
    _same("consumer_credit", stats.consumer_credit, credit)
    keys = Counter(letter.key for letter in waiting)
    # Keys that have drained are listed too, for what happened with them.
    told = {row.key: row.pending_count for row in stats.per_key_stats if row.pending_count}
    _same("keys", told, dict(keys))
    held = {row.number: row.in_flight for row in stats.consumers}
    mine = {it.id: ledger.held_by(it) for it in consumers}
    _same("leased by consumer", held, mine)
    for row in stats.per_key_stats:
        _same(f"pause of {row.key}", row.paused, row.key in home.paused_keys)
        weight = ledger.model.weight(home.name, row.key)
        _same(f"weight of {row.key}", row.weight, weight or row.weight)
    counted = {name: getattr(stats.counters, name) for name in _COUNTED}
    counters = ledger.counters[home.number]
    if home.number not in ledger.uncounted:
        _same("counters", counted, {name: counters[name] for name in _COUNTED})
    _check_throttles(ledger, home, waiting, stats, now)


def _check_throttles(
    ledger: Ledger, home: Home, waiting: list[Letter], stats: pb.GetStatsResponse, now: Now
) -> None:
    model = ledger.model
    for row in stats.per_throttle_stats:
        name = row.key
        limits = model.limits(name)
        carried = sum(name in letter.throttle_keys for letter in waiting)
        _same(f"waiting for {name}", row.waiting, carried)
        _same(f"rate of {name}", row.rate_per_second, limits.rate)
        _same(f"concurrency of {name}", row.concurrency_limit, limits.concurrency)
        if limits.rate or limits.concurrency:
            _same(f"in flight of {name}", row.in_flight, model.leased_with(name))
        bucket = model.buckets.get(name)
        if bucket is not None:
            low, high = bucket.surely(now.mono_ns), bucket.tokens(now.mono_ns)
            if not low - 1e-3 <= row.tokens <= high + 1e-3:
                raise Broken("6: buckets", f"{name} has {row.tokens} tokens, not {low} to {high}")


def check_peek(
    ledger: Ledger, home: Home, found: dict[str, pb.PeekedMessage], *, is_all: bool
) -> None:
    """Rule 3: every message is where it must be, and nothing else is there."""
    letters = {letter.id: letter for letter in ledger.model.of(home)}
    for message_id, there in found.items():
        letter = letters.get(message_id)
        if letter is None:
            how = ledger.model.gone.get(message_id, "never there")
            raise Broken("3: a message is in exactly one place", f"{message_id} was {how}")
        _same(f"state of {message_id}", there.state, _STATES[letter.place])
        metadata = there.message.metadata
        _same(f"attempts of {message_id}", metadata.attempt_count, letter.attempts)
        _same(f"key of {message_id}", metadata.fairness_key, letter.key)
        _same(f"throttle keys of {message_id}", tuple(metadata.throttle_keys), letter.throttle_keys)
        _same(f"payload of {message_id}", there.message.payload, letter.payload)
    missing = letters.keys() - found.keys()
    if is_all and missing:
        raise Broken("3: a message is in exactly one place", f"{letters[missing.pop()]} is nowhere")


def check_explanation(
    ledger: Ledger, home: Home, letter: Letter, answer: pb.ExplainResponse
) -> None:
    _same("state", answer.state, _STATES[letter.place])
    keys = () if home.parent else letter.throttle_keys
    unset = [name for name in keys if not any(ledger.model.limits(name))]
    _same("unset throttle keys", list(answer.unset_throttle_keys), unset)


def check_throttles(ledger: Ledger, answer: pb.ListThrottlesResponse) -> None:
    model = ledger.model
    for row in answer.throttles:
        limits = model.limits(row.key)
        said = (row.rate_per_second, row.burst, row.concurrency_limit)
        _same(f"limits of {row.key}", said, limits)
        _same(f"unset of {row.key}", row.unset, not any(limits))
        _same(f"in flight of {row.key}", row.in_flight, model.leased_with(row.key))
        if row.key in model.pauses and model.pauses[row.key] is None:
            _same(f"pause of {row.key}", row.paused, True)


def check_list(ledger: Ledger, answer: pb.ListQueuesResponse) -> None:
    _same("queues", {it.name for it in answer.queues}, set(ledger.model.homes))
    for row in answer.queues:
        home = ledger.model.homes[row.name]
        if home.number in ledger.operations.unsure:
            continue
        places = Counter(letter.place for letter in ledger.model.of(home))
        counts = (row.depth, row.in_flight, row.delayed)
        _same(f"counts of {row.name}", counts, (places[PENDING], places[LEASED], places[DELAYED]))
        _same(f"parent of {row.name}", row.dead_letter_of, home.parent)


def _same(what: str, given: object, right: object) -> None:
    if given != right:
        raise Broken("3: counts are those of the ledger", f"{what}: {given}, not {right}")
