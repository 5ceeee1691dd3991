# SPDX-License-Identifier: AGPL-3.0-only
"""What must hold between two turns, for tests and simulations. The broker itself never calls this.

`problems` looks for facts that contradict each other, `snapshot` gives what a restart must bring
back in a form that compares, and `nudge` marks everything as worth a look: a turn after it must
deliver nothing, or a lane was left waiting beside a token that it could have had.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fila_server.core.broker import Broker
from fila_server.core.schedule.fifo import CHUNK, Fifo, Kept
from fila_server.core.schedule.lane import Lane
from fila_server.core.schedule.limiter import Limiter
from fila_server.core.schedule.line import Line
from fila_server.core.schedule.message import Message
from fila_server.core.schedule.places import Places
from fila_server.core.schedule.queue import Queue
from fila_server.core.state import State


def nudge(broker: Broker) -> None:
    """Mark every line as due and every queue as dirty."""
    places = broker.state.places
    for limiter in broker.state.throttles.limiters.values():
        places.lines.freed(limiter)
    for queue in broker.state.queues.values():
        places.dirty[queue] = None


def problems(broker: Broker) -> list[str]:
    """Return what is wrong with the facts in memory; empty when nothing is."""
    state = broker.state
    found: list[str] = []
    for queue in state.queues.values():
        found += [f"{queue.name}: {text}" for text in _of_queue(state.places, queue)]
    found += _of_limiters(state)
    hot = sum(
        len(_content(kept) or b"")
        for queue in state.queues.values()
        for lane in _lanes(queue)
        for _, kept in _waiting(lane)
    )
    if state.places.hot_bytes != hot and not state.deleted:
        found.append(f"hot_bytes is {state.places.hot_bytes}, and {hot} bytes are hot")
    return found


def _lanes(queue: Queue) -> Iterator[Lane]:
    return (lane for key in queue.keys.values() for lane in key.lanes.values())


def _waiting(lane: Lane) -> list[tuple[int, Kept]]:
    """Return the orders of a lane's messages, and what memory has of each."""
    aside = (lane.aside or {}).items()
    others = [(order, it if isinstance(it, Message) else None) for order, it in aside]
    return sorted([*lane.fifo, *others], key=lambda it: it[0])


def _content(kept: Kept) -> bytes | None:
    return kept.content if isinstance(kept, Message) else kept


def _of_queue(places: Places, queue: Queue) -> Iterator[str]:
    if queue.pending != sum(len(_waiting(lane)) for lane in _lanes(queue)):
        yield f"pending is {queue.pending}"
    for key in queue.keys.values():
        if key.pending != sum(len(lane) for lane in key.lanes.values()) or not key.pending:
            yield f"key {key.name}: pending is {key.pending}"
        if key.in_ring != (bool(key.ready) and not key.is_paused):
            yield f"key {key.name}: in_ring is {key.in_ring} with {len(key.ready)} lanes ready"
        if key.in_ring != (key in queue.ring):
            yield f"key {key.name}: in_ring is {key.in_ring} and the ring says otherwise"
        if key.is_paused != (key.name in queue.paused_keys):
            yield f"key {key.name}: is_paused is {key.is_paused}"
        if key.deficit < 0:
            yield f"key {key.name}: deficit is {key.deficit}"
        for lane in key.lanes.values():
            yield from (f"key {key.name}: {text}" for text in _of_lane(lane))
    if len(queue.ring) != sum(key.in_ring for key in queue.keys.values()):
        yield "keys in the ring that the queue does not have"
    for consumer in queue.consumers:
        held = sum(
            message.grant is not None and message.grant.consumer is consumer
            for message in queue.leases.values()
        )
        if consumer.credit < 0:
            yield f"consumer {consumer.number}: credit is {consumer.credit} with {held} held"
        can_take = consumer.credit > 0 and consumer.window > 0 and consumer.is_open
        if can_take != (consumer in queue.available):
            yield f"consumer {consumer.number}: available is {not can_take}"
    for message in queue.leases.values():
        if message.grant is None or message not in message.grant.messages:
            yield f"message {message.id} is leased under no grant"
        elif message.grant not in places.leases:
            yield f"the grant of message {message.id} never ends"
    for message in queue.delayed.values():
        if message not in places.delayed:
            yield f"message {message.id} is delayed for ever"


def _of_lane(lane: Lane) -> Iterator[str]:
    if not lane:
        yield "an empty lane"
    yield from _of_fifo(lane.fifo)
    if lane.is_ready != (lane in lane.key.ready):
        yield f"is_ready is {lane.is_ready} and the key says otherwise"
    if not lane.is_ready and lane.line is None:
        yield "a lane that is neither ready nor parked"
    if lane.is_parked:
        line = lane.line
        assert line is not None
        if line.waiting.get(lane.ticket) is not lane:
            yield "a parked lane that its line does not have"
        if _lines(line.limiter).get(lane.key.queue) is not line:
            yield "a line that its limiter does not have"


def _of_fifo(fifo: Fifo) -> Iterator[str]:
    orders = [order for order, _ in fifo]
    if orders != sorted(set(orders)):
        yield "a lane out of order"
    if fifo.size != len(orders):
        yield f"a lane of {len(orders)} that says {fifo.size}"
    for chunk in fifo.chunks:
        size = len(chunk.orders)
        if size > CHUNK or (chunk.at >= size and len(fifo.chunks) > 1):
            yield f"a chunk of {size}, {chunk.at} of them gone"
        if chunk.kept is None or chunk.origins is None:
            continue
        if not size == len(chunk.kept) == len(chunk.origins):
            yield "a chunk with lists of different lengths"
        for at, (order, kept) in enumerate(zip(chunk.orders, chunk.kept, strict=True)):
            if at < chunk.at and kept is not None:
                yield f"memory keeps {order}, which is gone"
            if isinstance(kept, Message) and kept.order != order:
                yield f"a message of order {kept.order} stands at {order}"
            if isinstance(kept, bytes) != (chunk.origins[at] is not None):
                yield f"{order} has a content or an origin, and not the other"


