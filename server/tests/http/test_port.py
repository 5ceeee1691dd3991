# SPDX-License-Identifier: AGPL-3.0-only
"""Connections that say little, much or nothing, and an engine that stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import aiohttp
import pytest

from fila_server.config import Config, HttpConfig
from fila_server.errors import StorageFailed
from fila_server.http import app, port
from fila_server.runtime.engine import Engine
from fila_server.storage.memory import MemoryStorage
from server.tests.core.harness import no_hooks

Open = Callable[..., Awaitable[tuple[Engine, str]]]
HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
WAIT_S = 60.0


@pytest.fixture
async def serve() -> AsyncIterator[Open]:
    """Open the port of an engine in this process."""
    opened: list[tuple[Engine, app.HttpServer]] = []

    async def run(metrics: app.Metrics | None = None, **http: int) -> tuple[Engine, str]:
        config = replace(Config(), http=HttpConfig(listen_addr="127.0.0.1:0", **http))
        engine = Engine(config, MemoryStorage(), no_hooks, nonce=1)
        engine.start()
        server = app.HttpServer(config, engine, metrics)
        opened.append((engine, server))
        return engine, await server.start()

    yield run
    for engine, server in opened:
        await server.stop()
        engine.stop()


async def get(address: str, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"http://{address}{path}") as response,
    ):
        return response.status, await response.text()


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, number = address.rpartition(":")
    return await asyncio.open_connection(host, int(number))


async def is_cut(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), WAIT_S) == b""
    except ConnectionResetError:
        return True


async def test_an_engine_that_stops_is_not_ready(serve: Open) -> None:
    engine, address = await serve()
    assert await get(address, "/readyz") == (200, "ok\n")
    engine.close_consumers()
    assert await get(address, "/readyz") == (503, "the broker is shutting down\n")
    engine.failure = StorageFailed("the disk is gone")
    assert await get(address, "/readyz") == (503, "the store failed: the disk is gone\n")
    assert (await get(address, "/healthz"))[0] == 200


async def test_metrics_come_from_whoever_collects_them(serve: Open) -> None:
    async def metrics() -> bytes:
        return b"fila_up 1\n"

    _, address = await serve(metrics)
    assert await get(address, "/metrics") == (200, "fila_up 1\n")


async def test_a_head_that_never_ends_is_cut(serve: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "_FIRST_S", 0.2)
    monkeypatch.setattr(port, "_SWEEP_S", 0.05)
    _, address = await serve()
    silent, silent_writer = await connect(address)
    slow, slow_writer = await connect(address)
    slow_writer.write(HEAD)

    async def drip() -> None:
        while True:
            slow_writer.write(b"x: y\r\n")
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    assert await is_cut(silent)
    assert await is_cut(slow)
    dripping.cancel()
    silent_writer.close()
    slow_writer.close()


async def test_a_connection_is_cut_when_nothing_follows_its_answer(
    serve: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "_IDLE_S", 0.2)
    monkeypatch.setattr(port, "_SWEEP_S", 0.05)
    _, address = await serve()
    reader, writer = await connect(address)
    writer.write(HEAD + b"\r\n")
    assert b"200 OK" in await reader.readuntil(b"ok\n")
    writer.write(HEAD)  # half a request does not count
    assert await is_cut(reader)
    writer.close()


async def test_a_body_that_never_ends_is_given_up(
    serve: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_BODY_S", 0.1)
    _, address = await serve()
    reader, writer = await connect(address)
    writer.write(
        b"POST /api/call/Pause HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Fila-Csrf: none\r\n"
        b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    answer = await asyncio.wait_for(reader.readuntil(b"}}"), WAIT_S)
    assert b"408 Request Timeout" in answer
    writer.close()


async def test_connections_beyond_the_limit_are_closed_and_room_comes_back(serve: Open) -> None:
    _, address = await serve(max_connections=2)
    first, first_writer = await connect(address)
    _, second_writer = await connect(address)
    for writer in (first_writer, second_writer):
        writer.write(HEAD + b"\r\n")
    await first.readuntil(b"ok\n")
    third, third_writer = await connect(address)
    assert await is_cut(third)
    first_writer.close()
    await first_writer.wait_closed()
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                assert await get(address, "/healthz") == (200, "ok\n")
                break
            except aiohttp.ClientError:
                await asyncio.sleep(0.01)
    second_writer.close()
    third_writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello",
        b"\0" * 1000,
    ],
    ids=["header", "path", "tls", "http2", "length", "smuggled", "zeros"],
)
async def test_nonsense_is_refused_without_a_word_in_the_log(
    sent: bytes, serve: Open, caplog: pytest.LogCaptureFixture
) -> None:
    _, address = await serve()
    reader, writer = await connect(address)
    writer.write(sent)
    try:
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), WAIT_S)
        assert answer.startswith(b"HTTP/1.") and b" 4" in answer
    except (asyncio.IncompleteReadError, ConnectionResetError):
        pass  # cut without an answer
    writer.close()
    assert await get(address, "/healthz") == (200, "ok\n")
    assert [row for row in caplog.records if row.levelno >= logging.WARNING] == []
