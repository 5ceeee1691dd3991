# SPDX-License-Identifier: AGPL-3.0-only
"""One broker for the whole run, a queue of its own for each test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker import Broker, Queue

import fila


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def client(broker: Broker) -> Iterator[fila.Client]:
    # The machine may be busy with other things.
    with fila.Client(broker.address, timeout=60) as client:
        yield client


@pytest.fixture
def make_queue(broker: Broker, client: fila.Client) -> Callable[..., Queue]:
    def make(**settings: int) -> Queue:
        return Queue(client, broker.address, **settings)

    return make


@pytest.fixture
def queue(make_queue: Callable[..., Queue]) -> Queue:
    return make_queue()


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """Where a write leaves its counts."""
    return tmp_path / "report.jsonl"
