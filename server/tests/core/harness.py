# SPDX-License-Identifier: AGPL-3.0-only
"""The core on the in-memory store under a virtual clock: what the engine does, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fila.v1 import admin_pb2, service_pb2
from fila.v1.messages_pb2 import Message
from fila_server.config import Config, LimitsConfig
from fila_server.core import check
from fila_server.core.admin.change import Change
from fila_server.core.batch import Batch, decode
from fila_server.core.broker import Broker
from fila_server.core.clock import Now
from fila_server.core.commands import (
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
from fila_server.core.wire.answers import Settled
from fila_server.core.wire.intake import Draft, Intake
from fila_server.errors import DiskFull, FilaError
from fila_server.storage.memory import MemoryStorage

MS = 1_000_000
S = 1_000_000_000


class Clock:
    """Both clocks, moved by hand. `jump` steps the wall clock only, as NTP does."""

    def __init__(self) -> None:
        self.mono_ns = 10**12
        self.wall_ns = 1_800_000_000 * S

    def advance(self, seconds: float) -> None:
        self.mono_ns += int(seconds * S)
        self.wall_ns += int(seconds * S)

    def jump(self, seconds: float) -> None:
        self.wall_ns += int(seconds * S)

    def now(self) -> Now:
        return Now(self.mono_ns, self.wall_ns)


def no_hooks(*_: object) -> None:
    return None


class Harness:
    """A broker without threads, sockets or waiting."""

    def __init__(
        self,
        storage: Any = None,
        clock: Clock | None = None,
        compile_hooks: Callable[..., Any] = no_hooks,
        limits: LimitsConfig | None = None,
        **scheduler: int,
    ) -> None:
        self.storage = storage if storage is not None else MemoryStorage()
        self.clock = clock or Clock()
        config = Config()
        self.config = replace(
            config,
            limits=limits or config.limits,
            scheduler=replace(config.scheduler, **scheduler),
        )
        self.compile_hooks = compile_hooks
        self.frames: list[tuple[int, int, list[Message]]] = []
        self.closed: list[tuple[int, FilaError]] = []
        self.last: Effects = Effects(Batch(self.storage))
        self.units: list[int] = []  # of each turn
        self.consumers = 0
        self.disk_full: DiskFull | None = None  # for every turn
        self._start()

    def _start(self) -> None:
        self.broker = Broker(self.config, self.storage, self.compile_hooks, nonce=12345)
        _, writes = self.broker.recover(self.clock.now())
        if writes:
            self.storage.write(writes)
            self.storage.sync()

    def restart(self, *, power: bool = False, keep: int = 0) -> None:
        """Lose the process, or the power too, and start again on what is left."""
        self.storage = self.storage.crash(power=power, keep=keep)
        self.frames.clear()
        self._start()

    def turn(self, *commands: Command, sync: bool = True) -> Effects:
        """Take one turn, and carry out what it leads to."""
        effects = self.last = self.broker.handle(
            commands, self.clock.now(), disk_full=self.disk_full
        )
        self.units.append(effects.units)
        if effects.writes:  # by way of their encoding, which must say all of it
            self.storage.write(decode(effects.batch.encode()))
        if effects.durable_answers and sync:
            self.storage.sync()
        for consumer, grant, frame in effects.frames:
            parsed = service_pb2.ConsumeResponse.FromString(frame)
            self.frames.append((consumer, grant, list(parsed.messages)))
        self.closed.extend(effects.closed)
        return effects

    def run(self, *commands: Command, sync: bool = True) -> list[Any]:
        """Take a turn with the commands, and turns until nothing is left; return the answers."""
        answers: dict[int, Any] = {}
        effects = self.turn(*commands, sync=sync)
        while True:
            answers.update(effects.answers)
            answers.update(effects.durable_answers)
            if not effects.more:
                return [answers.get(at) for at in range(len(commands))]
            effects = self.turn(sync=sync)

    def tick(self) -> None:
        self.run()

    def ask(self, make: Callable[[int], Command]) -> Any:
        """Run one command; return its answer or raise the error it was refused with."""
        (answer,) = self.run(make(0))
        if isinstance(answer, FilaError):
            raise answer
        return answer.response if isinstance(answer, Change) else answer

    # --- What clients do --------------------------------------------------------------------------

    def admin(self, request: Any) -> Any:
        return self.ask(lambda ticket: Admin(ticket, request))

    def create(self, name: str, **config: Any) -> None:
        request = admin_pb2.CreateQueueRequest(name=name, config=admin_pb2.QueueConfig(**config))
        self.admin(request)

    def enqueue(self, queue: str, payload: bytes = b"x", **fields: Any) -> str:
        drafts = self.drafts(service_pb2.EnqueueRequest(queue=queue, payload=payload, **fields))
        (result,) = self.ask(lambda ticket: Enqueue(ticket, drafts))
        if isinstance(result, FilaError):
            raise result
        return str(result)

    def drafts(self, *requests: service_pb2.EnqueueRequest) -> list[Draft]:
        batch = service_pb2.EnqueueBatchRequest(messages=requests)
        return Intake(self.config.limits).drafts(batch.SerializeToString())

    def enqueue_many(
        self, queue: str, count: int, keys: Sequence[str] = ("",), **fields: Any
    ) -> list[str]:
        """Enqueue a batch whose messages have the fairness keys in turn; return the ids."""
        requests = [
            service_pb2.EnqueueRequest(queue=queue, fairness_key=keys[at % len(keys)], **fields)
            for at in range(count)
        ]
        drafts = self.drafts(*requests)
        results: list[str] = self.ask(lambda ticket: Enqueue(ticket, drafts))
        assert not any(isinstance(result, FilaError) for result in results), results
        return results

    def open(self, queue: str, credit: int = 100, batch: int = 100, visibility_ms: int = 0) -> int:
        self.consumers += 1
        consumer = self.consumers
        self.ask(
            lambda ticket: OpenConsumer(
                ticket, consumer, queue, credit, batch, visibility_ms, False
            )
        )
        return consumer

    def take(self) -> list[Message]:
        """Take the frames that are under way, as streams do, until no more come."""
        messages: list[Message] = []
        while self.frames:
            frames, self.frames = self.frames, []
            for _, _, parsed in frames:
                messages.extend(parsed)
            self.run(*(FrameTaken(consumer) for consumer, _, _ in frames))
        return messages

    def receive(self, queue: str, count: int = 1, visibility_ms: int = 0) -> list[Message]:
        """Lease up to `count` messages, as Receive does."""
        self.consumers += 1
        consumer = self.consumers
        self.ask(
            lambda ticket: OpenConsumer(ticket, consumer, queue, count, count, visibility_ms, True)
        )
        mine = [frame for frame in self.frames if frame[0] == consumer]
        self.frames = [frame for frame in self.frames if frame[0] != consumer]
        self.run(CloseConsumer(consumer, []))
        return [message for _, _, messages in mine for message in messages]

    def ack(self, queue: str, message_id: str, token: str = "") -> FilaError | None:
        item = service_pb2.AckRequest(queue=queue, message_id=message_id, lease_token=token)
        (result,) = self.ask(lambda ticket: Ack(ticket, [item]))
        return result  # type: ignore[no-any-return]

    def nack(self, queue: str, message_id: str, token: str = "", **fields: Any) -> FilaError | None:
        item = service_pb2.NackRequest(
            queue=queue, message_id=message_id, lease_token=token, **fields
        )
        (result,) = self.ask(lambda ticket: Nack(ticket, [item]))
        return result  # type: ignore[no-any-return]

    def extend(self, queue: str, message_id: str, token: str = "", ms: int = 0) -> int | FilaError:
        item = service_pb2.LeaseExtension(
            queue=queue, message_id=message_id, lease_token=token, extend_ms=ms
        )
        (result,) = self.ask(lambda ticket: Extend(ticket, [item]))
        return result  # type: ignore[no-any-return]

    def settle(self, queue: str, token: str, **fields: Any) -> Settled | FilaError:
        """Settle a grant."""
        item = service_pb2.GrantSettlement(queue=queue, lease_token=token, **fields)
        (result,) = self.ask(lambda ticket: SettleGrants(ticket, [item]))
        return result  # type: ignore[no-any-return]

    def set(self, key: str, value: str) -> None:
        self.admin(admin_pb2.SetConfigRequest(key=key, value=value))

    def stats(self, queue: str) -> admin_pb2.GetStatsResponse:
        return self.admin(admin_pb2.GetStatsRequest(queue=queue))  # type: ignore[no-any-return]


# --- Memory against disk --------------------------------------------------------------------------


def check_consistent(harness: Harness) -> None:
    """Memory equals what a restart would rebuild now, and its own facts agree."""
    shadow = Broker(harness.config, harness.storage, harness.compile_hooks, nonce=1)
    shadow.recover(harness.clock.now())
    assert check.snapshot(harness.broker) == check.snapshot(shadow)
    assert check.problems(harness.broker) == []
    assert check.problems(shadow) == []
