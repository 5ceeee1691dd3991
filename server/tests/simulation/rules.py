# SPDX-License-Identifier: AGPL-3.0-only
"""The rules, one function each, named after what must hold, with its number in SPEC section 5.

Those of a delivery get a `Delivery` and say what is wrong with it, if anything. Those of a state
get the world after a turn, when nothing is left over. Most see only what crosses the seam; the
last three look inside the core, through core/check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from fila.v1 import admin_pb2 as pb
from fila.v1.messages_pb2 import Message
from fila_server.core import check
from fila_server.core.broker import Broker
from fila_server.core.clock import NS_PER_S, Now
from server.tests.simulation import readings
from server.tests.simulation.broken import Broken
from server.tests.simulation.model import DELAYED, LEASED, PENDING, Home, Lease, Letter, Model
from server.tests.simulation.scripts import compile_scripts

if TYPE_CHECKING:
    from server.tests.simulation.ledger import Ledger
    from server.tests.simulation.turn import Consumer
    from server.tests.simulation.world import World

_ROUNDING = 1e-6  # tokens: what floating point may be off by
_SURE = 1e-3  # tokens: what a broker may round away
_LATE_NS = 1_000_000  # how much later than exactly a timer may fire


class Delivery(NamedTuple):
    """One message on its way to one consumer, before the ledger takes note of it."""

    model: Model
    home: Home
    letter: Letter
    message: Message
    lease: Lease
    now: Now


# --- Frames ---------------------------------------------------------------------------------------


def check_frame(ledger: Ledger, consumer: Consumer, home: Home, messages: list[Message]) -> None:
    """Credit, batch size and a paused queue."""
    count = len(messages)
    if consumer.is_done:
        raise Broken("a Receive gets one frame", f"consumer {consumer.id} got another")
    if not 1 <= count <= consumer.max_batch:
        raise Broken("batches", f"{count} messages for a consumer that takes {consumer.max_batch}")
    held = ledger.held_by(consumer)
    if held + count > consumer.credit:
        raise Broken("credit", f"{held} held, {count} more, of {consumer.credit}")
    if home.is_paused:
        raise Broken("pauses", f'queue "{home.name}" is paused')
    if len({message.metadata.lease_token for message in messages}) != 1:
        raise Broken("a frame is one grant", f"{count} messages under several tokens")


# --- Deliveries -----------------------------------------------------------------------------------


def check_delivery(
    ledger: Ledger, home: Home, letter: Letter | None, message: Message, lease: Lease, now: Now
) -> None:
    """Hold one delivery to every rule about deliveries."""
    if letter is None:
        how = ledger.model.gone.get(message.id, "never enqueued")
        raise Broken("2: what is gone is never delivered", f"{message.id} was {how}")
    delivery = Delivery(ledger.model, home, letter, message, lease, now)
    for rule in DELIVERY:
        wrong = rule(delivery)
        if wrong:
            raise Broken((rule.__doc__ or "").rstrip("."), f"{message.id} {wrong}; {letter}")


def one_holder(it: Delivery) -> str:
    """2: while a lease is live nobody else receives the message."""
    return "is leased to somebody else" if it.letter.place == LEASED else ""


def one_place(it: Delivery) -> str:
    """3: a message is in exactly one place."""
    return "comes from another queue" if it.letter.queue != it.home.number else ""


def not_early(it: Delivery) -> str:
    """A delayed message is not delivered before its time."""
    return "is delayed" if it.letter.place == DELAYED else ""


def not_late(it: Delivery) -> str:
    """A message is not delivered after its time to live."""
    ends = it.letter.ends
    return "is out of time" if ends is not None and ends.mono_ns <= it.now.mono_ns else ""


def in_order(it: Delivery) -> str:
    """4: first in, first out within a lane, redeliveries aside."""
    if not it.letter.is_fresh:
        return ""
    lane, number = it.letter.lane, it.letter.number
    for other in it.model.letters.values():
        is_waiting = other.place == PENDING and other.is_fresh and not other.doom
        if other.due is not None and other.due.mono_ns > it.now.mono_ns:
            continue  # a clock that was set back may make it wait again
        if is_waiting and other.lane == lane and other.number < number:
            return f"overtakes {other.id}"
    return ""


def tokens_there(it: Delivery) -> str:
    """6: a bucket never lets more than rate × t + burst through in any window."""
    for name in _limiting(it.home, it.letter):
        bucket = it.model.buckets.get(name)
        if bucket is not None:
            tokens, price = bucket.tokens(it.now.mono_ns), bucket.price(it.letter.cost)
            if tokens < price - _ROUNDING:
                return f"takes {price} of the {tokens} tokens of {name}"
    return ""


def slot_free(it: Delivery) -> str:
    """Concurrency limits are never exceeded."""
    for name in _limiting(it.home, it.letter):
        limit = it.model.limits(name).concurrency
        if limit and it.model.leased_with(name) >= limit:
            return f"is one more than the {limit} of {name}"
    return ""


def not_paused(it: Delivery) -> str:
    """Pauses of keys, throttle keys and queues are honoured."""
    if it.letter.key in it.home.paused_keys:
        return f"belongs to {it.letter.key}, which is paused"
    for name in _limiting(it.home, it.letter):
        rests_ns = it.model.rests_ns(name)
        if rests_ns is None or rests_ns[0] > it.now.mono_ns:
            return f"needs {name}, which rests"
    return ""


def as_enqueued(it: Delivery) -> str:
    """A delivery says what was enqueued, and how often it failed."""
    metadata, letter = it.message.metadata, it.letter
    said = (
        metadata.attempt_count,
        metadata.fairness_key,
        tuple(metadata.throttle_keys),
        metadata.queue_id,
        metadata.last_error,
        tuple((failure.cause, failure.error) for failure in metadata.failures),
        it.message.payload,
        it.message.timestamps.lease_expires_at.ToNanoseconds(),
    )
    right = (
        letter.attempts,
        letter.key,
        letter.throttle_keys,
        it.home.name,
        letter.error,
        letter.failures,
        letter.payload,
        it.lease.deadline.wall_ns,
    )
    return f"says {said}, not {right}" if said != right else ""


DELIVERY: tuple[Callable[[Delivery], str], ...] = (
    one_holder,
    one_place,
    not_early,
    not_late,
    in_order,
    tokens_there,
    slot_free,
    not_paused,
    as_enqueued,
)


def _limiting(home: Home, letter: Letter) -> tuple[str, ...]:
    """Return the throttle keys that count; dead letters are free of limits."""
    return () if home.parent else letter.throttle_keys


# --- States ---------------------------------------------------------------------------------------


def counts_agree(world: World) -> None:
    """3: counts are those of the ledger, and a call that reads changes nothing."""
    now = world.clock.now()
    readings.check_list(world.ledger, world.read(pb.ListQueuesRequest()))
    for home in world.ledger.model.homes.values():
        stats = world.read(pb.GetStatsRequest(queue=home.name))
        readings.check_stats(world.ledger, home, stats, now)


def everything_is_in_its_place(world: World) -> None:
    """3: every message is in exactly one place."""
    for home in world.ledger.model.homes.values():
        readings.check_peek(world.ledger, home, world.look(home.name), is_all=True)


def no_lane_waits(world: World) -> None:
    """12: no lane waits while it could be delivered."""
    now = world.clock.now()
    waiting = _waiting(world)
    for home, letter in waiting:
        opens_ns = _opens_ns(world.ledger.model, waiting, home, letter, now)
        if opens_ns is not None and opens_ns <= now.mono_ns:
            raise Broken("12: no lane waits while it could be delivered", f"{letter} does")


def timers_are_set(world: World) -> None:
    """12: nothing that happens by itself is slept through, and an idle broker sleeps."""
    now = world.clock.now()
    wake_ns = world.broker.next_wake_ns()
    if wake_ns <= now.mono_ns:
        raise Broken(
            "11: an idle broker sleeps", f"it wants to wake {now.mono_ns - wake_ns} ns ago"
        )
    first_ns, what = min(
        (
            (at_ns, letter)
            for letter in world.ledger.model.letters.values()
            for at_ns in _times(letter)
        ),
        default=(wake_ns, None),
        key=lambda it: it[0],
    )
    if first_ns < wake_ns:
        raise Broken("12: nothing is slept through", f"{wake_ns - first_ns} ns too late for {what}")
    waiting = _waiting(world)
    for home, letter in waiting:
        opens_ns = _opens_ns(world.ledger.model, waiting, home, letter, now)
        if opens_ns is not None and opens_ns + _LATE_NS < wake_ns:
            late_s = (wake_ns - opens_ns) / NS_PER_S
            raise Broken("12: nothing is slept through", f"{late_s} s too late for {letter}")


def _times(letter: Letter) -> list[int]:
    if letter.lease is not None:
        return [letter.lease.deadline.mono_ns]
    times = [letter.ends.mono_ns] if letter.ends is not None else []
    if letter.place == DELAYED and letter.due is not None:
        times.append(letter.due.mono_ns)
    return times


def _waiting(world: World) -> list[tuple[Home, Letter]]:
    """Return one message per lane that only limits may keep from a consumer that has credit."""
    ledger = world.ledger
    found: list[tuple[Home, Letter]] = []
    for home in ledger.model.homes.values():
        is_served = any(
            consumer.queue == home.number
            and not consumer.is_done
            and not consumer.under_way
            and ledger.held_by(consumer) < consumer.credit
            for consumer in ledger.consumers.values()
        )
        if is_served and not home.is_paused:
            lanes = {it.lane: it for it in ledger.model.of(home) if it.place == PENDING}
            found += [(home, it) for it in lanes.values() if it.key not in home.paused_keys]
    return found


def _opens_ns(
    model: Model, waiting: list[tuple[Home, Letter]], home: Home, letter: Letter, now: Now
) -> int | None:
    """Return when the message's limits let it pass; None if nobody can say."""
    opens_ns = now.mono_ns
    for name in _limiting(home, letter):
        rests_ns = model.rests_ns(name)
        limit = model.limits(name).concurrency
        if rests_ns is None or (limit and model.leased_with(name) >= limit):
            return None
        opens_ns = max(opens_ns, rests_ns[1])
        bucket = model.buckets.get(name)
        if bucket is not None:
            tokens, price = bucket.surely(now.mono_ns), bucket.price(letter.cost)
            if any(
                name in other.throttle_keys and bucket.price(other.cost) > max(tokens, price)
                for _, other in waiting
            ):
                return None  # it stands in line behind one that needs more
            enough = min(price + _SURE, bucket.burst)
            if tokens < enough:
                missing = enough - tokens
                opens_ns = max(opens_ns, now.mono_ns + int(missing / bucket.rate * NS_PER_S) + 1)
    return opens_ns


