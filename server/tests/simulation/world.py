# SPDX-License-Identifier: AGPL-3.0-only
"""A broker, its store, its clocks and its clients' sinks: what an engine does, one turn at a time.

The world is also where things go wrong: the clocks jump, the process ends in the middle of any
storage operation, the power goes with whatever was not synced. It tells the ledger what happened
and keeps a copy of the model for each group on disk, so that a crash has one right outcome. Who
asks what, and when, is up to clients and schedule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from fila.v1 import admin_pb2 as pb
from fila.v1 import service_pb2
from fila.v1.messages_pb2 import Message
from fila_server.config import Config
from fila_server.core import check
from fila_server.core.broker import Broker
from fila_server.core.clock import NS_PER_S, Now
from fila_server.core.commands import Admin, CloseConsumer, FrameTaken
from fila_server.core.turn import BRIEF, FULL, SHARED, Room
from fila_server.errors import FilaError
from fila_server.storage.memory import MemoryStorage
from server.tests.simulation.broken import Broken
from server.tests.simulation.ledger import Ledger
from server.tests.simulation.model import Model
from server.tests.simulation.scripts import compile_scripts
from server.tests.simulation.turn import Turn

_FIRST_MONO_NS = 10**12
_FIRST_WALL_NS = 1_800_000_000 * NS_PER_S
_PEEKED = 1000


class Clock:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.mono_ns = _FIRST_MONO_NS
        self.wall_ns = _FIRST_WALL_NS
        self.has_jumped = False

    def now(self) -> Now:
        return Now(self.mono_ns, self.wall_ns)

    def advance(self, elapsed_ns: int) -> None:
        self.mono_ns += elapsed_ns
        self.wall_ns += elapsed_ns

    def jump(self, ns: int) -> None:
        """Step the wall clock alone, as an operator or NTP does."""
        self.wall_ns = max(NS_PER_S, self.wall_ns + ns)
        self.has_jumped = True


class Crash(Exception):
    """The process ends here."""


class Fuse(NamedTuple):
    """A crash at the nth storage operation from now; its effect is on disk, or it is not."""

    operations: int
    is_kept: bool


class World:
    """One broker after another on one store."""

    def __init__(self, random: Random, config: Config | None = None) -> None:
        base = config or Config()
        self.config = replace(base, scheduler=replace(base.scheduler, hot_bytes=400))
        self.random = random
        self.clock = Clock()
        self.storage = MemoryStorage()
        self.ledger = Ledger(self.config)
        self.sinks: dict[int, deque[tuple[int, list[Message]]]] = {}
        self.inbox: list[Any] = []
        self.has_more = False
        self._turns = 0
        self.fuse: Fuse | None = None
        self.trace: Callable[[str], None] | None = None
        self._tail: list[Model] = []  # one for each group that power loss could take
        self._synced = self.ledger.model.copy()
        self._owed: list[tuple[int, Any]] = []  # answers that wait for a sync
        self._promises: list[tuple[int, int]] = []  # (groups on disk, ticket) of those given early
        self._tickets = 0
        self._consumers = 0
        self._start()

    # --- What clients do --------------------------------------------------------------------------

    def ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def tell(self, command: Any) -> None:
        self.inbox.append(command)

    def admin(self, request: Any) -> None:
        self.tell(Admin(self.ticket(), request))

    def connect(self) -> int:
        """Return the id of a new consumer, with a sink for its frames."""
        self._consumers += 1
        self.sinks[self._consumers] = deque()
        return self._consumers

    def take(self, consumer: int, is_once: bool) -> list[Message]:
        """Let a client have the oldest frame that is under way to it."""
        grant, messages = self.sinks[consumer].popleft()
        self.ledger.frame_left(grant)
        if not is_once:
            self.tell(FrameTaken(consumer))
        return messages

    def disconnect(self, consumer: int) -> None:
        """End a client's connection; what is still under way to it goes back."""
        unsent = [grant for grant, _ in self.sinks.pop(consumer)]
        self.tell(CloseConsumer(consumer, unsent))

    # --- Turns ------------------------------------------------------------------------------------

    def turn(self, at_most: int = 1 << 30) -> None:
        """Handle what waits as one group and carry out its effects. Raises Crash and Broken."""
        self.clock.advance(1)  # no two turns begin at the same time
        group = self._take_group(at_most)
        now = self.clock.now()
        self._turns += 1
        effects = self._handle(group, room=(FULL, SHARED, BRIEF)[self._turns % 3])
        frames = [
            (consumer, grant, list(service_pb2.ConsumeResponse.FromString(frame).messages))
            for consumer, grant, frame in effects.frames
        ]
        turn = Turn(group, now, effects, frames)
        self._say(turn)
        is_last = self._burn() if effects.writes else False
        if effects.writes:
            self.storage.write(effects.writes)
        self.ledger.apply(turn)
        self._remember(bool(effects.writes))
        if is_last:
            raise Crash
        self.has_more = effects.more
        self._deliver(turn)
        self._answer(effects.answers)
        self._owed.extend(effects.durable_answers)
        if self.ledger.operations and not effects.more:
            self.ledger.operations.resolve(self.look)
            self._remember(False)

    def settle(self) -> None:
        """Take turns until nothing is left over."""
        for _ in range(1000):
            self.turn()
            if not self.inbox and not self.has_more:
                return
        raise Broken("11: every turn is bounded", "the broker has more to do after 1000 turns")

    def sync(self) -> None:
        """Make what was written durable, as the flusher does, and give the answers it allows."""
        is_last = self._burn()
        self.storage.sync()
        self._synced = self.ledger.model.copy()
        self._tail.clear()
        self._promises.clear()
        if is_last:
            raise Crash
        self._owed.clear()

    def read(self, request: Any) -> Any:
        """Ask for something that changes nothing, and hold the broker to that."""
        ticket = self.ticket()
        effects = self._handle([Admin(ticket, request)])
        if effects.writes or effects.frames or effects.closed or effects.durable_answers:
            raise Broken("10: a read changes nothing", f"{request} led to {_shown(effects)}")
        answer = dict(effects.answers).get(ticket)
        if answer is None or isinstance(answer, FilaError):
            raise Broken("10: a read is answered", f"{request} gave {answer!r}")
        return answer

    def look(self, queue: str) -> dict[str, pb.PeekedMessage]:
        """Return every message of a queue by id, as Peek shows it page by page."""
        found: dict[str, pb.PeekedMessage] = {}
        request = pb.PeekRequest(queue=queue, limit=_PEEKED)
        while True:
            answer = self.read(request)
            found.update((it.message.id, it) for it in answer.messages)
            if not answer.next_position:
                return found
            request.from_position = answer.next_position

    def _handle(self, group: list[Any], room: Room = FULL) -> Any:
        try:
            effects = self.broker.handle(group, self.clock.now(), room=room)
        except Exception as error:
            raise Broken("10: nothing that is asked stops the broker", repr(error)) from error
        for defect in effects.defects:
            raise Broken("10: a call that reads never fails", repr(defect)) from defect
        return effects

    def nudge(self) -> list[tuple[int, int]]:
        """Mark everything due and dirty; return the (consumer, grant) that this delivers."""
        check.nudge(self.broker)
        effects = self._handle([])
        if effects.writes:
            self.storage.write(effects.writes)
            self._remember(True)
        return [(consumer, grant) for consumer, grant, _ in effects.frames]

    def _take_group(self, at_most: int) -> list[Any]:
        group, self.inbox = self.inbox[:at_most], self.inbox[at_most:]
        return group

    def _deliver(self, turn: Turn) -> None:
        for consumer, _ in turn.effects.closed:
            if consumer in self.sinks:
                self.disconnect(consumer)
        for consumer, grant, messages in turn.frames:
            sink = self.sinks.get(consumer)
            if sink is None:  # it left while the group was being handled
                self.tell(CloseConsumer(consumer, [grant]))
            else:
                sink.append((grant, messages))

    def _answer(self, answers: list[tuple[int, Any]]) -> None:
        for ticket, _ in answers:
            if self.ledger.is_promise(ticket):
                self._promises.append((len(self._tail), ticket))

    # --- Failures ---------------------------------------------------------------------------------

    def _burn(self) -> bool:
        """Count a storage operation. Raise Crash before it, or return True to crash after it."""
        if self.fuse is None:
            return False
        self.fuse = self.fuse._replace(operations=self.fuse.operations - 1)
        if self.fuse.operations > 0:
            return False
        is_kept = self.fuse.is_kept
        self.fuse = None
        if not is_kept:
            raise Crash
        return True

    def _remember(self, is_new: bool) -> None:
        """Keep the model of the group just written; one without writes leaves what was there."""
        if is_new:
            self._tail.append(self.ledger.model.copy())
        elif self._tail:
            self._tail[-1] = self.ledger.model.copy()
        else:
            self._synced = self.ledger.model.copy()

    def restart(self, *, power: bool, keep: int, down_ns: int, jump_ns: int, mono_ns: int) -> None:
        """Lose the process, or the power too, and start again on what is left.

        Of the groups that were not synced power loss leaves the first `keep`. The broker is down
        for `down_ns`, finds the wall clock off by `jump_ns`, and a monotonic clock that starts at
        `mono_ns` if the machine did too.
        """
        before = self.clock.now()
        if self.trace is not None:
            self.trace(f"crash: {power=} {keep=} of {len(self._tail)} {down_ns=} {jump_ns=}")
        survivors = min(keep, len(self._tail)) if power else len(self._tail)
        lost = [ticket for groups, ticket in self._promises if groups > survivors]
        if lost:
            raise Broken("1: a confirmed enqueue is never lost", f"answers {lost} were given early")
        model = self._tail[survivors - 1] if survivors else self._synced
        self.storage = self.storage.crash(power=power, keep=keep)
        self.clock.advance(down_ns)
        if jump_ns:
            self.clock.jump(jump_ns)
        if power:
            self.clock.mono_ns = mono_ns
        self.ledger.restart(model, before, self.clock.now())
        self.sinks.clear()
        self.inbox.clear()
        self._owed.clear()
        self._promises.clear()
        self._tail.clear()
        self._synced = self.ledger.model.copy()
        self._start()

    def _start(self) -> None:
        self.has_more = False
        nonce = self.random.getrandbits(26)
        self.broker = Broker(self.config, self.storage, compile_scripts, nonce)
        _, writes = self.broker.recover(self.clock.now())
        if writes:
            is_last = self._burn()
            self.storage.write(writes)
            self._tail.append(self.ledger.model.copy())
            if is_last:
                raise Crash
            self.sync()

    @property
    def unsynced(self) -> int:
        return len(self._tail)

    def _say(self, turn: Turn) -> None:
        if self.trace is not None:
            since_ns = turn.now.mono_ns - _FIRST_MONO_NS
            self.trace(f"[{since_ns / NS_PER_S:.6f}] " + _shown_turn(turn))


def _shown(effects: Any) -> str:
    return (
        f"{len(effects.writes)} writes, {len(effects.frames)} frames,"
        f" {len(effects.durable_answers)} durable answers, {len(effects.closed)} closed"
    )


def _shown_turn(turn: Turn) -> str:
    lines = [" ".join(str(command).split()) for command in turn.commands] or ["time passes"]
    for ticket, answer in turn.effects.answers + turn.effects.durable_answers:
        lines.append(f"    answer {ticket}: {' '.join(str(answer).split())!r:.200}")
    for consumer, grant, messages in turn.frames:
        names = ", ".join(f"{it.id[24:]} {it.metadata.fairness_key}" for it in messages)
        lines.append(f"    frame {grant} to {consumer}: {names}")
    return "\n".join(lines)
