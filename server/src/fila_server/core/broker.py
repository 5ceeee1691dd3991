# SPDX-License-Identifier: AGPL-3.0-only
"""The broker as a pure state machine: `handle(commands, now) -> effects`.

Rules of this module and everything below it:
1. One owner calls it. It has no clock, no I/O and no randomness of its own.
2. Whatever a group changes in memory, its writes change on disk: memory always equals what a
   restart would rebuild.
3. Time is looked at in every group, under load too: leases, delays, time to live, throttles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fila.v1 import admin_pb2 as pb
from fila_server.core import explain, inspect, keys, operate, parking, produce, settle
from fila_server.core.access import CONSUME
from fila_server.core.clock import NS_PER_S, Now
from fila_server.core.commands import (
    Access,
    Ack,
    Admin,
    CloseConsumer,
    Command,
    Enqueue,
    Extend,
    FrameTaken,
    Nack,
    OpenConsumer,
)
from fila_server.core.consumer import Consumer
from fila_server.core.deliver import deliver
from fila_server.core.effects import Effects
from fila_server.core.message import Message
from fila_server.core.recovery import Recovered, bucket_record, recover
from fila_server.core.settle import MAX_VISIBILITY_MS
from fila_server.core.state import HookFactory, Reader, State
from fila_server.errors import FilaError, InvalidArgument, Overloaded
from fila_server.storage.api import Write

if TYPE_CHECKING:
    from fila_server.config import Config
    from fila_server.core.lane import LaneKey

Handler = Callable[[State, Any, Now, Effects], Any]

_SWEEP_NS = 10 * NS_PER_S  # between two looks for idempotency keys to forget

_READS: dict[type, Handler] = {
    pb.ListQueuesRequest: inspect.list_queues,
    pb.GetStatsRequest: inspect.get_stats,
    pb.PeekRequest: inspect.peek,
    pb.ExplainRequest: explain.explain,
    pb.GetConfigRequest: operate.get_config,
    pb.ListConfigRequest: operate.list_config,
}
_CHANGES: dict[type, Handler] = {
    pb.CreateQueueRequest: operate.create_queue,
    pb.UpdateQueueRequest: operate.update_queue,
    pb.DeleteQueueRequest: operate.delete_queue,
    pb.RedriveRequest: operate.redrive,
    pb.PurgeRequest: operate.purge,
    pb.PauseRequest: operate.pause,
    pb.ResumeRequest: operate.resume,
    pb.CancelMessageRequest: operate.cancel_message,
    pb.SetConfigRequest: operate.set_config,
    pb.DeleteConfigRequest: operate.delete_config,
}


class Broker:
    """The only mutator of the state."""

    def __init__(
        self, config: Config, read: Reader, compile_hooks: HookFactory, nonce: int
    ) -> None:
        self.state = State(config, read, compile_hooks, nonce)
        self._now = Now(0, 0)  # of the latest group
        self._sweep_ns = 0
        self._sweep_at = b""
        self._handlers: dict[type, Handler] = {
            Enqueue: produce.enqueue,
            Ack: settle.ack,
            Nack: settle.nack,
            Extend: settle.extend,
            CloseConsumer: settle.close_consumer,
            OpenConsumer: _open_consumer,
            FrameTaken: _frame_taken,
            Admin: _administer,
            Access: keys.administer,
        }

    def recover(self, now: Now) -> tuple[Recovered, list[Write]]:
        """Rebuild memory from the store. Call once, before the first group."""
        self._sweep_ns = now.mono_ns + _SWEEP_NS
        return recover(self.state, now)

    def handle(self, commands: Sequence[Command], now: Now) -> Effects:
        """Handle a group: what time brought, then the commands in order, then deliveries."""
        state = self.state
        effects = Effects()
        self._now = now
        state.begin(now)
        self._pass_time(now, effects)
        handlers = self._handlers
        for command in commands:
            handlers[command.__class__](state, command, now, effects)
        if state.dirty:
            deliver(state, now, effects)
        if state.throttles.touched:
            effects.writes.extend(bucket_record(it, now) for it in state.throttles.touched)
            state.throttles.touched.clear()
        state.reserve(effects)
        return effects

    def next_wake_ns(self) -> int:
        """Return the monotonic time at which something happens by itself."""
        state = self.state
        wake = self._sweep_ns
        for deadlines in (state.leases, state.delayed, state.expiring):
            at = deadlines.next_ns()
            if at is not None and at < wake:
                wake = at
        expiry_ns = state.keyring.expiring.next_ns()
        if expiry_ns is not None:
            wake = min(wake, self._now.mono_at(expiry_ns))
        timers = state.throttles.timers
        return min(wake, timers[0][0]) if timers else wake

    def _pass_time(self, now: Now, effects: Effects) -> None:
        state = self.state
        mono_ns = now.mono_ns
        if state.keyring.expiring.is_due(now.wall_ns):
            keys.expire(state, now, effects)
        if state.leases.is_due(mono_ns):
            settle.expire_leases(state, now, effects)
        if state.expiring.is_due(mono_ns):
            _end_lives(state, now, effects)
        if state.delayed.is_due(mono_ns):
            _release_delayed(state, now)
        if state.throttles.timers and state.throttles.timers[0][0] <= mono_ns:
            for queue in parking.fire_timers(state.throttles, mono_ns):
                state.dirty[queue] = None
        if self._sweep_ns <= mono_ns:
            self._sweep_ns = mono_ns + _SWEEP_NS
            self._sweep_at = produce.forget_seen(state, self._sweep_at, now, effects)
            for queue in state.queues.values():
                queue.resting.clear()


def _release_delayed(state: State, now: Now) -> None:
    """Let messages whose time has come wait for their turn, where their order belongs."""
    due: dict[tuple[int, str, LaneKey], list[Message]] = {}
    for message in state.delayed.due(now.mono_ns):
        lane = message.lane
        queue = lane.key.queue
        del queue.delayed[message.id]
        message.details().due_ns = 0
        where = (queue.number, lane.key.name, lane.lane_key)
        due.setdefault(where, []).append(message)
    for messages in due.values():
        state.put_back(messages)


def _end_lives(state: State, now: Now, effects: Effects) -> None:
    """Drop messages whose time to live has passed and that nobody holds."""
    for message in state.expiring.due(now.mono_ns):
        queue = message.lane.key.queue
        if message.grant is not None or state.queues.get(queue.name) is not queue:
            continue  # a failed delivery looks at the time to live by itself
        if queue.delayed.get(message.id) is message:
            del queue.delayed[message.id]
            state.delayed.vanished()
        else:
            state.take_out(message)
        settle.drop(state, message, effects)
        queue.counters.timed_out += 1


def _open_consumer(state: State, command: OpenConsumer, now: Now, effects: Effects) -> None:
    try:
        effects.answers.append((command.ticket, _consumer(state, command, now)))
    except FilaError as error:
        effects.answers.append((command.ticket, error))


def _consumer(state: State, command: OpenConsumer, now: Now) -> Consumer:
    limits = state.options.limits
    if command.key_id:  # the key may have changed since the call was let in
        key = state.keyring.caller(command.key_id, now.wall_ns)
        if not key.may(CONSUME, command.queue):
            raise keys.denial(key, CONSUME, command.queue)
    queue = state.queue(command.queue)
    credit = command.max_in_flight or limits.default_in_flight
    if credit > limits.max_in_flight:
        raise InvalidArgument(f"max_in_flight {credit} exceeds {limits.max_in_flight}")
    if command.visibility_ms > MAX_VISIBILITY_MS:
        raise InvalidArgument(
            f"visibility_timeout_ms {command.visibility_ms} exceeds {MAX_VISIBILITY_MS}"
        )
    if state.consumer_count >= limits.max_consumers:
        raise Overloaded(f"{limits.max_consumers} consumers are connected, which is the limit")
    batch = min(max(1, command.max_batch), limits.max_frame_messages)
    consumer = Consumer(
        queue,
        credit,
        batch,
        command.visibility_ms,
        command.is_once,
        command.sink,
        command.key_id,
    )
    queue.consumers[consumer] = None
    state.consumer_count += 1
    consumer.offer()
    state.dirty[queue] = None
    return consumer


def _frame_taken(state: State, command: FrameTaken, now: Now, effects: Effects) -> None:
    consumer = command.consumer
    consumer.window += 1
    consumer.offer()
    state.dirty[consumer.queue] = None


def _administer(state: State, command: Admin, now: Now, effects: Effects) -> None:
    kind = command.request.__class__
    try:
        handler = _READS.get(kind)
        if handler is not None:
            effects.answers.append((command.ticket, handler(state, command, now, effects)))
            return
        answer = _CHANGES[kind](state, command, now, effects)
        if answer is not None:
            effects.durable_answers.append((command.ticket, answer))
    except FilaError as error:
        effects.answers.append((command.ticket, error))
