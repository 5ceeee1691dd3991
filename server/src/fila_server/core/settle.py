# SPDX-License-Identifier: AGPL-3.0-only
"""Settling deliveries: ack, nack, extension, expiry, and what becomes of a message that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fila_server.core import parking, records
from fila_server.core.clock import NS_PER_MS, Now
from fila_server.core.commands import Ack, CloseConsumer, Extend, Nack
from fila_server.core.dead_letter import bury
from fila_server.core.deliver import lease_record
from fila_server.core.message import Grant, Message
from fila_server.core.names import shown
from fila_server.core.records_pb2 import Retry
from fila_server.core.settings import ensure
from fila_server.core.state import State
from fila_server.errors import FilaError, InvalidArgument, LeaseExpired, MessageNotFound
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila.v1.service_pb2 import NackRequest
    from fila_server.core.effects import Effects
    from fila_server.core.lane import LaneKey
    from fila_server.core.queue import Queue

_HOUR_MS = 3_600_000
MAX_VISIBILITY_MS = 12 * _HOUR_MS
EXPIRED = "lease expired"


def ack(state: State, command: Ack, now: Now, effects: Effects) -> None:
    """Remove processed messages; answer with one result per item."""
    results: list[FilaError | None] = []
    append = results.append
    write = effects.writes.append
    messages_column = Column.MESSAGES
    queues = state.queues
    for item in command.items:
        queue = queues.get(item.queue)
        if queue is None:
            append(_unknown_queue(state, item.queue))
            continue
        message = queue.leases.get(item.message_id)
        if message is None:
            append(_not_leased(state, queue, item.message_id, item.lease_token))
            continue
        grant = message.grant
        assert grant is not None
        token = item.lease_token
        if token and token != grant.token:
            append(_stale(message.id))
            continue
        release(state, message, grant, effects)
        write((messages_column, message.key, None))
        state.forget(message)
        if message.extra is not None and message.extra.has_retry:
            write((Column.RETRIES, message.key, None))
        queue.counters.acked += 1
        append(None)
    effects.answers.append((command.ticket, results))


def release(state: State, message: Message, grant: Grant, effects: Effects) -> None:
    """End a lease: give back credit and concurrency, and drop a grant that is used up."""
    queue = grant.queue
    del queue.leases[message.id]
    message.grant = None
    grant.left -= 1
    if grant.left == 0:
        _retire(state, grant, effects)
    consumer = grant.consumer
    if consumer is not None:
        consumer.credit += 1
        if not consumer.is_available:
            consumer.offer()
            state.dirty[queue] = None
    if message.lane.throttle_keys and not queue.dead_letter_of:
        for limiter in state.throttles.limiters_of(message.lane.throttle_keys):
            limiter.in_flight -= 1
            if limiter.limit and limiter.lines:
                for waiting in parking.mark_due(limiter):
                    state.dirty[waiting] = None


def _retire(state: State, grant: Grant, effects: Effects) -> None:
    """Drop a grant that no message is under any more."""
    key = grant.queue.prefix + records.u64(grant.number)
    effects.writes.append((Column.LEASES, key, None))
    grant.messages = []
    state.leases.vanished()


def nack(state: State, command: Nack, now: Now, effects: Effects) -> None:
    """Retry or dead-letter failed messages; answer with one result per item."""
    results: list[FilaError | None] = []
    moved = False
    for item in command.items:
        try:
            queue = state.queue(item.queue)
            message, grant = _leased(state, queue, item.message_id, item.lease_token)
            if item.HasField("retry_after_ms"):
                _back_off(state, queue, message, grant, item, now, effects)
            else:
                release(state, message, grant, effects)
                moved |= _fail(state, queue, message, item.error, "nack", now, effects)
            queue.counters.nacked += 1
            results.append(None)
        except FilaError as error:
            results.append(error)
    answers = effects.durable_answers if moved else effects.answers
    answers.append((command.ticket, results))


def _back_off(
    state: State,
    queue: Queue,
    message: Message,
    grant: Grant,
    item: NackRequest,
    now: Now,
    effects: Effects,
) -> None:
    """Backpressure: the message waits, no attempt counts, its throttle key may rest for all."""
    limits = state.options.limits
    if item.retry_after_ms > limits.max_delay_ms:
        raise InvalidArgument(f"retry_after_ms {item.retry_after_ms} exceeds {limits.max_delay_ms}")
    until_ns = now.mono_ns + item.retry_after_ms * NS_PER_MS
    if item.throttle_key:
        if item.throttle_key not in message.lane.throttle_keys:
            raise InvalidArgument(
                f'throttle_key "{shown(item.throttle_key)}" is not one that the message carries'
            )
        limiter = ensure(state, item.throttle_key)
        limiter.paused_until_ns = max(limiter.paused_until_ns, until_ns)
        state.throttles.touched[limiter] = None
    release(state, message, grant, effects)
    if not _has_outlived(state, message, now, effects):
        error = _bounded(state, item.error)
        requeue(state, message, message.attempt, error, item.retry_after_ms, now, effects)


def _bounded(state: State, error: str) -> str:
    """Return as much of an error's text as is kept."""
    return error.encode()[: state.options.limits.max_error_bytes].decode(errors="ignore")


