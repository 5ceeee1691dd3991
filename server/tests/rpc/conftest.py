# SPDX-License-Identifier: AGPL-3.0-only
"""A real broker for the tests of the contract."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.tests.broker_process import BrokerProcess
from server.tests.rpc.wire import Wire


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with the default configuration, for all tests that do not stop it."""
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker
    broker.close()


@pytest.fixture(scope="session")
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    wire = Wire(broker.address)
    yield wire
    wire.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[BrokerProcess, Wire]]]:
    """Start a broker of the test's own, with a configuration file."""
    started: list[tuple[BrokerProcess, Wire]] = []

    def run(config: str = "") -> tuple[BrokerProcess, Wire]:
        directory = tmp_path / f"broker{len(started)}"
        directory.mkdir()
        broker = BrokerProcess(directory, config=config)
        broker.start()
        started.append((broker, Wire(broker.address)))
        return started[-1]

    yield run
    for broker, wire in started:
        wire.close()
        broker.close()
