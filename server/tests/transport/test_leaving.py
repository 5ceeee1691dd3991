# SPDX-License-Identifier: AGPL-3.0-only
"""Callers that leave at the very moment in which a frame has reached them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fila_server.rpc.method import Call, is_being_cancelled
from fila_server.transport.grpcio.rim import GrpcioCall

pytestmark = pytest.mark.asyncio


class Context:
    """What grpcio knows of a call whose writes end when the test says so."""

    def __init__(self) -> None:
        self.written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def write(self, message: bytes) -> None:
        await self.written


class Stream:
    """A handler that writes until it is cancelled, as Consume's does."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.sent = 0
        self.left_with: list[bool] = []
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            await self._call.write(b"x")
            self.left_with.append(is_being_cancelled())
            self.sent += 1

    async def ended(self) -> None:
        done, _ = await asyncio.wait((self.task,), timeout=5)
        assert done and self.task.cancelled()


async def test_a_frame_that_grpcio_took_was_sent_though_its_caller_left() -> None:
    context: Any = Context()
    stream = Stream(GrpcioCall(context))
    await asyncio.sleep(0.01)
    context.written.set_result(None)
    context.written = asyncio.get_running_loop().create_future()
    stream.task.cancel()
    await asyncio.sleep(0.01)
    context.written.set_exception(RuntimeError("the call is over"))
    await stream.ended()
    assert (stream.sent, stream.left_with) == (1, [True])


async def test_a_frame_that_grpcio_did_not_take_was_not_sent() -> None:
    context: Any = Context()
    stream = Stream(GrpcioCall(context))
    await asyncio.sleep(0.01)
    stream.task.cancel()
    await asyncio.sleep(0.01)
    assert not stream.task.done()  # nobody knows yet
    context.written.set_exception(RuntimeError("the call is over"))
    await stream.ended()
    assert stream.sent == 0
