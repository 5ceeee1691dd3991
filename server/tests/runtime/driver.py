# SPDX-License-Identifier: AGPL-3.0-only
"""An engine on any store, asked as the RPC layer asks, and stores that fail or wait on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from fila.v1 import admin_pb2, service_pb2
from fila.v1.messages_pb2 import Message
from fila_server.config import Config
from fila_server.core.clock import Now
from fila_server.core.commands import (
    Ack,
    Admin,
    CloseConsumer,
    Enqueue,
    Extend,
    Nack,
    OpenConsumer,
)
from fila_server.core.consumer import Consumer
from fila_server.core.intake import Intake
from fila_server.errors import FilaError, StorageFailed
from fila_server.runtime.engine import Engine, read_clocks
from fila_server.runtime.sink import Sink
from fila_server.storage.api import Column, Storage, Write
from server.tests.core.harness import no_hooks


class Wrapped:
    """A store around another one, which counts calls; subclasses misbehave."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.writes = 0
        self.syncs = 0

    def write(self, writes: Sequence[Write]) -> None:
        self.writes += 1
        self.inner.write(writes)

    def sync(self) -> None:
        self.syncs += 1
        self.inner.sync()

    def get_many(self, column: Column, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.inner.get_many(column, keys)

    def scan(self, column: Column, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.inner.scan(column, start, end)

    def free_bytes(self) -> int:
        return self.inner.free_bytes()

    def close(self) -> None:
        self.inner.close()


class Patient(Wrapped):
    """Waits in `sync` while the gate is closed, as a slow disk does."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.gate = threading.Event()
        self.gate.set()

    def sync(self) -> None:
        assert self.gate.wait(60)
        super().sync()


class Broken(Wrapped):
    """Fails one call, and then every call, as RocksStorage does. `kept` has its effect first."""

    def __init__(self, inner: Storage, call: str, nth: int, kept: bool) -> None:
        super().__init__(inner)
        self.call = call
        self.left = nth
        self.kept = kept
        self.has_failed = False

    def write(self, writes: Sequence[Write]) -> None:
        self._fail_at("write", lambda: self.inner.write(writes))

    def sync(self) -> None:
        self._fail_at("sync", self.inner.sync)

    def close(self) -> None:
        self.inner.close()

    def _fail_at(self, call: str, act: Callable[[], None]) -> None:
        if self.has_failed:
            raise StorageFailed("the store has failed before")
        self.left -= call == self.call
        if call != self.call or self.left:
            act()
            return
        self.has_failed = True
        if self.kept:
            act()
        raise StorageFailed(f"a {call} failed")


class Driver:
    """Asks an engine for what clients ask for."""

    def __init__(
        self,
        storage: Storage,
        *,
        sync: Literal["always", "interval", "never"] = "always",
        inbox_max: int = 10_000,
        clock: Callable[[], Now] = read_clocks,
    ) -> None:
        config = Config()
        self.config = replace(
            config,
            storage=replace(config.storage, sync=sync, sync_interval_ms=20),
            scheduler=replace(config.scheduler, inbox_max=inbox_max),
        )
        self.storage = storage
        self.engine = Engine(self.config, storage, no_hooks, nonce=7, clock=clock)
        self._intake = Intake(self.config.limits)

    def start(self) -> Driver:
        self.engine.start()
        return self

    async def admin(self, request: Any) -> Any:
        return await self.engine.ask(lambda ticket: Admin(ticket, request))

    async def create(self, name: str, **config: Any) -> None:
        await self.admin(
            admin_pb2.CreateQueueRequest(name=name, config=admin_pb2.QueueConfig(**config))
        )

    async def enqueue(self, queue: str, payload: bytes = b"x", **fields: Any) -> str:
        request = service_pb2.EnqueueRequest(queue=queue, payload=payload, **fields)
        drafts = self._intake.draft(request.SerializeToString())
        (result,) = await self.engine.ask(lambda ticket: Enqueue(ticket, drafts))
        return str(_or_raise(result))

    async def open(
        self, queue: str, sink: Sink, credit: int = 100, visibility_ms: int = 0, once: bool = False
    ) -> Consumer:
        consumer: Consumer = await self.engine.ask(
            lambda ticket: OpenConsumer(ticket, queue, credit, credit, visibility_ms, once, sink)
        )
        self.engine.attach(sink)
        return consumer

    async def receive(self, queue: str, count: int = 1) -> list[Message]:
        sink = Sink()
        consumer = await self.open(queue, sink, count, once=True)
        try:
            frame = sink.take() or b""
        finally:
            self.engine.detach(sink)
            self.engine.tell(CloseConsumer(consumer, sink.unsent()))
        return list(service_pb2.ReceiveResponse.FromString(frame).messages)

    async def ack(self, queue: str, message_id: str) -> None:
        item = service_pb2.AckRequest(queue=queue, message_id=message_id)
        (result,) = await self.engine.ask(lambda ticket: Ack(ticket, [item]))
        _or_raise(result)

    async def nack(self, queue: str, message_id: str, **fields: Any) -> None:
        item = service_pb2.NackRequest(queue=queue, message_id=message_id, **fields)
        (result,) = await self.engine.ask(lambda ticket: Nack(ticket, [item]))
        _or_raise(result)

    async def extend(self, queue: str, message_id: str, ms: int) -> None:
        item = service_pb2.LeaseExtension(queue=queue, message_id=message_id, extend_ms=ms)
        (result,) = await self.engine.ask(lambda ticket: Extend(ticket, [item]))
        _or_raise(result)

    async def stats(self, queue: str) -> admin_pb2.GetStatsResponse:
        response: admin_pb2.GetStatsResponse = await self.admin(
            admin_pb2.GetStatsRequest(queue=queue)
        )
        return response


def _or_raise(result: Any) -> Any:
    if isinstance(result, FilaError):
        raise result
    return result