def _has_outlived(state: State, message: Message, now: Now, effects: Effects) -> bool:
    """Drop a released message whose time to live passed while it was leased."""
    extra = message.extra
    if extra is None or not extra.expires_ns or extra.ends_ns > now.mono_ns:
        return False
    drop(state, message, effects)
    message.lane.key.queue.counters.timed_out += 1
    return True


def _fail(
    state: State,
    queue: Queue,
    message: Message,
    error: str,
    reason: Literal["nack", "expired"],
    now: Now,
    effects: Effects,
) -> bool:
    """Decide what becomes of a message after a failed delivery. Return True if it was moved."""
    if _has_outlived(state, message, now, effects):
        return False
    error = _bounded(state, error)
    attempts = message.attempt + 1
    config = queue.config
    delay_ms = 0
    if config.retry_delay_ms:
        longest = config.retry_delay_max_ms or _HOUR_MS
        delay_ms = min(longest, config.retry_delay_ms << min(attempts - 1, 40))
    is_dead = 0 < config.max_attempts <= attempts
    hooks = queue.hooks
    if hooks is not None and hooks.has_on_failure and not is_dead:
        headers = state.headers(queue, message)
        decision = hooks.on_failure(headers, message.id, attempts, error, reason, now.mono_ns)
        if decision is not None:
            is_dead = decision.action == "dlq"
            delay_ms = decision.delay_ms
    if is_dead and not queue.dead_letter_of:
        bury(state, queue, message, attempts, error, effects)
        return True
    requeue(state, message, attempts, error, delay_ms, now, effects)
    return False


def requeue(
    state: State,
    message: Message,
    attempt: int,
    error: str,
    delay_ms: int,
    now: Now,
    effects: Effects,
) -> None:
    """Let a released message be delivered again, behind what waits in its lane, perhaps later."""
    due_ns = now.wall_ns + delay_ms * NS_PER_MS if delay_ms else 0
    message.attempt = attempt
    message.order = state.number()
    extra = message.details()
    extra.error = error
    extra.due_ns = 0
    extra.has_retry = True
    message.lane.key.queue.note_error(error)
    record = Retry(
        attempt_count=attempt, order=message.order, deliver_at_ns=due_ns, last_error=error
    )
    effects.writes.append((Column.RETRIES, message.key, record.SerializeToString()))
    if due_ns:
        state.delay(message, due_ns, now)
    else:
        message.lane = state.lane_of(message)
        state.push(message.lane, message)
        state.dirty[message.lane.key.queue] = None


def drop(state: State, message: Message, effects: Effects) -> None:
    """Remove a message's records. The caller has taken it out of wherever it was."""
    state.forget(message)
    effects.writes.append((Column.MESSAGES, message.key, None))
    if message.extra is not None and message.extra.has_retry:
        effects.writes.append((Column.RETRIES, message.key, None))


