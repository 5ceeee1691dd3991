# SPDX-License-Identifier: AGPL-3.0-only
"""Engines on stores of both kinds."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fila_server.storage.api import Storage
from fila_server.storage.memory import MemoryStorage
from fila_server.storage.rocks import RocksStorage
from server.tests.runtime.driver import Driver, Start


@pytest.fixture(params=["memory", "rocks"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Storage]:
    """Open a store; again, with what it held, after it was closed or lost."""
    kept: list[MemoryStorage] = []

    def open_again() -> Storage:
        if request.param == "rocks":
            return RocksStorage.open(str(tmp_path / "data"))
        kept.append(kept[-1].crash(power=False) if kept else MemoryStorage())
        return kept[-1]

    return open_again


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start engines that are stopped with the test."""
    started: list[Driver] = []

    def run(storage: Storage, **options: Any) -> Driver:
        started.append(Driver(storage, **options).start())
        return started[-1]

    yield run
    for driver in started:
        driver.engine.stop()
        driver.storage.close()
