# SPDX-License-Identifier: AGPL-3.0-only
"""The broker as a pure state machine: `handle(commands, now) -> effects`.

Rules of this module and everything below it:
1. One owner calls it. It has no clock, no I/O and no randomness of its own.
2. Whatever a turn changes in memory, its batch changes on disk: memory always equals what a
   restart would rebuild.
3. Time is looked at in every turn, under load too: leases, delays, time to live, throttles.
4. A turn does a bounded amount of work and leaves the rest for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from fila.v1 import admin_pb2 as pb
from fila_server.core.admin import (
    api_keys,
    backlog,
    explanation,
    pauses,
    peek,
    queues,
    settings,
    stats,
    status,
    throttles,
)
from fila_server.core.admin.review import REVIEW_NS, review
from fila_server.core.chores import Chore, Chores, Work
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
    SettleGrants,
)
from fila_server.core.effects import Effects
from fila_server.core.housework import Housework, some
from fila_server.core.recovery import Recovered, recover, store_bucket
from fila_server.core.state import HookFactory, State
from fila_server.core.traffic import consumers, failure, grants, settlement
from fila_server.core.traffic.delivery import deliver
from fila_server.core.traffic.enqueue import enqueue
from fila_server.core.traffic.idempotency import Sweep
from fila_server.core.turn import FULL, TIME_UNITS, Room, Turn
from fila_server.errors import DiskFull
from fila_server.storage.api import Reader, Write

if TYPE_CHECKING:
    from fila_server.config import Config

    Handler = Callable[[State, Any, Turn], Any]

_REST_NS = 10 * NS_PER_S  # between two looks for resting keys to forget

# Work on messages: a generator that answers by itself.
_TRAFFIC: dict[type, Handler] = {
    Enqueue: enqueue,
    Ack: settlement.ack,
    Nack: settlement.nack,
    Extend: settlement.extend,
    SettleGrants: grants.settle,
    CloseConsumer: settlement.close_consumer,
}
# What one such command asks for is not known beforehand: it waits when a turn is full. A nack may
# move a large message, and hundreds of callers may have one each.
_OPEN_ENDED = (Nack, SettleGrants, CloseConsumer)
# What is done at once.
_BRIEF: dict[type, Handler] = {
    OpenConsumer: consumers.open_consumer,
    FrameTaken: settlement.frame_taken,
    Access: api_keys.administer,
}
# Requests of FilaAdmin. Each gives a response, or a generator that returns one.
_READS: dict[type, Handler] = {
    pb.ListQueuesRequest: queues.list_queues,
    pb.GetStatsRequest: stats.get_stats,
    pb.PeekRequest: peek.peek,
    pb.ExplainRequest: explanation.explain,
    pb.GetConfigRequest: settings.get_config,
    pb.ListConfigRequest: settings.list_config,
    pb.ListThrottlesRequest: throttles.list_throttles,
    pb.GetStatusRequest: status.get_status,
}
_CHANGES: dict[type, Handler] = {
    pb.CreateQueueRequest: queues.create_queue,
    pb.UpdateQueueRequest: queues.update_queue,
    pb.DeleteQueueRequest: queues.delete_queue,
    pb.RedriveRequest: backlog.redrive,
    pb.PurgeRequest: backlog.purge,
    pb.PauseRequest: pauses.pause,
    pb.ResumeRequest: pauses.resume,
    pb.CancelMessageRequest: backlog.cancel_message,
    pb.SetConfigRequest: settings.set_config,
    pb.DeleteConfigRequest: settings.delete_config,
}


class Broker:
    """The only mutator of the state."""

    def __init__(
        self, config: Config, read: Reader, compile_hooks: HookFactory, nonce: int
    ) -> None:
        self.state = State(config, read, compile_hooks, nonce)
        self._chores = Chores()
        self._sweep = Sweep()
        self._now = Now(0, 0)  # of the latest turn
        self._housework = (
            Housework(_REST_NS, self._forget_resting),
            Housework(REVIEW_NS, lambda: review(self.state)),
        )

    def recover(self, now: Now) -> tuple[Recovered, list[Write]]:
        """Rebuild memory from the store. Call once, before the first turn.

        The writes must be durable before that turn: they reserve the numbers that it will use.
        """
        for work in self._housework:
            work.put_off(now.mono_ns)
        self._sweep.next_ns = now.mono_ns + _REST_NS
        turn = self.state.begin(now)
        recovered = recover(self.state, turn)
        self.state.reserve(turn)
        return recovered, turn.effects.writes

    def handle(
        self,
        commands: Sequence[Command],
        now: Now,
        *,
        room: Room = FULL,
        disk_full: DiskFull | None = None,
    ) -> Effects:
        """Take a turn: what time brought, then the commands in order, then deliveries.

        While the disk is full nothing is written that need not be.
        """
        state = self.state
        self._now = now
        turn = state.begin(now)
        turn.disk_full = disk_full
        turn.room = room
        self._pass_time(turn)
        if self._chores:
            self._chores.go_on(turn)
        self._chores.open(turn)
        for command in commands:
            self._take(command, turn)
        if state.deleted:
            self._let_go(turn)
        if state.places.dirty:
            deliver(state, turn)
        for limiter in state.throttles.touched:
            store_bucket(limiter, turn)
        state.throttles.touched.clear()
        state.reserve(turn)
        effects = turn.effects
        effects.units = turn.units
        effects.more = self._has_more(now)
        return effects

    def next_wake_ns(self) -> int:
        """Return the monotonic time at which something happens by itself."""
        state = self.state
        places = state.places
        wake = min(self._sweep.next_ns, *(work.next_ns for work in self._housework))
        throttles = state.throttles
        for deadlines in (
            places.leases,
            places.delayed,
            places.mortal,
            throttles.timers,
            throttles.idle,
        ):
            at = deadlines.next_ns()
            if at is not None and at < wake:
                wake = at
        expiry_ns = state.keyring.expiring.next_ns()
        if expiry_ns is not None:
            wake = min(wake, self._now.mono_at(expiry_ns))
        return wake

    def _has_more(self, now: Now) -> bool:
        state = self.state
        return (
            bool(self._chores or state.places.dirty or state.deleted)
            or any(work.is_under_way for work in self._housework)
            or self.next_wake_ns() <= now.mono_ns
        )

    def _take(self, command: Command, turn: Turn) -> None:
        kind = command.__class__
        work = _TRAFFIC.get(kind)
        if work is not None:
            ticket = 0 if isinstance(command, CloseConsumer) else command.ticket  # type: ignore[union-attr]
            chore = Chore(ticket, work(self.state, command, turn), answers_itself=True)
            self._chores.begin(chore, turn, can_wait=isinstance(command, _OPEN_ENDED))
            return
        turn.units += 1
        brief = _BRIEF.get(kind)
        if brief is not None:
            brief(self.state, command, turn)
        else:
            self._administer(command, turn)  # type: ignore[arg-type]

    def _administer(self, command: Admin, turn: Turn) -> None:
        request = command.request
        read = _READS.get(request.__class__)
        handler = read or _CHANGES[request.__class__]
        work = _asked(handler, self.state, request, turn)
        self._chores.begin(Chore(command.ticket, work, read is not None), turn, can_wait=True)

    def _pass_time(self, turn: Turn) -> None:
        state = self.state
        places = state.places
        now = turn.now
        mono_ns = now.mono_ns
        throttles = state.throttles
        if state.keyring.expiring.is_due(now.wall_ns):
            api_keys.expire(state, turn, TIME_UNITS)
        if places.leases.is_due(mono_ns):
            settlement.expire(state, turn, TIME_UNITS)
        if places.mortal.is_due(mono_ns):
            failure.end_lives(state, turn, TIME_UNITS)
        if places.delayed.is_due(mono_ns):
            turn.units += places.released(now, TIME_UNITS)
        if throttles.timers.is_due(mono_ns):
            places.lines.fire(mono_ns, TIME_UNITS)
        if throttles.idle.is_due(mono_ns):
            self._forget_limiters(turn)
        if self._sweep.next_ns <= mono_ns:
            self._sweep.run(turn)
        for work in self._housework:
            work.run(turn)

    def _forget_resting(self) -> Iterator[int]:
        """Let go of keys that emptied and did not come back."""
        for queue in list(self.state.queues.values()):
            if queue.resting:
                while queue.resting:
                    yield self.state.places.forget_rested(queue, 100)
            else:
                yield 1

    def _forget_limiters(self, turn: Turn) -> None:
        for limiter in self.state.throttles.forgotten(turn.now.mono_ns, TIME_UNITS):
            turn.units += 1
            if limiter.is_stored:
                store_bucket(limiter, turn)

    def _let_go(self, turn: Turn) -> None:
        """Go on with dismantling deleted queues."""
        deleted = self.state.deleted
        stop = turn.units + turn.room.chores
        while deleted and turn.units < stop:
            if some(deleted[0], turn, stop):
                return
            deleted.popleft()


def _asked(handler: Handler, state: State, request: Any, turn: Turn) -> Work:
    """Do what an operator asks for, when there is room for it in a turn."""
    answer = handler(state, request, turn)
    if isinstance(answer, GeneratorType):
        answer = yield from answer
    return answer
