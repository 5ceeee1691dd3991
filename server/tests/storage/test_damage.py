# SPDX-License-Identifier: AGPL-3.0-only
"""Files that were cut, garbled or lost: an open finds everything that was synced, or refuses."""

import os
import random
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from pathlib import Path

import pytest

from fila_server.errors import StorageFailed
from fila_server.storage.api import Column
from fila_server.storage.rocks import RocksStorage
from server.tests.storage import child

# A store with everything in its one log: 50 synced groups, and three more.
SIZE = 200
SYNCED, WRITTEN = 50, 53
# Stores with more than one file of a kind, and all of it synced.
LARGE = 3000
MANY_TABLES, MANY_LOGS = 600, 150

StartChild = Callable[..., "subprocess.Popen[str]"]


def leave(
    command: str, start_child: StartChild, path: Path, *numbers: int, **variables: object
) -> Path:
    """Let a child write and kill it, so that the log stays as it is."""
    process = start_child(command, path, *numbers, **variables)
    assert process.stdout is not None
    while process.stdout.readline() != "done\n":
        assert process.poll() is None
    process.kill()
    process.wait()
    return path


@pytest.fixture
def single(tmp_path: Path, start_child: StartChild) -> Path:
    path = leave("run", start_child, tmp_path / "single", SIZE, SYNCED, WRITTEN)
    assert len(list(path.glob("*.log"))) == 1
    assert not list(path.glob("*.sst"))
    return path


@pytest.fixture
def rolled(tmp_path: Path, start_child: StartChild) -> Path:
    """A store that was written out many times."""
    path = leave("run", start_child, tmp_path / "rolled", LARGE, 10, MANY_TABLES)
    assert len(list(path.glob("*.sst"))) > 3
    return path


@pytest.fixture
def behind(tmp_path: Path, start_child: StartChild, faultfs: Path) -> Path:
    """A store that was about to be written out, and has a log for every time."""
    (tmp_path / "armed").write_text("d")
    variables = {"FAULT_MATCH": ".sst", "FAULT_ARMED": tmp_path / "armed"}
    path, numbers = tmp_path / "behind", (LARGE, 10, MANY_LOGS)
    path = leave("run", start_child, path, *numbers, LD_PRELOAD=faultfs, **variables)
    assert len(list(path.glob("*.log"))) > 2
    return path


# --- Damages --------------------------------------------------------------------------------------


def log_of(path: Path) -> Path:
    (log,) = path.glob("*.log")
    return log


def cut_log(path: Path, size: int) -> None:
    os.truncate(log_of(path), size)


def flip_bit(path: Path, at: int, bit: int) -> None:
    with log_of(path).open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def punch_hole(path: Path) -> None:
    with log_of(path).open("r+b") as file:
        file.seek(2000)
        file.write(bytes(1000))


def lose(path: Path, names: list[str]) -> None:
    for name in names:
        (path / name).unlink()


def after(damage: Callable[[Path], None], original: Path, size: int = SIZE) -> int | None:
    """Damage a copy and open it; return how many groups it holds, or None if it is refused."""
    copy = original.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)
    damage(copy)
    try:
        store = RocksStorage.open(str(copy))
    except StorageFailed:
        return None
    try:
        return child.holds(store, size)
    finally:
        store.close()


# --- One log --------------------------------------------------------------------------------------


def test_a_log_that_is_whole_is_accepted(single: Path) -> None:
    assert after(lambda copy: None, single) == WRITTEN


