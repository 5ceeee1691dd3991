# SPDX-License-Identifier: AGPL-3.0-only
"""Settling deliveries: ack, nack, extension, expiry, frames that reached nobody."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from fila.v1.messages_pb2 import FAILURE_CAUSE_EXPIRED, FAILURE_CAUSE_NACK
from fila_server.core.clock import NS_PER_MS
from fila_server.core.commands import Ack, CloseConsumer, Extend, FrameTaken, Nack
from fila_server.core.names import shown
from fila_server.core.schedule.message import Grant, Message
from fila_server.core.schedule.queue import by_id
from fila_server.core.traffic import failure
from fila_server.core.traffic.delivery import lease_key, store_lease
from fila_server.core.turn import SLICE, Turn
from fila_server.core.wire.records import id_number, message_key
from fila_server.errors import (
    FilaError,
    InvalidArgument,
    LeaseExpired,
    MessageNotFound,
    QueueNotFound,
)
from fila_server.limits import MAX_VISIBILITY_MS
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila.v1.service_pb2 import AckRequest, GrantNack, LeaseExtension, NackRequest
    from fila_server.core.schedule.limiter import Limiter
    from fila_server.core.schedule.queue import Queue
    from fila_server.core.state import State

EXPIRED = "lease expired"


def ack(state: State, command: Ack, turn: Turn) -> Generator[int, None, None]:
    """Remove processed messages; answer with one result per item."""
    results: list[FilaError | None] = []
    items = iter(command.items)
    left = len(command.items)
    while left > SLICE:
        _ack_some(state, islice(items, SLICE), results, turn)
        yield SLICE
        left -= SLICE
    _ack_some(state, items, results, turn)
    turn.units += left
    turn.effects.answers.append((command.ticket, results))


def _ack_some(
    state: State, items: Iterable[AckRequest], results: list[FilaError | None], turn: Turn
) -> None:
    append = results.append
    write = turn.write
    column = Column.MESSAGES
    unlease = state.places.unlease
    queue: Queue | None = None  # of the item before: most batches are about one
    name = ""
    for item in items:
        if queue is None or name != item.queue:
            name = item.queue
            queue = state.queues.get(name)
            if queue is None:
                append(_unknown_queue(state, name))
                continue
        message = by_id(queue.leases, item.message_id)
        if message is None:
            append(_not_leased(turn, queue, item.message_id, item.lease_token))
            continue
        token = item.lease_token
        if token and token != message.grant.token:  # type: ignore[union-attr]
            append(_stale(item.message_id))
            continue
        grant = unlease(message)
        if not grant.left:
            retire(state, grant, turn)
        write((column, message.key, None))
        if message.extra is not None:
            failure.forget_records(state, message, turn)
        queue.counters.acked += 1
        message.lane.key.usage.acked += 1
        append(None)


def release(state: State, message: Message, turn: Turn) -> None:
    """End a lease, and drop the record of a grant that is used up."""
    grant = state.places.unlease(message)
    if not grant.left:
        retire(state, grant, turn)


def retire(state: State, grant: Grant, turn: Turn) -> None:
    """Drop a grant that no message is under any more."""
    if state.places.retire(grant):
        turn.write((Column.LEASES, lease_key(grant), None))


def nack(state: State, command: Nack, turn: Turn) -> Generator[int, None, None]:
    """Retry or dead-letter failed messages; answer with one result per item."""
    results: list[FilaError | None] = []
    has_moved = False
    done = 0
    thinned: dict[Grant, None] = {}  # grants of which some messages went back to their place
    for item in command.items:
        named = state.queues.get(item.queue)
        needs_hook = named is not None and named.hooks is not None
        while done == SLICE or (needs_hook and not turn.has_hook_time):
            store_thinned(thinned, turn)
            yield done
            done = 0
        done += 1
        units = turn.units
        try:
            queue = state.queue(item.queue)
            message, grant = _leased(turn, queue, item.message_id, item.lease_token)
            if item.HasField("retry_after_ms"):
                check_pressure(state, item)
                if item.throttle_key:
                    rest_key(state, [message], item.throttle_key, item.retry_after_ms, turn)
                if give_back(state, message, item.retry_after_ms, item.error, turn):
                    thin(grant, thinned)
            else:
                release(state, message, turn)
                has_moved |= failure.fail(
                    state, message, item.error, FAILURE_CAUSE_NACK, turn, item.dead_letter
                )
            queue.counters.nacked += 1
            message.lane.key.usage.nacked += 1
            results.append(None)
        except FilaError as error:
            results.append(error)
        if turn.units > units:  # a large one was read or moved: a few of them fill a turn
            store_thinned(thinned, turn)
            yield done
            done = 0
    store_thinned(thinned, turn)
    turn.units += done
    answers = turn.effects.durable_answers if has_moved else turn.effects.answers
    answers.append((command.ticket, results))


def thin(grant: Grant | None, thinned: dict[Grant, None]) -> None:
    """Note the grants whose records name a message that is leased no more."""
    while grant is not None:
        thinned[grant] = None
        grant = grant.renews


def store_thinned(grants: dict[Grant, None], turn: Turn) -> None:
    """Store leases anew without the messages that are leased no more and left no other trace."""
    for grant in grants:
        if grant.left:
            store_lease(grant, turn)
    grants.clear()


def check_pressure(state: State, nack: NackRequest | GrantNack) -> None:
    """Refuse backpressure that lasts too long, or that is about a hopeless message."""
    longest_ms = state.config.limits.max_delay_ms
    if nack.retry_after_ms > longest_ms:
        raise InvalidArgument(f"retry_after_ms {nack.retry_after_ms} exceeds {longest_ms}")
    if nack.dead_letter:
        raise InvalidArgument("dead_letter and retry_after_ms exclude each other; give one of them")


def rest_key(
    state: State, messages: Iterable[Message], throttle_key: str, wait_ms: int, turn: Turn
) -> None:
    """Backpressure: let a throttle key that one of the messages carries rest, for everybody."""
    lane = next((it.lane for it in messages if throttle_key in it.lane.throttle_keys), None)
    if lane is None:
        raise InvalidArgument(
            f'throttle_key "{shown(throttle_key)}" is not one that the message carries'
        )
    if lane.limiters:  # dead letters have none
        now_ns = turn.now.mono_ns
        pause_ms = min(wait_ms, state.config.limits.max_backpressure_ms)
        limiter = state.throttles.limiter(throttle_key, now_ns)
        limiter.pause(now_ns + pause_ms * NS_PER_MS, pause_ms, now_ns)
        state.throttles.touched[limiter] = None


def give_back(state: State, message: Message, wait_ms: int, error: str, turn: Turn) -> bool:
    """Backpressure: the message waits, and no attempt counts.

    One that is given back at once was never looked at: it returns to its place. Then its lease is
    the only trace of what happened, and the answer is True.
    """
    release(state, message, turn)
    if failure.has_outlived(state, message, turn):
        return False
    if wait_ms or error:
        failure.requeue(state, message, message.attempt, error, wait_ms, None, turn)
        return False
    state.places.return_to_lane(message, turn.now.mono_ns)
    return True


def extend(state: State, command: Extend, turn: Turn) -> Generator[int, None, None]:
    """Prolong leases; answer with the new wall deadline or an error per item."""
    results: list[int | FilaError] = []
    items = command.items
    done = 0
    for start in range(0, len(items), SLICE):
        if done:
            yield done
        part = items[start : start + SLICE]
        _extend_some(state, part, results, turn)
        done = len(part)
    turn.units += done
    turn.effects.answers.append((command.ticket, results))


def _extend_some(
    state: State, items: Sequence[LeaseExtension], results: list[int | FilaError], turn: Turn
) -> None:
    now = turn.now
    wanted: dict[Message, int] = {}  # the last item about a message decides
    for item in items:
        try:
            queue = state.queue(item.queue)
            message, _ = _leased(turn, queue, item.message_id, item.lease_token)
            duration_ms = lasting_ms(queue, item.extend_ms)
            wanted[message] = duration_ms
            results.append(now.wall_ns + duration_ms * NS_PER_MS)
        except FilaError as error:
            results.append(error)
    renewed: dict[tuple[Grant | None, int], list[Message]] = {}
    for message, duration_ms in wanted.items():
        renewed.setdefault((message.grant, duration_ms), []).append(message)
    for (_, duration_ms), messages in renewed.items():
        renew(state, messages, duration_ms, turn)


def lasting_ms(queue: Queue, extend_ms: int) -> int:
    """Return how long an extension lasts that asks for so much; 0 leaves it to the queue."""
    duration_ms = extend_ms or queue.visibility_ms
    if duration_ms > MAX_VISIBILITY_MS:
        raise InvalidArgument(f"extend_ms {duration_ms} exceeds {MAX_VISIBILITY_MS}")
    return duration_ms


def renew(state: State, messages: list[Message], duration_ms: int, turn: Turn) -> None:
    """Move messages of one grant to a new one with the same token and a later deadline."""
    old = messages[0].grant
    assert old is not None
    now = turn.now
    duration_ns = duration_ms * NS_PER_MS
    grant = Grant(
        state.number(),
        old.token,
        old.queue,
        old.consumer,
        messages,
        old.leased_ns,
        now.mono_ns + duration_ns,
        now.wall_ns + duration_ns,
        duration_ms,
    )
    state.places.renew(grant)
    store_lease(grant, turn)
    grant.renews = old if old.left else old.renews
    if not old.left:
        retire(state, old, turn)


def expire(state: State, turn: Turn, limit: int) -> None:
    """Fail deliveries whose lease has run out, a few grants at a time."""
    places = state.places
    stop = turn.units + limit
    for grant in places.leases.due(turn.now.mono_ns, limit):
        turn.units += 1
        queue = grant.queue
        for at, message in enumerate(grant.messages):
            if message.grant is not grant:
                continue
            if at and (turn.units >= stop or not turn.has_hook_time):
                places.leases.set(grant, grant.deadline_ns)  # the rest of it in the next turn
                grant.messages = grant.messages[at:]
                return
            turn.units += 1
            release(state, message, turn)
            if queue.is_deleted:
                places.forget_life(message)
                continue
            queue.counters.expired += 1
            failure.fail(state, message, EXPIRED, FAILURE_CAUSE_EXPIRED, turn)
        if turn.units >= stop or not turn.has_hook_time:
            return


# --- Consumers ------------------------------------------------------------------------------------


def frame_taken(state: State, command: FrameTaken, turn: Turn) -> None:
    consumer = state.consumers.get(command.consumer)
    if consumer is not None and consumer.is_open:
        consumer.window += 1
        if consumer.offer():
            state.places.dirty[consumer.queue] = None


def close_consumer(state: State, command: CloseConsumer, turn: Turn) -> Generator[int, None, None]:
    """Forget a consumer at once. Frames that never left go back, with no attempt counted."""
    state.end_consumer(command.consumer)
    return _return_unsent(state, command, turn)


def _return_unsent(state: State, command: CloseConsumer, turn: Turn) -> Generator[int, None, None]:
    for number in command.unsent:
        grant = state.places.grants.get(number)
        if grant is None or grant.is_prolonged:  # somebody has the frame, whatever is said of it
            continue
        if not grant.queue.is_deleted:
            messages = list(grant.messages)
            for start in range(0, len(messages), SLICE):
                part = messages[start : start + SLICE]
                _take_back(state, grant, part, turn)
                yield len(part)


def _take_back(state: State, grant: Grant, messages: list[Message], turn: Turn) -> None:
    """Return messages that are still under a grant to their place: they reached nobody."""
    places = state.places
    queue = grant.queue
    now_ns = turn.now.mono_ns
    returned: dict[tuple[Limiter, int], int] = {}  # limiter and cost -> deliveries
    for message in messages:
        if message.grant is not grant:
            continue
        lane = message.lane
        for limiter in lane.limiters:
            returned[limiter, lane.cost] = returned.get((limiter, lane.cost), 0) + 1
        release(state, message, turn)
        queue.counters.delivered = max(0, queue.counters.delivered - 1)
        if not failure.has_outlived(state, message, turn):
            places.return_to_lane(message, now_ns)
    if grant.left:  # the lease is the only trace of those that went back
        store_lease(grant, turn)
    for (limiter, cost), count in returned.items():
        limiter.give_back(count, cost, grant.leased_ns, now_ns)
        if limiter.interval_ps:
            state.throttles.touched[limiter] = None
        places.lines.freed(limiter)


# --- Who holds what -------------------------------------------------------------------------------


def _leased(turn: Turn, queue: Queue, message_id: str, token: str) -> tuple[Message, Grant]:
    message = by_id(queue.leases, message_id)
    if message is None:
        raise _not_leased(turn, queue, message_id, token)
    grant = message.grant
    assert grant is not None
    if token and token != grant.token:
        raise _stale(message_id)
    return message, grant


def check_exists(queue: Queue) -> None:
    """Refuse to go on in a queue that was deleted since the turn before."""
    if queue.is_deleted:
        raise QueueNotFound(f'queue "{queue.name}" was deleted')


def _unknown_queue(state: State, name: str) -> FilaError:
    try:
        state.queue(name)
    except FilaError as error:
        return error
    raise AssertionError("the queue exists")


def _not_leased(turn: Turn, queue: Queue, message_id: str, token: str) -> FilaError:
    """Tell a message that is gone from one that has slipped away from the token's holder."""
    if not message_id:
        return InvalidArgument("message_id must not be empty")
    number = id_number(message_id) if token else None
    if number is not None:
        key = message_key(queue.number, number)
        if turn.batch.get(Column.MESSAGES, key) is not None:
            return _stale(message_id)
    return MessageNotFound(f'no leased message "{shown(message_id)}" in queue "{queue.name}"')


def _stale(message_id: str) -> FilaError:
    return LeaseExpired(f'the lease of message "{shown(message_id)}" under this token has ended')
