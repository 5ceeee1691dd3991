# SPDX-License-Identifier: AGPL-3.0-only
"""The failures that the in-memory store makes up."""

from collections.abc import Callable

import pytest

from fila_server.errors import StorageFailed
from fila_server.storage.api import Column, Until
from fila_server.storage.memory import MemoryStorage


def put(store: MemoryStorage, *numbers: int) -> None:
    for n in numbers:
        store.write([(Column.MESSAGES, bytes([n]), b"x"), (Column.LEASES, bytes([n]), b"y")])


def held(store: MemoryStorage) -> list[int]:
    messages = [key[0] for key, _ in store.scan(Column.MESSAGES, b"", b"\xff")]
    assert messages == [key[0] for key, _ in store.scan(Column.LEASES, b"", b"\xff")]  # never torn
    return messages


@pytest.fixture
def store() -> MemoryStorage:
    store = MemoryStorage()
    put(store, 1, 2)
    store.sync()
    put(store, 3, 4, 5)
    return store


def test_kill_keeps_everything_that_was_written(store: MemoryStorage) -> None:
    assert held(store.crash(power=False)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("keep", range(5))
def test_power_loss_keeps_what_was_synced_and_a_part_of_the_tail(
    store: MemoryStorage, keep: int
) -> None:
    assert store.unsynced_groups == 3
    assert held(store.crash(power=True, keep=keep)) == [1, 2, 3, 4, 5][: 2 + keep]


def test_power_loss_takes_back_unsynced_deletes(store: MemoryStorage) -> None:
    store.sync()
    everything = (Column.MESSAGES, b"", Until(b"\xff")), (Column.LEASES, b"", Until(b"\xff"))
    store.write(everything)
    assert held(store) == []
    assert held(store.crash(power=True)) == [1, 2, 3, 4, 5]


def test_what_an_open_found_is_synced(store: MemoryStorage) -> None:
    found = store.crash(power=False)
    put(found, 6)
    assert held(found.crash(power=True)) == [1, 2, 3, 4, 5]


def test_a_crashed_store_is_of_no_more_use_and_apart_from_the_next(store: MemoryStorage) -> None:
    found = store.crash(power=False)
    put(found, 6)
    assert held(found) == [1, 2, 3, 4, 5, 6]
    with pytest.raises(StorageFailed, match="the store has crashed"):
        put(store, 7)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_a_failed_write_is_kept_or_lost(store: MemoryStorage, kept: bool, power: bool) -> None:
    store.fail_write(2, kept=kept)
    put(store, 6)
    with pytest.raises(StorageFailed, match="a write failed"):
        put(store, 7)
    found = store.crash(power=power, keep=99)
    assert held(found) == [1, 2, 3, 4, 5, 6] + [7] * kept


@pytest.mark.parametrize("kept", [False, True])
def test_a_failed_sync_is_kept_or_lost(store: MemoryStorage, kept: bool) -> None:
    store.fail_sync(2, kept=kept)
    store.sync()
    put(store, 6)
    with pytest.raises(StorageFailed, match="a sync failed"):
        store.sync()
    assert held(store.crash(power=True)) == [1, 2, 3, 4, 5] + [6] * kept


def test_a_failed_store_refuses_everything_with_the_first_cause(store: MemoryStorage) -> None:
    store.fail_sync(kept=False)
    store.fail_write(kept=False)
    calls: list[Callable[[], object]] = [
        store.sync,
        lambda: put(store, 6),
        lambda: store.get_many(Column.MESSAGES, [b"\x01"]),
        lambda: store.scan(Column.MESSAGES, b"", b"\xff"),
        store.space,
    ]
    for call in calls:
        with pytest.raises(StorageFailed, match="a sync failed"):
            call()
    store.close()
    assert held(store.crash(power=False)) == [1, 2, 3, 4, 5]


def test_a_sync_that_fails_at_the_close_is_reported(store: MemoryStorage) -> None:
    store.fail_sync(kept=False)
    with pytest.raises(StorageFailed, match="a sync failed"):
        store.close()


def test_free_space_is_what_the_test_says(store: MemoryStorage) -> None:
    store.free = 7
    assert store.space().free == 7
    assert store.crash(power=False).space().free == 7


def test_every_call_of_a_script_can_be_made_to_fail() -> None:
    """The loop by which a simulation tries a failure at each call in turn."""
    nth = 0
    outcomes: list[list[int]] = []
    while not outcomes or outcomes[-1] != [1, 2, 3]:
        nth += 1
        store = MemoryStorage()
        store.fail_write(nth, kept=False)
        try:
            put(store, 1, 2, 3)
        except StorageFailed:
            pass
        outcomes.append(held(store.crash(power=False)))
    assert outcomes == [[], [1], [1, 2], [1, 2, 3]]
