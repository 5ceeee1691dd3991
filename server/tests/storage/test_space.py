# SPDX-License-Identifier: AGPL-3.0-only
"""Disk space: how much there is, how much is needed, how it comes back, and what is kept back."""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fila_server.storage import tuning
from fila_server.storage.api import Column, Until
from fila_server.storage.reserve import Reserve
from fila_server.storage.rocks import RocksStorage
from server.tests.storage import child
from server.tests.torture.volume import Volume, volume

MIB = 1024 * 1024
END = b"\xff" * 9
RECORDS, RECORD_BYTES = 4000, 5000


def fill(store: RocksStorage, column: Column = Column.MESSAGES) -> None:
    """Write 20 MB that cannot be compressed."""
    for n in range(0, RECORDS, 100):
        writes = [(column, child.key(i), os.urandom(RECORD_BYTES)) for i in range(n, n + 100)]
        store.write(list(writes))


def used_bytes(path: Path) -> int:
    total = 0
    for file in path.iterdir():
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            pass  # merged away in between
    return total


def await_used(path: Path, limit: int) -> None:
    deadline = time.monotonic() + 60
    while used_bytes(path) > limit:
        assert time.monotonic() < deadline, f"{used_bytes(path)} bytes are still used"
        time.sleep(0.05)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(path: Path) -> Iterator[RocksStorage]:
    store = RocksStorage.open(str(path), write_buffer_bytes=4 * MIB)
    yield store
    store.close()


# --- Counting -------------------------------------------------------------------------------------


def test_a_write_says_how_much_it_takes(store: RocksStorage) -> None:
    assert store.write([]) == 0
    size = store.write([(Column.MESSAGES, b"key", bytes(1000))])
    assert 1003 < size < 1100
    assert 3 < store.write([(Column.MESSAGES, b"key", None)]) < 100


def test_what_is_in_memory_is_counted_until_it_is_written_out(store: RocksStorage) -> None:
    empty = store.space().buffered
    store.write([(Column.MESSAGES, b"key", os.urandom(2 * MIB))])
    assert store.space().buffered > empty + 2 * MIB
    store.reclaim()
    assert store.space().buffered < empty + MIB


def test_files_that_may_be_merged_are_counted(store: RocksStorage) -> None:
    empty = store.space().merging
    assert empty >= 2 * 4 * MIB  # the next log, and the next table
    fill(store)
    store.reclaim()
    assert store.space().merging >= empty + 4 * MIB


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([[0, 0, 0]], 0),
        ([[30, 0, 0]], 30),
        ([[30, 0, 50]], 80),
        ([[30, 40, 0], [10, 5, 0]], 70),
        ([[0, 40, 500]], 120),
        ([[200, 40, 500]], 240),
    ],
)
def test_the_largest_merge_counts(levels: list[list[int]], expected: int) -> None:
    assert tuning.merging_bytes(10, levels) - tuning.merging_bytes(10, []) == expected


def test_write_buffers_fit_the_volume() -> None:
    assert tuning.fit_buffer(64 * MIB, 1 << 40) == 64 * MIB
    assert tuning.fit_buffer(64 * MIB, 1280 * MIB) == 10 * MIB
    assert tuning.fit_buffer(64 * MIB, MIB) == 65536
    assert tuning.fit_buffer(1000, MIB) == 1000


# --- Giving back ----------------------------------------------------------------------------------


