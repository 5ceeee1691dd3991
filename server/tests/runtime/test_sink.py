# SPDX-License-Identifier: AGPL-3.0-only
"""A sink hands frames over in order, and knows which the transport never took over."""

import asyncio

import pytest

from fila_server.errors import QueueNotFound
from fila_server.runtime.sink import Sink


async def test_frames_come_in_order_and_can_be_waited_for() -> None:
    sink = Sink(1)
    assert sink.peek() is None
    waiting = asyncio.ensure_future(sink.next())
    await asyncio.sleep(0)
    sink.put(1, b"1")
    sink.put(2, b"2")
    assert await waiting == b"1"
    assert sink.unsent() == [1, 2]
    sink.sent()
    assert sink.unsent() == [2]
    assert await sink.next() == b"2"
    sink.sent()
    assert sink.unsent() == [] and sink.peek() is None


async def test_an_end_wakes_who_waits_and_keeps_what_never_left() -> None:
    sink = Sink(1)
    waiting = asyncio.ensure_future(sink.next())
    await asyncio.sleep(0)
    sink.close(QueueNotFound('queue "q" was deleted'))
    with pytest.raises(QueueNotFound):
        await waiting
    sink.put(1, b"late")
    with pytest.raises(QueueNotFound):
        await sink.next()
    assert sink.unsent() == [1]


async def test_a_wait_that_is_given_up_takes_no_frame() -> None:
    sink = Sink(1)
    waiting = asyncio.ensure_future(sink.next())
    await asyncio.sleep(0)
    sink.put(1, b"1")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert sink.unsent() == [1]
    assert sink.peek() == b"1"
