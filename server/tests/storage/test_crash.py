# SPDX-License-Identifier: AGPL-3.0-only
"""Kills, power loss and disks that fail: what was promised is there at the next open."""

import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fila_server.errors import StorageFailed
from fila_server.storage.api import Column
from fila_server.storage.rocks import RocksStorage
from server.tests.storage import child

StartChild = Callable[..., "subprocess.Popen[str]"]


def let_run(process: "subprocess.Popen[str]", seconds: float) -> list[str]:
    """Kill the process this long after it opened its store, and return what it said."""
    assert process.stdout is not None
    opened = process.stdout.readline()
    assert opened.startswith("opened "), opened
    time.sleep(seconds)
    process.kill()
    said, _ = process.communicate()
    return [opened.strip(), *said.splitlines()]


def latest(said: list[str], what: str) -> int:
    return max((int(line.split()[1]) for line in said if line.startswith(f"{what} ")), default=0)


def test_kill_loses_nothing_and_raises_no_false_alarm(
    tmp_path: Path, start_child: StartChild
) -> None:
    """Many lives of one store. The buffer is tiny, so most kills hit it while it is written out."""
    rng = random.Random(3)
    path, size, written, tables = tmp_path / "data", 600, 0, set()
    for _ in range(14):
        process = start_child("run", path, size, rng.choice([1, 3, 20, 10_000]))
        said = let_run(process, rng.random() * 0.15)
        assert latest(said, "opened") in (written, written + 1)  # one may be written and unsaid
        written = max(latest(said, "written"), latest(said, "opened"))
        tables |= {table.name for table in path.glob("*.sst")}
    store = RocksStorage.open(str(path))
    assert child.holds(store, size) in (written, written + 1)
    store.close()
    assert written > 1000
    assert len(tables) > 20


@pytest.mark.parametrize("watermark", ["kept", "lost"])
@pytest.mark.parametrize("seed", range(3))
def test_power_loss_loses_nothing_that_was_synced(
    tmp_path: Path, start_child: StartChild, faultfs: Path, seed: int, watermark: str
) -> None:
    """Every file is cut to its size at its last fsync; one that never had any is emptied."""
    path, synced, size = tmp_path / "data", tmp_path / "synced", 2000
    variables = {"LD_PRELOAD": faultfs, "FAULT_SYNCED": synced}
    said = let_run(start_child("run", path, size, 1 + 6 * seed, **variables), 0.2 + 0.1 * seed)
    sizes = dict(line.split() for line in synced.read_text().splitlines() if line.count(" ") == 1)
    left = tmp_path / "left"
    left.mkdir()
    for file in path.iterdir():
        if file.is_dir():
            continue
        status = file.stat()
        keep = int(sizes.get(str(status.st_ino), 0))
        if file.name == "WATERMARK" and watermark == "kept":
            keep = status.st_size
        (left / file.name).write_bytes(file.read_bytes()[:keep])
    store = RocksStorage.open(str(left))
    assert latest(said, "synced") <= child.holds(store, size) <= latest(said, "written") + 1
    store.close()
    assert latest(said, "synced") > 50


