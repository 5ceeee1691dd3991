# SPDX-License-Identifier: AGPL-3.0-only
"""What becomes of a message whose delivery failed: again, again later, or the dead-letter queue.

A message's past (attempts, the last errors) is in its RETRIES record and nowhere else; memory has
the number of attempts only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fila.v1.messages_pb2 import (
    FAILURE_CAUSE_EXPIRED,
    FAILURE_CAUSE_HOOK,
    FAILURE_CAUSE_MAX_ATTEMPTS,
    FailureCause,
)
from fila_server.core.clock import NS_PER_MS
from fila_server.core.traffic.letters import bury
from fila_server.core.wire.records_pb2 import Retry, StoredFailure
from fila_server.limits import DEFAULT_RETRY_DELAY_MAX_MS, FAILURE_ERROR_BYTES, FAILURES_KEPT
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.schedule.message import Message
    from fila_server.core.schedule.queue import FailureDecision
    from fila_server.core.state import State
    from fila_server.core.turn import Turn


def fail(
    state: State,
    message: Message,
    error: str,
    cause: FailureCause,
    turn: Turn,
    is_hopeless: bool = False,
) -> bool:
    """Decide what becomes of a released message. Return True if it moved to another queue.

    Its consumer may know that it is hopeless: then nobody else is asked.
    """
    if has_outlived(state, message, turn):
        return False
    queue = message.lane.key.queue
    attempts = message.attempt + 1
    config = queue.config
    delay_ms = 0
    if config.retry_delay_ms:
        longest = config.retry_delay_max_ms or DEFAULT_RETRY_DELAY_MAX_MS
        delay_ms = min(longest, config.retry_delay_ms << min(attempts - 1, 40))
    is_dead = is_hopeless
    if is_hopeless:
        pass
    elif 0 < config.max_attempts <= attempts:
        is_dead = True
        cause = FAILURE_CAUSE_MAX_ATTEMPTS
    elif queue.hooks is not None and queue.hooks.has_on_failure:
        decision = _ask_hook(state, message, attempts, error, cause, turn)
        if decision is not None:
            is_dead = decision.action == "dlq"
            delay_ms = decision.delay_ms
            cause = FAILURE_CAUSE_HOOK if is_dead else cause
    if is_dead and not queue.dead_letter_of:
        retry = _retry(state, message, attempts, error, cause, turn)
        bury(state, message, retry, turn)
        return True
    requeue(state, message, attempts, error, delay_ms, cause, turn)
    message.lane.key.usage.retried += 1
    return False


def _ask_hook(
    state: State, message: Message, attempts: int, error: str, cause: FailureCause, turn: Turn
) -> FailureDecision | None:
    lane = message.lane
    hooks = lane.key.queue.hooks
    assert hooks is not None
    item = state.content(turn, lane.key.queue, message.key)
    reason: Literal["nack", "expired"] = "expired" if cause == FAILURE_CAUSE_EXPIRED else "nack"
    before_ns = hooks.spent_ns
    try:
        return hooks.on_failure(
            item.headers,
            message.id,
            attempts,
            bounded(error, state.config.limits.max_error_bytes),
            reason,
            turn.now.mono_ns,
            len(item.payload),
            lane.key.name,
            lane.throttle_keys,
        )
    finally:
        turn.hook_ns += hooks.spent_ns - before_ns


def requeue(
    state: State,
    message: Message,
    attempts: int,
    error: str,
    delay_ms: int,
    cause: FailureCause | None,
    turn: Turn,
) -> None:
    """Let a released message be delivered again, behind what waits in its lane, perhaps later.

    Without a cause nothing failed: it only waits.
    """
    now = turn.now
    retry = _retry(state, message, attempts, error, cause, turn)
    extra = message.details()
    extra.attempt = attempts
    extra.order = retry.order = state.number()
    extra.has_retry = True
    if delay_ms:
        retry.delay_ms = delay_ms
        retry.deliver_at_ns = now.wall_ns + delay_ms * NS_PER_MS
        state.places.delay(message, retry.deliver_at_ns, now.mono_ns + delay_ms * NS_PER_MS)
    else:
        places = state.places
        lane = message.lane = places.lane_again(message.lane, now.mono_ns)
        if message.is_mortal:
            places.insert(lane, message.order, message)
        else:
            places.append(lane, message.order, message)
    turn.batch.put(Column.RETRIES, message.key, retry.SerializeToString())


def _retry(
    state: State,
    message: Message,
    attempts: int,
    error: str,
    cause: FailureCause | None,
    turn: Turn,
) -> Retry:
    """Return a message's past with one more failure in it. A disk that is full gets no texts."""
    retry = Retry(attempt_count=attempts)
    if message.has_retry:
        value = turn.batch.get(Column.RETRIES, message.key)
        if value is not None:
            past = Retry.FromString(value)
            retry.last_error = past.last_error
            retry.failures.extend(past.failures)
    if turn.disk_full is not None:
        error = ""
        for failure in retry.failures:
            failure.error = ""
    if error or cause is not None:
        retry.last_error = bounded(error, state.config.limits.max_error_bytes)
    if cause is not None:
        del retry.failures[: max(0, len(retry.failures) + 1 - FAILURES_KEPT)]
        retry.failures.append(
            StoredFailure(
                failed_at_ns=turn.now.wall_ns,
                cause=cause,
                error=bounded(error, FAILURE_ERROR_BYTES),
            )
        )
    return retry


def bounded(error: str, limit: int) -> str:
    """Return as much of an error's text as is kept."""
    return error.encode()[:limit].decode(errors="ignore")


def has_outlived(state: State, message: Message, turn: Turn) -> bool:
    """Drop a released message whose time to live passed while it was leased."""
    extra = message.extra
    if extra is None or not extra.expires_ns or extra.ends_ns > turn.now.mono_ns:
        return False
    drop(state, message, turn)
    message.lane.key.queue.counters.timed_out += 1
    return True


def drop(state: State, message: Message, turn: Turn) -> None:
    """Remove a message's records. The caller has taken it out of wherever it was."""
    turn.write((Column.MESSAGES, message.key, None))
    if message.extra is not None:
        forget_records(state, message, turn)


def forget_records(state: State, message: Message, turn: Turn) -> None:
    """Let go of what only some messages have."""
    state.places.forget_life(message)
    if message.has_retry:
        turn.write((Column.RETRIES, message.key, None))


def end_lives(state: State, turn: Turn, limit: int) -> None:
    """Drop messages whose time to live has passed and that nobody holds."""
    places = state.places
    for message in places.mortal.due(turn.now.mono_ns, limit):
        turn.units += 1
        lane = message.lane
        queue = lane.key.queue
        if message.grant is not None or queue.is_deleted:
            continue  # a failed delivery looks at the time to live by itself
        if queue.delayed.get(message.number) is message:
            places.undelay(message)
        elif places.remove(lane, message.order) is None:
            continue
        drop(state, message, turn)
        queue.counters.timed_out += 1


def drop_ended(state: State, turn: Turn) -> None:
    """Drop messages that were next and whose time to live had passed: they reach nobody.

    More may end at once than a turn has room for, and after a start all that ended meanwhile do.
    """
    ended = state.places.ended
    for message in ended:
        drop(state, message, turn)
        message.lane.key.queue.counters.timed_out += 1
    ended.clear()
