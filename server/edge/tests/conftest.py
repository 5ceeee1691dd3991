# SPDX-License-Identifier: AGPL-3.0-only
"""Edges and clients for the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from server.edge.tests.canned import Canned

Start = Callable[..., Canned]
Connect = Callable[..., grpc.Channel]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start an edge of the test's own."""
    started: list[Canned] = []

    def run(**options: Any) -> Canned:
        started.append(Canned(**options))
        return started[-1]

    yield run
    for canned in started:
        canned.close()


@pytest.fixture
def canned(start: Start) -> Canned:
    return start()


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Open a channel with a connection of its own."""
    opened: list[grpc.Channel] = []

    def run(canned: Canned, **options: Any) -> grpc.Channel:
        settings = [("grpc.use_local_subchannel_pool", 1), *options.items()]
        opened.append(grpc.insecure_channel(canned.address, options=settings))
        return opened[-1]

    yield run
    for channel in opened:
        channel.close()


@pytest.fixture
def channel(canned: Canned, connect: Connect) -> grpc.Channel:
    return connect(canned)
