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
from fila_server.storage.watermark import Watermark
from server.tests.storage import child

StartChild = Callable[..., "subprocess.Popen[str]"]


def let_run(process: "subprocess.Popen[str]", lines: int, seconds: float) -> list[str]:
    """Kill the process this long after it has said so many lines, and return what it said."""
    assert process.stdout is not None
    opened = process.stdout.readline()
    assert opened.startswith("opened "), opened
    first = [process.stdout.readline().strip() for _ in range(lines)]
    time.sleep(seconds)
    process.kill()
    rest = process.stdout.read()  # not communicate(), which passes by what readline() has buffered
    process.wait()
    return [opened.strip(), *first, *rest.splitlines()]


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
        said = let_run(process, 100, rng.random() * 0.15)
        assert latest(said, "opened") in (written, written + 1)  # one may be written and unsaid
        written = max(latest(said, "written"), latest(said, "opened"))
        tables |= {table.name for table in path.glob("*.sst")}
    store = RocksStorage.open(str(path))
    assert child.holds(store, size) in (written, written + 1)
    store.close()
    assert written > 500
    assert len(tables) > 10


def without_power(path: Path, synced: Path) -> Path:
    """What power loss leaves: each file as long as it was at its last fsync, or empty."""
    sizes: dict[str, int] = {}
    for line in synced.read_text().splitlines():
        if line.count(" ") == 1:
            inode, size = line.split()
            # Two threads may sync a manifest, and the one that saw less of it report last.
            sizes[inode] = max(sizes.get(inode, 0), int(size)) if int(size) else 0
    left = path.with_name("left")
    left.mkdir()
    for file in path.iterdir():
        if file.is_file():
            keep = sizes.get(str(file.stat().st_ino), 0)
            (left / file.name).write_bytes(file.read_bytes()[:keep])
    return left


@pytest.mark.parametrize("watermark", ["kept", "as it was made"])
@pytest.mark.parametrize("seed", range(3))
def test_power_loss_loses_nothing_that_was_synced(
    tmp_path: Path, start_child: StartChild, faultfs: Path, seed: int, watermark: str
) -> None:
    path, synced, size = tmp_path / "data", tmp_path / "synced", 2000
    variables = {"LD_PRELOAD": faultfs, "FAULT_SYNCED": synced}
    process = start_child("run", path, size, 1 + 6 * seed, **variables)
    said = let_run(process, 1000, 0.1 * seed)
    left = without_power(path, synced)
    if watermark != "kept":
        made = Watermark(left / "WATERMARK", create=False)
        made.reset(0)
        made.close()
    store = RocksStorage.open(str(left))
    assert latest(said, "synced") <= child.holds(store, size) <= latest(said, "written") + 1
    store.close()
    assert latest(said, "synced") > 50


@pytest.mark.parametrize(
    ("match", "fault", "manifest_bytes"),
    [("MANIFEST-000005", "d", 1 << 20), ("/data", "c", 2000)],
    ids=["grown", "replaced"],
)
def test_power_loss_takes_back_nothing_that_was_noted_of_the_manifest(
    tmp_path: Path,
    start_child: StartChild,
    faultfs: Path,
    match: str,
    fault: str,
    manifest_bytes: int,
) -> None:
    """The power fails when the manifest has grown, or CURRENT was replaced, but before the end of
    the fsync that makes it last.
    """
    path, synced, armed, size = tmp_path / "data", tmp_path / "synced", tmp_path / "armed", 2000
    variables = {"LD_PRELOAD": faultfs, "FAULT_SYNCED": synced, "FAULT_ARMED": armed}
    process = start_child("look", path, size, manifest_bytes, FAULT_MATCH=match, **variables)
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "synced 10\n"
    current = (path / "CURRENT").read_text()
    manifest = path / current.strip()
    first = manifest.stat().st_size
    armed.write_text(fault)
    print(file=process.stdin, flush=True)
    deadline = time.monotonic() + 20
    while (path / "CURRENT").read_text() == current:
        if fault == "d" and manifest.stat().st_size > first:
            break
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.5)  # for a look that would note what it finds
    process.kill()
    process.wait()
    left = without_power(path, synced)
    (left / "CURRENT").write_text(current)
    store = RocksStorage.open(str(left))
    assert child.holds(store, size) >= 10
    store.close()


@pytest.mark.parametrize("fault", ["f", "w", "s"])
def test_a_manifest_that_cannot_be_written_raises_no_false_alarm(
    tmp_path: Path, start_child: StartChild, faultfs: Path, fault: str
) -> None:
    """RocksDB takes back what was half written, or begins another manifest, or gives up."""
    path, armed, size = tmp_path / "data", tmp_path / "armed", 2000
    variables = {"LD_PRELOAD": faultfs, "FAULT_MATCH": "MANIFEST-000005", "FAULT_ARMED": armed}
    process = start_child("run", path, size, 1, 300, **variables)
    assert process.stdout is not None
    assert process.stdout.readline() == "opened 0\n"
    armed.write_text(fault)
    lines = []
    while not lines or lines[-1] not in ("done", ""):
        lines.append(process.stdout.readline().strip())
    process.kill()
    process.wait()
    store = RocksStorage.open(str(path))
    assert child.holds(store, size) >= latest(lines, "synced") > 0
    store.close()


def test_manifests_that_are_replaced_raise_no_false_alarm(
    tmp_path: Path, start_child: StartChild
) -> None:
    rng = random.Random(5)
    path, size, numbers = tmp_path / "data", 2000, set()
    for _ in range(8):
        process = start_child("roll", path, size, rng.choice([1, 3, 20]))
        said = let_run(process, 150, rng.random() * 0.2)
        numbers.add((path / "CURRENT").read_text())
        store = RocksStorage.open(str(path))
        assert child.last(store) >= latest(said, "written")
        store.close()
    assert len(numbers) == 8


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
    assert refused == [f"{name} failed {cause}" for name in "write sync get scan space".split()]
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


@pytest.mark.parametrize(
    ("call", "said"),
    [("write", ["holds 800"]), ("get", ["got 400", "holds 400"]), ("scan", ["holds 400"])],
)
def test_a_lack_of_descriptors_only_takes_time(
    tmp_path: Path, start_child: StartChild, call: str, said: list[str]
) -> None:
    path = tmp_path / "data"
    process = start_child("starve", path, call)
    found, _ = process.communicate(timeout=120)
    assert (process.returncode, found.splitlines()) == (0, said)
    if call == "write":
        log = "".join(file.read_text() for file in path.glob("LOG*"))
        assert "Too many open files" in log  # it was really opened anew


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

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fila_server.storage.watermark.Watermark.advance", full)
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