def test_deleted_records_give_their_space_back_without_a_restart(
    store: RocksStorage, path: Path
) -> None:
    fill(store)
    for n in range(RECORDS * 9 // 10):
        store.write([(Column.MESSAGES, child.key(n), None)])
    assert used_bytes(path) > 15 * MIB
    assert store.space().deleted == RECORDS * 9 // 10
    store.reclaim()
    await_used(path, 5 * MIB)
    assert store.space().deleted == 0
    left = [key for key, _ in store.scan(Column.MESSAGES, b"", END)]
    assert left == [child.key(n) for n in range(RECORDS * 9 // 10, RECORDS)]


def test_a_deleted_range_gives_its_space_back_without_a_restart(
    store: RocksStorage, path: Path
) -> None:
    fill(store)
    store.reclaim()
    store.write([(Column.MESSAGES, child.key(10), Until(child.key(RECORDS - 10)))])
    assert store.space().deleted == 1
    store.reclaim()
    await_used(path, 5 * MIB)
    assert store.space().deleted == 0
    assert sum(1 for _ in store.scan(Column.MESSAGES, b"", END)) == 20


def test_a_small_range_is_not_worth_merging_files(store: RocksStorage, path: Path) -> None:
    fill(store)
    store.reclaim()
    before = {table.name for table in path.glob("*.sst")}
    store.write([(Column.MESSAGES, child.key(10), Until(child.key(20)))])
    store.reclaim()
    assert len(before - {table.name for table in path.glob("*.sst")}) <= 1


def test_all_columns_are_written_out_at_once(store: RocksStorage, path: Path) -> None:
    """The log that held them is not needed any more."""
    for column in Column:
        store.write([(column, b"key", b"value")])
    store.sync()
    store.reclaim()
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    for log in copy.glob("*.log"):
        log.unlink()
    again = RocksStorage.open(str(copy))
    assert [again.get_many(column, [b"key"]) for column in Column] == [[b"value"]] * len(Column)
    again.close()


def test_a_store_can_be_closed_while_it_gives_space_back(store: RocksStorage, path: Path) -> None:
    fill(store)
    store.write([(Column.MESSAGES, b"", Until(child.key(RECORDS - 1)))])
    ended: list[BaseException | None] = []

    def reclaim() -> None:
        try:
            store.reclaim()
        except Exception as error:
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=reclaim)
    thread.start()
    store.close()
    thread.join(60)
    assert len(ended) == 1  # done, cut short, or too late
    again = RocksStorage.open(str(path))
    assert sum(1 for _ in again.scan(Column.MESSAGES, b"", END)) == 1
    again.close()


# --- Keeping back ---------------------------------------------------------------------------------


def test_a_reserve_takes_real_blocks(path: Path) -> None:
    path.mkdir()
    reserve = Reserve(path / "RESERVE")
    assert reserve.bytes == 0
    reserve.hold(3 * MIB)
    assert reserve.bytes == 3 * MIB
    assert (path / "RESERVE").stat().st_blocks * 512 >= 3 * MIB
    assert Reserve(path / "RESERVE").bytes >= 3 * MIB
    reserve.release()
    reserve.release()
    assert (reserve.bytes, list(path.iterdir())) == (0, [])


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Volume]:
    with volume(tmp_path, 64 * MIB) as small:
        yield small


def test_a_reserve_is_whole_or_not_there(small: Volume) -> None:
    (small.path / "data").mkdir()
    reserve = Reserve(small.path / "data" / "RESERVE")
    reserve.hold(1 << 40)
    assert reserve.bytes == 0
    assert not (small.path / "data" / "RESERVE").exists()


@pytest.mark.parametrize("is_reserved", [True, False])
def test_a_store_opens_on_a_full_volume_with_its_reserve_alone(
    small: Volume, start_child: Callable[..., "subprocess.Popen[str]"], is_reserved: bool
) -> None:
    path = small.path / "data"
    wish = "reserved" if is_reserved else "without"
    process = start_child("cram", path, wish, **small.environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    process.kill()
    process.wait()
    assert (path / "RESERVE").exists() == is_reserved
    process = start_child("hold", path, **small.environment)
    assert process.stdout is not None
    said = process.stdout.readline()
    if not is_reserved:
        assert said.startswith(f"open failed {path}: the disk is full; free some space")
        (path / "ballast").unlink()
        process = start_child("hold", path, **small.environment)
        assert process.stdout is not None
        said = process.stdout.readline()
    assert said == "opened 100\n"
    assert not (path / "RESERVE").exists()
    process.communicate("")
    assert process.returncode == 0