def _lines(limiter: Limiter) -> dict[Queue, Line]:
    return {**limiter.lines, **limiter.unserved}


def _of_limiters(state: State) -> Iterator[str]:
    leased: dict[Limiter, int] = {}
    users: dict[Limiter, int] = {}
    awake: dict[int, int] = {}
    for queue in state.queues.values():
        for message in queue.leases.values():
            for limiter in message.lane.limiters:
                leased[limiter] = leased.get(limiter, 0) + 1
        keys = [*queue.keys.values(), *queue.resting.values()]
        for lane in (lane for key in keys for lane in (*key.lanes.values(), *key.resting.values())):
            for limiter in lane.limiters:
                users[limiter] = users.get(limiter, 0) + 1
            if lane.line is not None and lane.is_ready:
                awake[id(lane.line)] = awake.get(id(lane.line), 0) + 1
    for name, limiter in state.throttles.limiters.items():
        if state.deleted:
            continue
        if limiter.in_flight != leased.get(limiter, 0):
            yield f"limiter {name}: in_flight is {limiter.in_flight}"
        if len(limiter.lanes) != users.get(limiter, 0):
            yield f"limiter {name}: knows {len(limiter.lanes)} lanes"
        if limiter.passed_count < 0:
            yield f"limiter {name}: passed is {limiter.passed_count}"
        is_idle = not limiter.lanes and not limiter.in_flight and not limiter.is_held
        if is_idle and limiter not in state.throttles.idle:
            yield f"limiter {name}: idle, and never forgotten"
        for queue, line in limiter.unserved.items():
            if queue in limiter.lines:
                yield f"limiter {name}: a queue stands in two lines"
            if line not in queue.due_lines:
                yield f"limiter {name}: a line stands apart and is never looked at"
        for line in _lines(limiter).values():
            if line.awake != awake.get(id(line), 0):
                yield f"limiter {name}: {line.awake} lanes are awake"
            if not line.waiting and not line.awake:
                yield f"limiter {name}: a line with nobody in it"
    for limiter in {**leased, **users}:
        if state.throttles.limiters.get(limiter.name) is not limiter:
            yield f"limiter {limiter.name}: in use, and forgotten"


# --- Memory against disk --------------------------------------------------------------------------


def snapshot(broker: Broker, now_ns: int | None = None) -> dict[str, Any]:
    """Return everything that a restart must bring back, in a form that compares.

    With the monotonic time it has what is left until each deadline, too. A restart knows them by
    the wall clock, so they compare only if that has not been set since they were stored.
    """
    state = broker.state
    return {
        "deadlines": _deadlines(state, now_ns) if now_ns is not None else None,
        "settings": dict(state.settings.values),
        "queues": {name: _queue(queue) for name, queue in state.queues.items()},
        "limiters": {
            limiter.name: (limiter.rate, limiter.burst, limiter.limit, limiter.in_flight)
            for limiter in state.throttles.limiters.values()
            if limiter.in_flight
        },
        "held": sorted(
            limiter.name for limiter in state.throttles.limiters.values() if limiter.is_held
        ),
        "keys": sorted(state.keyring.keys),
    }


def _deadlines(state: State, now_ns: int) -> dict[str, Any]:
    """Return when leases, delays, lives and pauses end, and buckets are full."""
    found: dict[str, Any] = {}
    for queue in state.queues.values():
        for message in queue.leases.values():
            if message.grant is not None:
                found[f"lease {message.id}"] = message.grant.deadline_ns
        for message in queue.delayed.values():
            found[f"delay {message.id}"] = message.details().due_at_ns
    for limiter in state.throttles.limiters.values():
        full_ns = -(-limiter.full_ps // 1000)  # what is stored is rounded up
        if limiter.interval_ps and full_ns > now_ns:
            found[f"bucket {limiter.name}"] = full_ns
        if limiter.paused_until_ns > now_ns:
            pause = (limiter.paused_until_ns, limiter.pause_ms, limiter.is_paused)
            found[f"pause {limiter.name}"] = pause
    return found


def _queue(queue: Queue) -> dict[str, Any]:
    return {
        "number": queue.number,
        "of": queue.dead_letter_of,
        "paused": (queue.paused, sorted(queue.paused_keys)),
        "config": queue.config.SerializeToString(deterministic=True),
        "pending": queue.pending,
        "lanes": {
            (lane.key.name, lane.lane_key): [_pending(*it) for it in _waiting(lane)]
            for lane in _lanes(queue)
        },
        "delayed": {
            message.id: (_settled(message), message.details().due_ns)
            for message in queue.delayed.values()
        },
        "leases": {
            message.id: (_settled(message), message.grant.token, message.grant.expires_ns)
            for message in queue.leases.values()
            if message.grant is not None
        },
    }


def _pending(order: int, kept: Kept) -> tuple[Any, ...]:
    if not isinstance(kept, Message):
        return order, order, 0
    if kept.lane.key.queue.dead_letter_of and order == kept.number:
        return order, order, 0  # a dead letter's attempts are on disk
    return kept.number, order, kept.extra.expires_ns if kept.extra is not None else 0


def _settled(message: Message) -> tuple[Any, ...]:
    extra = message.extra
    expires_ns = extra.expires_ns if extra is not None else 0
    return message.number, message.order, message.attempt, expires_ns
