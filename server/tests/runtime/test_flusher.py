# SPDX-License-Identifier: AGPL-3.0-only
"""The flusher: one sync for everybody who waits, and nobody is forgotten."""

import threading
import time

import pytest

from fila_server.core.schedule.histogram import Histogram
from fila_server.errors import StorageFailed
from fila_server.runtime.flusher import Flusher
from fila_server.storage.memory import MemoryStorage
from server.tests.runtime.driver import Patient


class Waiter:
    def __init__(self) -> None:
        self.called = threading.Event()
        self.failure: StorageFailed | None = None

    def done(self, failure: StorageFailed | None) -> None:
        self.failure = failure
        self.called.set()


def test_one_sync_serves_all_that_waited_before_it_began() -> None:
    store = Patient(MemoryStorage())
    flusher = Flusher(store, Histogram((1, 10)))
    flusher.start()
    store.gate.clear()
    first = Waiter()
    flusher.flush(first.done)
    others = [Waiter() for _ in range(20)]
    for waiter in others:
        flusher.flush(waiter.done)
    assert not first.called.is_set()
    store.gate.set()
    for waiter in (first, *others):
        assert waiter.called.wait(60) and waiter.failure is None
    assert store.syncs <= 2
    flusher.stop()


def test_a_failure_reaches_everybody_and_is_not_retried() -> None:
    store = MemoryStorage()
    store.fail_sync(kept=True)
    flusher = Flusher(store, Histogram((1, 10)))
    flusher.start()
    waiters = [Waiter() for _ in range(3)]
    for waiter in waiters:
        flusher.flush(waiter.done)
    for waiter in waiters:
        assert waiter.called.wait(60)
        assert isinstance(waiter.failure, StorageFailed)
    flusher.stop()


def test_a_stop_finishes_what_was_asked_for() -> None:
    store = Patient(MemoryStorage())
    flusher = Flusher(store, Histogram((1, 10)))
    flusher.start()
    waiters = [Waiter() for _ in range(3)]
    for waiter in waiters:
        flusher.flush(waiter.done)
    flusher.stop()
    assert all(waiter.called.is_set() for waiter in waiters)


def test_an_idle_flusher_stops() -> None:
    store = Patient(MemoryStorage())
    flusher = Flusher(store, Histogram((1, 10)))
    flusher.start()
    flusher.stop()
    assert store.syncs == 0


def test_while_nobody_asks_the_store_takes_note_of_its_background_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fila_server.runtime.flusher._IDLE_S", 0.01)
    store = MemoryStorage()
    flusher = Flusher(store, Histogram((1, 10)))
    flusher.start()
    deadline = time.monotonic() + 60
    while store.settles < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    store.close()  # From now on every call fails; that ends no thread.
    waiter = Waiter()
    time.sleep(0.05)
    flusher.flush(waiter.done)
    assert waiter.called.wait(60)
    assert isinstance(waiter.failure, StorageFailed)
    flusher.stop()
