# SPDX-License-Identifier: AGPL-3.0-only
"""The core on the in-memory store under a virtual clock: what the engine does, group by group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fila.v1 import admin_pb2, service_pb2
from fila.v1.messages_pb2 import Message
from fila_server.config import Config
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
)
from fila_server.core.consumer import Consumer
from fila_server.core.effects import Effects
from fila_server.core.intake import Intake
from fila_server.core.message import Grant
from fila_server.core.message import Message as CoreMessage
from fila_server.core.queue import Queue
from fila_server.errors import FilaError
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


def no_hooks(queue: Queue, config: dict[str, str]) -> None:
    return None


class Harness:
    """A broker without threads, sockets or waiting."""

    def __init__(
        self,
        storage: Any = None,
        clock: Clock | None = None,
        compile_hooks: Callable[[Queue, dict[str, str]], Any] = no_hooks,
        **scheduler: int,
    ) -> None:
        self.storage = storage if storage is not None else MemoryStorage()
        self.clock = clock or Clock()
        config = Config()
        self.config = replace(config, scheduler=replace(config.scheduler, **scheduler))
        self.compile_hooks = compile_hooks
        self.frames: list[tuple[Consumer, Grant, list[Message]]] = []
        self.closed: list[tuple[Consumer, FilaError]] = []
        self.last: Effects = Effects()
        self._start()

    def _start(self) -> None:
        self.broker = Broker(self.config, self.storage, self.compile_hooks, nonce=12345)
        _, writes = self.broker.recover(self.clock.now())
        if writes:
            self.storage.write(writes)

    def restart(self, *, power: bool = False, keep: int = 0) -> None:
        """Lose the process, or the power too, and start again on what is left."""
        self.storage = self.storage.crash(power=power, keep=keep)
        self.frames.clear()
        self._start()

    def run(self, *commands: Command, sync: bool = True) -> list[Any]:
        """Handle commands as one group, plus the groups that continue them; return the answers."""
        answers: dict[int, Any] = {}
        group: list[Command] = list(commands)
        while True:
            effects = self.last = self.broker.handle(group, self.clock.now())
            if effects.writes:
                self.storage.write(effects.writes)
            if effects.durable_answers and sync:
                self.storage.sync()
            for consumer, grant, frame in effects.frames:
                parsed = service_pb2.ConsumeResponse.FromString(frame)
                self.frames.append((consumer, grant, list(parsed.messages)))
            self.closed.extend(effects.closed)
            answers.update(effects.answers)
            answers.update(effects.durable_answers)
            group = effects.resume
            if not group:
                return [answers.get(at) for at in range(len(commands))]

    def tick(self) -> None:
        self.run()

    def ask(self, make: Callable[[int], Command]) -> Any:
        """Run one command; return its answer or raise the error it was refused with."""
        (answer,) = self.run(make(0))
        if isinstance(answer, FilaError):
            raise answer
        return answer

    # --- What clients do --------------------------------------------------------------------------

    def admin(self, request: Any) -> Any:
        return self.ask(lambda ticket: Admin(ticket, request))

    def create(self, name: str, **config: Any) -> None:
        request = admin_pb2.CreateQueueRequest(name=name, config=admin_pb2.QueueConfig(**config))
        self.admin(request)

    def enqueue(self, queue: str, payload: bytes = b"x", **fields: Any) -> str:
        request = service_pb2.EnqueueRequest(queue=queue, payload=payload, **fields)
        drafts = Intake(self.config.limits).draft(request.SerializeToString())
        (result,) = self.ask(lambda ticket: Enqueue(ticket, drafts))
        if isinstance(result, FilaError):
            raise result
        return str(result)

    def open(
        self, queue: str, credit: int = 100, batch: int = 100, visibility_ms: int = 0
    ) -> Consumer:
        consumer: Consumer = self.ask(
            lambda ticket: OpenConsumer(ticket, queue, credit, batch, visibility_ms, False, None)
        )
        return consumer

    def take(self) -> list[Message]:
        """Take the frames that are under way, as streams do, until no more come."""
        messages: list[Message] = []
        while self.frames:
            frames, self.frames = self.frames, []
            for _, _, parsed in frames:
                messages.extend(parsed)
            self.run(*(FrameTaken(consumer) for consumer, _, _ in frames if consumer.is_open))
        return messages

    def receive(self, queue: str, count: int = 1, visibility_ms: int = 0) -> list[Message]:
        """Lease up to `count` messages, as Receive does."""
        consumer: Consumer = self.ask(
            lambda ticket: OpenConsumer(ticket, queue, count, count, visibility_ms, True, None)
        )
        mine = [frame for frame in self.frames if frame[0] is consumer]
        self.frames = [frame for frame in self.frames if frame[0] is not consumer]
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

    def stats(self, queue: str) -> admin_pb2.GetStatsResponse:
        return self.admin(admin_pb2.GetStatsRequest(queue=queue))  # type: ignore[no-any-return]


# --- Memory against disk --------------------------------------------------------------------------


def snapshot(broker: Broker) -> dict[str, Any]:
    """Return everything that a restart must bring back, in a form that compares."""
    state = broker.state
    return {
        "config": dict(state.config),
        "queues": {name: _queue(queue) for name, queue in state.queues.items()},
        "limits": {
            name: (limiter.rate, limiter.burst, limiter.limit, limiter.in_flight)
            for name, limiter in state.throttles.limiters.items()
            if limiter.rate or limiter.limit
        },
    }


def _queue(queue: Queue) -> dict[str, Any]:
    return {
        "number": queue.number,
        "of": queue.dead_letter_of,
        "paused": (queue.paused, sorted(queue.paused_keys)),
        "config": queue.config.SerializeToString(deterministic=True),
        "pending": queue.pending,
        "lanes": {
            (key.name, lane.lane_key): [_waiting(message) for message in lane.messages]
            for key in queue.keys.values()
            for lane in key.lanes.values()
        },
        "delayed": {
            message.id: (_settled(message), message.extra.due_ns)  # type: ignore[union-attr]
            for message in queue.delayed.values()
        },
        "leases": {
            message.id: (_settled(message), message.grant.token, message.grant.expires_ns)  # type: ignore[union-attr]
            for message in queue.leases.values()
        },
    }


def _waiting(message: CoreMessage | int) -> tuple[Any, ...]:
    if isinstance(message, int):
        return message, message, 0, "", 0
    return _settled(message)


def _settled(message: CoreMessage) -> tuple[Any, ...]:
    extra = message.extra
    error, expires_ns = (extra.error, extra.expires_ns) if extra is not None else ("", 0)
    return message.number, message.order, message.attempt, error, expires_ns


def check_consistent(harness: Harness) -> None:
    """Memory equals what a restart would rebuild now, and its own counts add up."""
    shadow = Broker(harness.config, harness.storage, harness.compile_hooks, nonce=1)
    shadow.recover(harness.clock.now())
    assert snapshot(harness.broker) == snapshot(shadow)
    state = harness.broker.state
    for queue in state.queues.values():
        lanes = [lane for key in queue.keys.values() for lane in key.lanes.values()]
        assert queue.pending == sum(len(lane.messages) for lane in lanes)
        assert queue.throttled == sum(len(lane.messages) for lane in lanes if lane.is_parked)
        for key in queue.keys.values():
            assert key.pending == sum(len(lane.messages) for lane in key.lanes.values()) > 0
            assert key.in_ring == (bool(key.ready) and not key.is_paused)
            assert key.in_ring == (key in queue.ring)
            for lane in key.lanes.values():
                assert lane.messages
                assert lane.is_ready == (lane in key.ready)
                assert lane.is_ready or lane.is_parked
        for consumer in queue.consumers:
            held = sum(
                message.grant is not None and message.grant.consumer is consumer
                for message in queue.leases.values()
            )
            assert consumer.credit >= 0 and held >= 0
    hot = sum(
        len(message.body)
        for queue in state.queues.values()
        for key in queue.keys.values()
        for lane in key.lanes.values()
        for message in lane.messages
        if isinstance(message, CoreMessage) and message.body is not None
    )
    assert state.hot_bytes == hot