@pytest.mark.parametrize(
    ("match", "fault", "call", "reason"),
    [
        (".log", "f", "sync", "the disk failed; check the disk, then start again"),
        (".log", "w", "write", "the disk is full; free some space and start again"),
        (".log", "s", "write", "the disk is full; free some space and start again"),
        (".sst", "w", "write", "the disk is full; free some space and start again"),
        (".sst", "f", "write", "the disk failed; check the disk, then start again"),
        (".sst", "d", "write", "the disk cannot keep up; check its health and space, then"),
    ],
)
def test_after_a_failure_nothing_works_until_the_store_is_opened_again(
    tmp_path: Path,
    start_child: StartChild,
    faultfs: Path,
    match: str,
    fault: str,
    call: str,
    reason: str,
) -> None:
    path, armed, size = tmp_path / "data", tmp_path / "armed", 3000
    variables = {"LD_PRELOAD": faultfs, "FAULT_MATCH": match, "FAULT_ARMED": armed}
    process = start_child("fail", path, size, armed, fault, call, **variables)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 0, said
    lines = said.splitlines()
    first = next(n for n, line in enumerate(lines) if " failed " in line)
    cause = lines[first].partition(" failed ")[2]
    assert lines[first].startswith(call)
    assert cause.startswith(f"{path}: {reason}")
    *refused, reopened = lines[first + 1 :]
    assert refused == [f"{name} failed {cause}" for name in "write sync get scan free".split()]
    # What returned is there. The call that failed may have had its effect or not.
    kept = 10 + sum(line == "write passed" for line in lines)
    assert reopened in (f"opened {kept}", f"opened {kept + 1}")
    store = RocksStorage.open(str(path))
    assert child.holds(store, size) in (kept + 1, kept + 2)
    store.close()


def test_a_write_waits_for_a_disk_that_catches_up(
    tmp_path: Path, start_child: StartChild, faultfs: Path
) -> None:
    path, armed, size = tmp_path / "data", tmp_path / "armed", 3000
    armed.write_text("d")
    variables = {"LD_PRELOAD": faultfs, "FAULT_MATCH": ".sst", "FAULT_ARMED": armed}
    process = start_child("run", path, size, 1000, 400, **variables)
    deadline = time.monotonic() + 20
    while not list(path.glob("LOG")) or "Stopping writes" not in (path / "LOG").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    armed.unlink()
    assert process.stdout is not None
    assert next(line for line in process.stdout if "written" not in line and "opened" not in line)
    process.kill()
    process.wait()
    store = RocksStorage.open(str(path))
    assert child.holds(store, size) == 400
    store.close()


@pytest.mark.parametrize("match", ["FORMAT.new", "WATERMARK", "MANIFEST-000001"])
def test_a_disk_that_is_full_at_the_start_is_named(
    tmp_path: Path, start_child: StartChild, faultfs: Path, match: str
) -> None:
    path, armed = tmp_path / "data", tmp_path / "armed"
    armed.write_text("w")
    variables = {"LD_PRELOAD": faultfs, "FAULT_MATCH": match, "FAULT_ARMED": armed}
    said, _ = start_child("hold", path, **variables).communicate(timeout=30)
    assert said.startswith(f"open failed {path}: the disk is full; free some space and start again")
    assert said.count("\n") == 1
    RocksStorage.open(str(path)).close()


def test_a_sync_that_fails_at_the_close_is_reported_and_the_store_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data"
    store = RocksStorage.open(str(path))
    store.write(child.group(1, 10))

    def full(sequence: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fila_server.storage.watermark.Watermark.advance", lambda _, s: full(s))
        with pytest.raises(StorageFailed, match="the disk is full"):
            store.close()
    store.close()
    store = RocksStorage.open(str(path))
    assert child.holds(store, 10) == 1
    store.close()


def test_clean_restarts_raise_no_false_alarm(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    rng = random.Random(4)
    written = 0
    for _ in range(25):
        store = RocksStorage.open(path, write_buffer_bytes=rng.choice([65536, 1 << 20]))
        assert child.last(store) == written
        for _ in range(rng.randrange(40)):
            written += 1
            store.write(child.group(written, 4000))
            if rng.random() < 0.2:
                store.sync()
        store.close()
    store = RocksStorage.open(path)
    assert child.holds(store, 4000) == written > 300
    store.close()


def test_compaction_raises_no_false_alarm(tmp_path: Path, start_child: StartChild) -> None:
    """Everything is compacted away, down to the record with the last sequence number."""
    path = tmp_path / "data"
    process = start_child("churn", path)
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    process.kill()
    process.wait()
    store = RocksStorage.open(str(path))
    assert list(store.scan(Column.MESSAGES, b"", b"\xff" * 9)) == []
    store.close()
