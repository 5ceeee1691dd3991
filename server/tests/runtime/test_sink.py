# SPDX-License-Identifier: AGPL-3.0-only
"""A sink hands frames over in order, and knows which never left."""

import asyncio
from typing import Any

import pytest

from fila_server.errors import QueueNotFound
from fila_server.runtime.sink import Sink


async def test_frames_come_in_order_and_can_be_waited_for() -> None:
    sink = Sink()
    first: Any = "grant 1"
    second: Any = "grant 2"
    assert sink.take() is None
    waiting = asyncio.ensure_future(sink.next())
    await asyncio.sleep(0)
    sink.put(first, b"1")
    sink.put(second, b"2")
    assert await waiting == b"1"
    assert sink.unsent() == [second]
    assert await sink.next() == b"2"
    assert sink.unsent() == [] and sink.take() is None


async def test_an_end_wakes_who_waits_and_keeps_what_never_left() -> None:
    sink = Sink()
    grant: Any = "grant"
    waiting = asyncio.ensure_future(sink.next())
    await asyncio.sleep(0)
    sink.close(QueueNotFound('queue "q" was deleted'))
    with pytest.raises(QueueNotFound):
        await waiting
    sink.put(grant, b"late")
    with pytest.raises(QueueNotFound):
        await sink.next()
    assert sink.unsent() == [grant]


async def test_a_wait_that_is_given_up_takes_no_frame() -> None:
    sink = Sink()
    grant: Any = "grant"
    waiting = asyncio.ensure_future(sink.next())
    await asyncio.sleep(0)
    sink.put(grant, b"1")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert sink.unsent() == [grant]
    assert sink.take() == b"1"