def test_a_log_that_was_cut_into_what_was_synced_is_refused(single: Path) -> None:
    size = log_of(single).stat().st_size
    found = [after(partial(cut_log, size=cut), single) for cut in range(size, size - 1300, -29)]
    accepted = list(takewhile(lambda groups: groups is not None, found))
    assert set(accepted) == {50, 51, 52, 53}
    assert set(found[len(accepted) :]) == {None}
    for cut in (0, 7, size // 2):
        assert after(partial(cut_log, size=cut), single) is None


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_bit_in_what_was_synced_is_refused(single: Path, seed: int) -> None:
    rng = random.Random(seed)
    size = log_of(single).stat().st_size
    for _ in range(12):
        at, bit = rng.randrange(size * 9 // 10), rng.randrange(8)
        assert after(partial(flip_bit, at=at, bit=bit), single) is None, (at, bit)


def test_a_flipped_bit_after_what_was_synced_takes_no_more_than_that(single: Path) -> None:
    at = log_of(single).stat().st_size - 10
    assert after(partial(flip_bit, at=at, bit=0), single) == WRITTEN - 1


def test_a_hole_in_the_log_is_refused(single: Path) -> None:
    assert after(punch_hole, single) is None


def test_a_lost_log_is_refused_and_may_be_put_back(single: Path) -> None:
    aside = log_of(single).rename(single.with_name("aside"))
    for _ in range(2):
        with pytest.raises(StorageFailed) as caught:
            RocksStorage.open(str(single))
        # Three records per group, and one more in the first.
        expected = f"{single}: the log ends at sequence 0, but 151 was confirmed as durable; "
        assert caught.value.message.startswith(expected)
        assert "put the missing files back, or start with --accept-data-loss" in str(caught.value)
        assert "\n" not in str(caught.value)
    aside.rename(single / "000004.log")
    store = RocksStorage.open(str(single))
    assert child.holds(store, SIZE) == WRITTEN
    store.close()


def empty_watermark(path: Path) -> None:
    (path / "WATERMARK").write_bytes(b"")


def zero_watermark(path: Path) -> None:
    (path / "WATERMARK").write_bytes(bytes(1024))


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (partial(lose, names=["WATERMARK"]), "missing"),
        (empty_watermark, "damaged"),
        (zero_watermark, "damaged"),
    ],
)
def test_a_watermark_that_tells_nothing_is_refused_until_the_loss_is_accepted(
    single: Path, damage: Callable[[Path], None], what: str
) -> None:
    damage(single)
    names = {entry.name for entry in single.iterdir()}
    for _ in range(2):
        with pytest.raises(StorageFailed) as caught:
            RocksStorage.open(str(single))
        assert caught.value.message.startswith(f"{single}: the file WATERMARK is {what}, so")
        assert "--accept-data-loss" in caught.value.message
    assert {entry.name for entry in single.iterdir()} == names
    store = RocksStorage.open(str(single), accept_data_loss=True)
    assert child.holds(store, SIZE) == WRITTEN
    store.close()
    store = RocksStorage.open(str(single))
    assert child.holds(store, SIZE) == WRITTEN
    store.close()


# --- Accepting a loss -----------------------------------------------------------------------------


def test_a_loss_can_be_accepted_once_and_for_all(single: Path) -> None:
    cut_log(single, log_of(single).stat().st_size // 2)
    with pytest.raises(StorageFailed, match="--accept-data-loss"):
        RocksStorage.open(str(single))
    store = RocksStorage.open(str(single), accept_data_loss=True)
    left = child.holds(store, SIZE)
    assert 0 < left < SYNCED
    store.write(child.group(left + 1, SIZE))
    store.close()
    store = RocksStorage.open(str(single))
    assert child.holds(store, SIZE) == left + 1
    store.close()


def test_to_accept_a_loss_where_there_is_none_changes_nothing(single: Path) -> None:
    store = RocksStorage.open(str(single), accept_data_loss=True)
    assert child.holds(store, SIZE) == WRITTEN
    store.close()
    assert after(cut_first_table, single) is None


def cut_first_table(path: Path) -> None:
    os.truncate(min(path.glob("*.sst")), 100)


def test_a_lost_finished_log_can_be_accepted(behind: Path) -> None:
    _, second, *_ = sorted(log.name for log in behind.glob("*.log"))
    lose(behind, [second])
    with pytest.raises(StorageFailed, match="a log is missing; put the missing files back, or"):
        RocksStorage.open(str(behind))
    store = RocksStorage.open(str(behind), accept_data_loss=True)
    store.write(child.group(1, LARGE))
    store.close()
    store = RocksStorage.open(str(behind))
    assert child.last(store) == 1
    store.close()


# --- Many logs and tables -------------------------------------------------------------------------


def test_many_files_that_are_whole_are_accepted(rolled: Path, behind: Path) -> None:
    assert after(lambda copy: None, rolled, LARGE) == MANY_TABLES
    assert after(lambda copy: None, behind, LARGE) == MANY_LOGS


def test_no_log_can_be_lost_unseen(behind: Path) -> None:
    logs = sorted(log.name for log in behind.glob("*.log"))
    for names in [[name] for name in logs] + [logs, logs[:2], logs[1:]]:
        assert after(partial(lose, names=names), behind, LARGE) is None, names


def test_no_log_can_be_cut_unseen(behind: Path) -> None:
    """Between records too, where RocksDB sees nothing wrong in the log itself."""
    for log in behind.glob("*.log"):
        size = log.stat().st_size
        for cut in range(0, size, size // 10):
            assert after(partial(_cut, name=log.name, size=cut), behind, LARGE) is None, (log, cut)


def _cut(path: Path, name: str, size: int) -> None:
    os.truncate(path / name, size)


def test_a_table_does_not_hide_that_the_log_is_lost(
    tmp_path: Path, start_child: StartChild
) -> None:
    """The busy column was written out with all that was synced, the quiet one perhaps not."""
    path = leave("edge", start_child, tmp_path / "edge")
    lose(path, [log.name for log in path.glob("*.log")])
    try:
        store = RocksStorage.open(str(path))
    except StorageFailed:
        return
    assert store.get_many(Column.QUEUES, [b"quiet"]) == [b"once"]
    store.close()
