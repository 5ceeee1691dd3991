# SPDX-License-Identifier: AGPL-3.0-only
"""Stores of both kinds, and children to kill."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fila_server.storage.api import Storage
from fila_server.storage.memory import MemoryStorage
from fila_server.storage.rocks import RocksStorage

FOLDER = Path(__file__).parent


@pytest.fixture(params=["rocks", "memory"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Storage]]:
    """Open a store; called again, close it and open it anew with what it held."""
    stores: list[Storage] = []

    def open_again() -> Storage:
        previous = stores[-1] if stores else MemoryStorage()
        previous.close()
        if isinstance(previous, MemoryStorage) and request.param == "memory":
            stores.append(previous.crash(power=False))
        else:
            stores.append(RocksStorage.open(str(tmp_path / "data"), write_buffer_bytes=65536))
        return stores[-1]

    yield open_again
    for store in stores:
        store.close()


@pytest.fixture
def store(open_store: Callable[[], Storage]) -> Storage:
    return open_store()


@pytest.fixture
def start_child() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start child.py with arguments, and with further environment variables as keywords."""
    children: list[subprocess.Popen[str]] = []

    def start(*arguments: object, **variables: object) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, str(FOLDER / "child.py"), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **{name: str(value) for name, value in variables.items()}},
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()
