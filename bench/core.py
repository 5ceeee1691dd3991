# SPDX-License-Identifier: AGPL-3.0-only
"""The broker's core alone: no gRPC, no disk, a clock that is moved by hand.

What is timed is `Broker.handle` and nothing else; reading from the store is taken off again, since
a dict says nothing of what a disk would take. It knows the seam between engine and core, and not
what is inside.
"""

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fila.v1 import admin_pb2, service_pb2
from fila.v1.messages_pb2 import Message
from fila_server.config import Config, LuaConfig
from fila_server.core.admin.change import Change
from fila_server.core.broker import Broker
from fila_server.core.clock import Now
from fila_server.core.commands import (
    Ack,
    Admin,
    CloseConsumer,
    Command,
    Enqueue,
    FrameTaken,
    OpenConsumer,
)
from fila_server.core.effects import Effects
from fila_server.core.wire.intake import Intake
from fila_server.errors import FilaError
from fila_server.runtime.hooks import compile_hooks
from fila_server.storage.api import Column, Until, Write

QUEUE = "work"
BATCH = 5000


class Nothing:
    """A store that keeps nothing: what is left is the scheduler."""

    read_ns = 0

    def write(self, writes: Sequence[Write]) -> None:
        pass

    def get_many(self, column: Column, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    def scan(self, column: Column, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(())


class Shelf:
    """A store that is a dict per column. `read_ns` is what reading from it has taken."""

    def __init__(self) -> None:
        self._records: list[dict[bytes, bytes]] = [{} for _ in Column]
        self._sorted: list[list[bytes] | None] = [None for _ in Column]
        self.read_ns = 0

    def write(self, writes: Sequence[Write]) -> None:
        for column, key, value in writes:
            records = self._records[column]
            if isinstance(value, bytes):
                if key not in records:
                    self._sorted[column] = None
                records[key] = value
            elif value is None:
                if records.pop(key, None) is not None:
                    self._sorted[column] = None
            elif isinstance(value, Until):
                keys, places = self._keys(column, key, value.end)
                for at in places:
                    del records[keys[at]]
                self._sorted[column] = None

    def get_many(self, column: Column, keys: Sequence[bytes]) -> list[bytes | None]:
        began = time.process_time_ns()
        found = list(map(self._records[column].get, keys))
        self.read_ns += time.process_time_ns() - began
        return found

    def scan(self, column: Column, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        began = time.process_time_ns()
        keys, places = self._keys(column, start, end)
        self.read_ns += time.process_time_ns() - began
        records = self._records[column]
        return ((keys[at], records[keys[at]]) for at in places)

    def _keys(self, column: Column, start: bytes, end: bytes) -> tuple[list[bytes], range]:
        """Return all keys, and the places of those in between: a list of a million takes long to
        let go of, and would count as the core's time.
        """
        keys = self._sorted[column]
        if keys is None:
            keys = self._sorted[column] = sorted(self._records[column])
        return keys, range(bisect_left(keys, start), bisect_left(keys, end))


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of the core: what came of it, and what it took."""

    effects: Effects
    cpu_ns: int

    @property
    def units(self) -> int:
        """Work done, as the core counts it."""
        return self.effects.units


class Core:
    """A broker without I/O, driven turn by turn."""

    def __init__(self, store: Nothing | Shelf | None = None, **scheduler: int) -> None:
        config = Config()
        self.config = replace(config, scheduler=replace(config.scheduler, **scheduler))
        self.intake = Intake(config.limits)
        self.store = store if store is not None else Nothing()
        self.spent_ns = 0
        self._mono_ns = 10**12
        self._consumers = 0
        self.recover()

    def recover(self) -> int:
        """Start again from the store; return the processor time that it took."""
        self.broker = Broker(self.config, self.store, compile_hooks(LuaConfig()), 1)
        read_ns, began = self.store.read_ns, time.process_time_ns()
        _, writes = self.broker.recover(self.now())
        spent = time.process_time_ns() - began - (self.store.read_ns - read_ns)
        self.store.write(writes)
        return spent

    # --- Time -------------------------------------------------------------------------------------

    def now(self) -> Now:
        return Now(self._mono_ns, self._mono_ns + 10**18)

    def advance(self, ns: int) -> None:
        self._mono_ns += ns

    def wait(self) -> None:
        """Let time pass until the core has something to do."""
        self.advance(max(0, self.broker.next_wake_ns() - self._mono_ns))

    # --- Turns ------------------------------------------------------------------------------------

    def turn(self, commands: Sequence[Command] = ()) -> Turn:
        """Handle one group, and store what it writes."""
        store = self.store
        read_ns, began = store.read_ns, time.process_time_ns()
        effects = self.broker.handle(commands, self.now())
        spent = time.process_time_ns() - began - (store.read_ns - read_ns)
        self.spent_ns += spent
        store.write(effects.writes)
        return Turn(effects, spent)

    def turns(self, *commands: Command) -> Iterator[Turn]:
        """Handle a group, then whatever it left over or time has brought."""
        group: Sequence[Command] = commands
        while True:
            turn = self.turn(group)
            yield turn
            group = ()
            if not turn.effects.more and self.broker.next_wake_ns() > self._mono_ns:
                return

    def ask(self, command: Command) -> Any:
        """Handle one command to its end and return its answer. Raises the error it got."""
        answer: Any = None
        for turn in self.turns(command):
            for _, answer in (*turn.effects.answers, *turn.effects.durable_answers):
                if isinstance(answer, FilaError):
                    raise answer
        return answer.response if isinstance(answer, Change) else answer

    # --- What clients do --------------------------------------------------------------------------

    def admin(self, request: Any) -> Any:
        return self.ask(Admin(0, request))

    def create(self, name: str = QUEUE, **settings: Any) -> None:
        config = admin_pb2.QueueConfig(**settings)
        self.admin(admin_pb2.CreateQueueRequest(name=name, config=config))

    def drafts(self, requests: Sequence[service_pb2.EnqueueRequest]) -> Enqueue:
        batch = service_pb2.EnqueueBatchRequest(messages=requests)
        return Enqueue(0, self.intake.drafts(batch.SerializeToString()))

    def enqueue(
        self, keys: Sequence[str], queue: str = QUEUE, size: int = 64, **fields: Any
    ) -> list[str]:
        """Enqueue one message per entry of `keys`, in batches; return the ids."""
        payload = b"x" * size
        ids: list[str] = []
        for start in range(0, len(keys), BATCH):
            command = self.drafts(
                [
                    service_pb2.EnqueueRequest(
                        queue=queue, payload=payload, fairness_key=key, **fields
                    )
                    for key in keys[start : start + BATCH]
                ]
            )
            ids += self.ask(command)
        return ids

    def open(self, credit: int = 10_000, batch: int = 1000, queue: str = QUEUE) -> tuple[int, Turn]:
        """Open a stream; return the consumer and the turn that did it."""
        self._consumers += 1
        turn = self.turn([OpenConsumer(0, self._consumers, queue, credit, batch, 0, False)])
        answer = turn.effects.answers[0][1]
        assert answer is None, answer
        return self._consumers, turn

    def lease(self, count: int, queue: str = QUEUE) -> list[Message]:
        """Let one stream take so many messages and leave; return them."""
        consumer, turn = self.open(count, BATCH, queue)
        found: list[Message] = []
        while turn.effects.frames:
            for _, _, frame in turn.effects.frames:
                found += messages_in(frame)
            turn = self.turn([FrameTaken(consumer) for _ in turn.effects.frames])
        self.turn([CloseConsumer(consumer, [])])
        return found


def messages_in(frame: bytes) -> list[Message]:
    return list(service_pb2.ConsumeResponse.FromString(frame).messages)


def acks(messages: Sequence[Message], queue: str = QUEUE) -> Ack:
    return Ack(0, [service_pb2.AckRequest(queue=queue, message_id=it.id) for it in messages])
