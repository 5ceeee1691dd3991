# SPDX-License-Identifier: AGPL-3.0-only
"""Consumers that leave: whatever did not reach them is back at once, with no attempt counted."""

import asyncio

import pytest

from fila_server.storage.memory import MemoryStorage
from server.tests.runtime.driver import Start


async def test_a_frame_for_a_consumer_that_has_left_goes_back_with_no_attempt(start: Start) -> None:
    """A delivery and the consumer's end cross each other in the inbox."""
    driver = start(MemoryStorage())
    await driver.create("q")
    sink = await driver.open("q", 1, once=True)
    enqueued = asyncio.ensure_future(driver.enqueue("q"))
    await asyncio.sleep(0)  # it waits in the inbox, ahead of the consumer's end
    assert sink.peek() is None
    driver.engine.close(sink)
    message_id = await enqueued
    stats = await driver.stats("q")
    assert (stats.depth, stats.in_flight, stats.active_consumers) == (1, 0, 0)
    (message,) = await driver.receive("q")
    assert (message.id, message.metadata.attempt_count) == (message_id, 0)


async def test_a_caller_that_leaves_while_it_opens_a_consumer_keeps_nothing(start: Start) -> None:
    driver = start(MemoryStorage())
    await driver.create("q")
    await driver.enqueue("q")
    opening = asyncio.ensure_future(driver.open("q"))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    stats = await driver.stats("q")
    assert (stats.depth, stats.in_flight, stats.active_consumers) == (1, 0, 0)


async def test_frames_that_the_transport_did_not_take_over_go_back(start: Start) -> None:
    driver = start(MemoryStorage())
    await driver.create("q")
    for _ in range(4):
        await driver.enqueue("q")
    sink = await driver.open("q", credit=100, batch=1)
    assert len(sink.unsent()) == 2  # as many frames as may be under way
    await sink.next()
    driver.engine.sent(sink)
    await sink.next()  # being written when the client leaves
    driver.engine.close(sink)
    stats = await driver.stats("q")
    assert (stats.depth, stats.in_flight) == (3, 1)
    received = await driver.receive("q", 10)
    assert [message.metadata.attempt_count for message in received] == [0, 0, 0]