def reasons_agree(world: World) -> None:
    """Stats and explain say the same of why something waits."""
    for home in world.ledger.model.homes.values():
        stats = world.read(pb.GetStatsRequest(queue=home.name))
        held: dict[str, int] = {}
        for letter in world.ledger.model.of(home):
            if letter.place == PENDING:
                request = pb.ExplainRequest(queue=home.name, message_id=letter.id)
                is_limited = any(reason.throttle_key for reason in world.read(request).reasons)
                held[letter.key] = held.get(letter.key, 0) + is_limited
        rows = [row for row in stats.per_key_stats if row.pending_count]
        said = {row.key: row.throttled for row in rows}
        if said != held or stats.throttled != sum(held.values()):
            how = f'"{home.name}": stats say {said}, {stats.throttled}; explain {held}'
            raise Broken("stats and explain agree on why something waits", how)


# --- Inside the core ------------------------------------------------------------------------------


def nobody_was_forgotten(world: World) -> None:
    """12: marking everything due and dirty delivers nothing more."""
    frames = world.nudge()
    if frames:
        raise Broken("12: no lane waits while it could be delivered", f"{frames} came by nudging")


def facts_agree(world: World) -> None:
    """The facts that the scheduler keeps about lanes, lines and rounds agree with each other."""
    found = check.problems(world.broker)
    if found:
        raise Broken("the scheduler's facts agree", "; ".join(found))


def memory_equals_disk(world: World) -> None:
    """8: memory is what a restart would rebuild."""
    twin = Broker(world.config, world.storage, compile_scripts, 1)
    twin.recover(world.clock.now())
    now_ns = None if world.clock.has_jumped else world.clock.mono_ns
    mine, rebuilt = check.snapshot(world.broker, now_ns), check.snapshot(twin, now_ns)
    if mine != rebuilt:
        raise Broken("8: memory is what a restart would rebuild", _difference(mine, rebuilt))


def _difference(mine: object, rebuilt: object, where: str = "") -> str:
    if isinstance(mine, dict) and isinstance(rebuilt, dict):
        for name in [*mine, *(rebuilt.keys() - mine.keys())]:
            if mine.get(name) != rebuilt.get(name):
                return _difference(mine.get(name), rebuilt.get(name), f"{where}/{name}")
    return f"{where}: {mine} in memory, {rebuilt} rebuilt"
