# SPDX-License-Identifier: AGPL-3.0-only
"""Callers that leave at the very moment in which a frame has reached them, through the edge."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fila_server.transport.edge.calls import EdgeCall
from server.tests.transport.test_leaving import Stream

pytestmark = pytest.mark.asyncio


class Edge:
    """What the edge is told of a call."""

    def write(self, number: int, content: bytes) -> None: ...


async def test_a_frame_that_the_edge_took_was_sent_though_its_caller_left() -> None:
    edge: Any = Edge()
    for is_taken in (True, False):
        call = EdgeCall(edge, 1, ())
        stream = Stream(call)
        await asyncio.sleep(0.01)
        if is_taken:
            call.taken()
        stream.task.cancel()  # in the same round
        await stream.ended()
        assert stream.sent == is_taken