def extend(state: State, command: Extend, now: Now, effects: Effects) -> None:
    """Prolong leases; answer with the new wall deadline or an error per item."""
    results: list[int | FilaError] = []
    wanted: dict[Message, int] = {}  # the last item about a message decides
    for item in command.items:
        try:
            queue = state.queue(item.queue)
            message, _ = _leased(state, queue, item.message_id, item.lease_token)
            duration_ms = item.extend_ms or queue.visibility_ms
            if duration_ms > MAX_VISIBILITY_MS:
                raise InvalidArgument(f"extend_ms {duration_ms} exceeds {MAX_VISIBILITY_MS}")
            wanted[message] = duration_ms
            results.append(now.wall_ns + duration_ms * NS_PER_MS)
        except FilaError as error:
            results.append(error)
    renewed: dict[tuple[Grant | None, int], list[Message]] = {}
    for message, duration_ms in wanted.items():
        renewed.setdefault((message.grant, duration_ms), []).append(message)
    for (_, duration_ms), messages in renewed.items():
        _renew(state, messages, duration_ms, now, effects)
    effects.answers.append((command.ticket, results))


def _renew(
    state: State, messages: list[Message], duration_ms: int, now: Now, effects: Effects
) -> None:
    """Move messages of one grant to a new one with the same token and a later deadline."""
    old = messages[0].grant
    assert old is not None
    duration_ns = duration_ms * NS_PER_MS
    grant = Grant(
        state.number(),
        old.token,
        old.queue,
        old.consumer,
        messages,
        now.mono_ns + duration_ns,
        now.wall_ns + duration_ns,
        duration_ms,
    )
    for message in messages:
        message.grant = grant
    old.left -= len(messages)
    if old.left == 0:
        _retire(state, old, effects)
    state.leases.push(grant.deadline_ns, grant.number, grant)
    effects.writes.append(lease_record(grant))


def expire_leases(state: State, now: Now, effects: Effects) -> None:
    """Fail every delivery whose lease has run out."""
    for grant in state.leases.due(now.mono_ns):
        for message in list(grant.messages):
            if message.grant is grant:
                release(state, message, grant, effects)
                grant.queue.counters.expired += 1
                _fail(state, grant.queue, message, EXPIRED, "expired", now, effects)


def close_consumer(state: State, command: CloseConsumer, now: Now, effects: Effects) -> None:
    """Forget a consumer. Frames that never left go back at once, with no attempt counted."""
    consumer = command.consumer
    queue = consumer.queue
    consumer.is_open = False
    if consumer in queue.consumers:
        del queue.consumers[consumer]
        state.consumer_count -= 1
    if consumer.is_available:
        queue.available.remove(consumer)
        consumer.is_available = False
    by_lane: dict[tuple[str, LaneKey], list[Message]] = {}
    for grant in command.unsent:
        for message in list(grant.messages):
            if message.grant is grant:
                lane = message.lane
                if not queue.dead_letter_of:
                    for limiter in state.throttles.limiters_of(lane.throttle_keys):
                        limiter.give_back(lane.cost)
                        limiter.in_flight += 1  # release() takes it off again
                        state.throttles.touched[limiter] = None
                release(state, message, grant, effects)
                queue.counters.delivered -= 1
                if not _has_outlived(state, message, now, effects):
                    by_lane.setdefault((lane.key.name, lane.lane_key), []).append(message)
    for messages in by_lane.values():
        state.put_back(messages)


def _leased(state: State, queue: Queue, message_id: str, token: str) -> tuple[Message, Grant]:
    message = queue.leases.get(message_id)
    if message is None:
        raise _not_leased(state, queue, message_id, token)
    grant = message.grant
    assert grant is not None
    if token and token != grant.token:
        raise _stale(message_id)
    return message, grant


def _unknown_queue(state: State, name: str) -> FilaError:
    try:
        state.queue(name)
    except FilaError as error:
        return error
    raise AssertionError("the queue exists")


def _not_leased(state: State, queue: Queue, message_id: str, token: str) -> FilaError:
    """Tell a message that is gone from one that has slipped away from the token's holder."""
    if not message_id:
        return InvalidArgument("message_id must not be empty")
    if token:
        key = state.key_of(queue, message_id)
        if key is not None and key not in state.gone and state.exists(queue, key):
            return _stale(message_id)
    return MessageNotFound(f'no leased message "{shown(message_id)}" in queue "{queue.name}"')


def _stale(message_id: str) -> FilaError:
    return LeaseExpired(f'the lease of message "{shown(message_id)}" under this token has ended')
