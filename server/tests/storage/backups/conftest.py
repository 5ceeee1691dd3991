# SPDX-License-Identifier: AGPL-3.0-only
"""Stores with messages in them, and what to make of their backups."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fila_server.core.wire import records
from fila_server.core.wire.records_pb2 import Head, StoredQueue
from fila_server.storage.api import Column, Write
from fila_server.storage.backups.generation import Made, make_generation
from fila_server.storage.rocks import RocksStorage

BUFFER_BYTES = 65536


def silent(phase: str, done: int, total: int) -> None:
    """Tell nobody."""


def queue(number: int, name: str) -> Write:
    stored = StoredQueue(number=number, name=name).SerializeToString()
    return Column.QUEUES, records.queue_prefix(number), stored


def message(queue_number: int, number: int, payload: bytes = b"x" * 100) -> Write:
    head = records.full_head(Head(fairness_key="k"), records.stamp(1))
    body = b"\n$" + f"{number:036}".encode() + b"\x1a" + bytes([len(payload)]) + payload
    return Column.MESSAGES, records.message_key(queue_number, number), head + body


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStorage]:
    """A store in tmp_path/data with 100 messages in one queue and none in another."""
    store = RocksStorage.open(str(tmp_path / "data"), write_buffer_bytes=BUFFER_BYTES)
    store.write([queue(1, "orders"), queue(2, "orders.dlq")])
    store.write([message(1, number) for number in range(100)])
    yield store
    store.close()


@pytest.fixture
def back_up(store: RocksStorage, tmp_path: Path) -> Callable[[], Made]:
    """Back the store up to tmp_path/backups, as the broker does."""

    def make() -> Made:
        sequence = store.write_out()
        return make_generation(
            tmp_path / "data",
            tmp_path / "backups",
            sequence=sequence,
            floor_bytes=0,
            tell=silent,
        )

    return make
