# SPDX-License-Identifier: AGPL-3.0-only
"""An engine on any store, asked as the RPC layer asks, and stores that fail or wait on demand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from fila.v1 import admin_pb2, service_pb2
from fila.v1.messages_pb2 import Message
from fila_server.config import Config
from fila_server.core.admin.change import Change
from fila_server.core.clock import Now
from fila_server.core.commands import (
    Ack,
    Admin,
    Enqueue,
    Extend,
    Nack,
)
from fila_server.core.wire.intake import Intake
from fila_server.errors import FilaError, StorageFailed
from fila_server.runtime.engine import Engine, read_clocks
from fila_server.runtime.sink import Sink
from fila_server.storage.api import Column, Space, Storage, Write
from server.tests.core.harness import no_hooks


class Wrapped:
    """A store around another one, which counts calls; subclasses misbehave."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.writes = 0
        self.syncs = 0
        self.reserve_bytes = inner.reserve_bytes

    def write(self, writes: Sequence[Write]) -> int:
        self.writes += 1
        return self.inner.write(writes)

    def sync(self) -> None:
        self.syncs += 1
        self.inner.sync()

    def get_many(self, column: Column, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.inner.get_many(column, keys)

    def scan(self, column: Column, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.inner.scan(column, start, end)

    def space(self) -> Space:
        return self.inner.space()

    def hold_reserve(self) -> None:
        self.inner.hold_reserve()

    def release_reserve(self) -> None:
        self.inner.release_reserve()

    def settle(self) -> None:
        self.inner.settle()

    def reclaim(self) -> None:
        self.inner.reclaim()

    def write_out(self) -> int:
        return self.inner.write_out()

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

    def write(self, writes: Sequence[Write]) -> int:
        self._fail_at("write", lambda: self.inner.write(writes))
        return 1

    def sync(self) -> None:
        self._fail_at("sync", self.inner.sync)

    def close(self) -> None:
        self.inner.close()

    def _fail_at(self, call: str, act: Callable[[], object]) -> None:
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
        inbox_bytes: int = 64 << 20,
        clock: Callable[[], Now] = read_clocks,
    ) -> None:
        config = Config()
        self.config = replace(
            config,
            storage=replace(config.storage, sync=sync, sync_interval_ms=20),
            scheduler=replace(config.scheduler, inbox_max=inbox_max, inbox_bytes=inbox_bytes),
        )
        self.storage = storage
        self.engine = Engine(self.config, storage, no_hooks, nonce=7, clock=clock)
        self._intake = Intake(self.config.limits)

    def start(self) -> Driver:
        self.engine.start()
        return self

    async def admin(self, request: Any) -> Any:
        answer = await self.engine.ask(lambda ticket: Admin(ticket, request))
        return answer.response if isinstance(answer, Change) else answer

    async def create(self, name: str, **config: Any) -> None:
        await self.admin(
            admin_pb2.CreateQueueRequest(name=name, config=admin_pb2.QueueConfig(**config))
        )

    async def enqueue(self, queue: str, payload: bytes = b"x", **fields: Any) -> str:
        request = service_pb2.EnqueueRequest(queue=queue, payload=payload, **fields)
        draft = self._intake.draft(request.SerializeToString())
        size = len(draft[1])
        (result,) = await self.engine.ask(lambda ticket: Enqueue(ticket, [draft]), size)
        return str(_or_raise(result))

    async def enqueue_many(self, queue: str, count: int, keys: Sequence[str] = ("",)) -> None:
        """Enqueue messages with one command; they have the fairness keys in turn."""
        batch = service_pb2.EnqueueBatchRequest()
        for at in range(count):
            batch.messages.add(queue=queue, payload=b"x", fairness_key=keys[at % len(keys)])
        drafts = self._intake.drafts(batch.SerializeToString())
        for result in await self.engine.ask(lambda ticket: Enqueue(ticket, drafts)):
            _or_raise(result)

    async def open(
        self,
        queue: str,
        credit: int = 100,
        visibility_ms: int = 0,
        once: bool = False,
        batch: int = 0,
    ) -> Sink:
        return await self.engine.open(queue, credit, batch or credit, visibility_ms, once)

    async def receive(self, queue: str, count: int = 1) -> list[Message]:
        sink = await self.open(queue, count, once=True)
        frame = sink.peek()
        if frame is not None:
            sink.sent()
        self.engine.close(sink)
        return list(service_pb2.ReceiveResponse.FromString(frame or b"").messages)

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


Start = Callable[..., Driver]  # starts an engine on a store


async def eventually(what: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if what():
            return
        await asyncio.sleep(0.005)
    pytest.fail("it never came to hold")
