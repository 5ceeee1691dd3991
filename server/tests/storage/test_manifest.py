# SPDX-License-Identifier: AGPL-3.0-only
"""The manifest: what is noted of it and when, and that no damage to it passes unseen or hangs.

A hang holds the interpreter lock, so a child opens the damaged stores, and must answer in time.
"""

import os
import select
import shutil
import struct
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from errno import EIO, EMFILE
from pathlib import Path

import pytest

from fila_server.storage.api import Column
from fila_server.storage.manifest import Manifest
from fila_server.storage.records import endless_records
from fila_server.storage.rocks import RocksStorage
from fila_server.storage.watermark import NOTHING, Extent, Watermark
from server.tests.storage import child
from server.tests.storage.record_headers import KIND, headers

SIZE, COUNT = 3000, 150
ANSWER_S = 20.0
# RocksDB 9.8.4 has kinds of record up to 11, later versions up to 34.
KINDS = (*range(40), 64, 127, 128, 255)

StartChild = Callable[..., "subprocess.Popen[str]"]
Judge = Callable[..., str]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of tables and logs, all of it synced and noted, as a kill leaves it."""
    folder = tmp_path_factory.mktemp("killed")
    path = folder / "open"
    store = RocksStorage.open(str(path), write_buffer_bytes=65536)
    for n in range(1, COUNT + 1):
        store.write(child.group(n, SIZE))
        if n == COUNT - 5:
            store.reclaim()
    while True:
        time.sleep(0.2)  # Merging ends.
        store.sync()
        before = manifest_of(path).read_bytes()
        shutil.copytree(path, folder / "killed")
        if manifest_of(path).read_bytes() == before:
            break
        shutil.rmtree(folder / "killed")
    store.close()
    assert len(list((folder / "killed").glob("*.sst"))) > 3
    return folder / "killed"


@pytest.fixture
def copy(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "copy"))


@pytest.fixture
def judge(start_child: StartChild) -> Judge:
    """Return what an open makes of a store, in time; a child that hangs is killed."""
    process = start_child("judge", SIZE)
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(path: Path, *accept: str) -> str:
        print(path, *accept, file=stdin, flush=True)
        ready, _, _ = select.select([stdout], [], [], ANSWER_S)
        assert ready, "the open hangs"
        return stdout.readline().strip()

    return ask


def groups(verdict: str) -> int:
    assert verdict.startswith("holds "), verdict
    return int(verdict.split()[1])


def manifest_of(path: Path) -> Path:
    return path / (path / "CURRENT").read_text().strip()


def noted(path: Path) -> Extent:
    watermark = Watermark(path / "WATERMARK", create=False)
    watermark.close()
    return watermark.extent


def forget_manifest(path: Path) -> None:
    """Leave a watermark that tells of the log alone, as one of format 1 does."""
    watermark = Watermark(path / "WATERMARK", create=False)
    watermark.reset(watermark.sequence)
    watermark.close()


# --- Damage ---------------------------------------------------------------------------------------


def test_a_manifest_that_is_whole_is_accepted(copy: Path, judge: Judge) -> None:
    assert judge(copy) == f"holds {COUNT}"


@pytest.mark.parametrize("accept", ["", "accept"])
def test_a_cut_at_any_record_is_refused(copy: Path, judge: Judge, accept: str) -> None:
    manifest = manifest_of(copy)
    content = manifest.read_bytes()
    assert len(headers(content)) > 15
    for at in headers(content):
        manifest.write_bytes(content[:at])
        verdict = judge(copy, accept)
        cause = f"{manifest.name} was cut to {at} of {len(content)} bytes"
        assert verdict.startswith(f"refused {copy}: damaged: {cause}; restore the directory from a")
        assert "--accept-data-loss" not in verdict  # for it would help nobody
    manifest.write_bytes(content)
    assert judge(copy) == f"holds {COUNT}"  # All refusals have left the store as it was.


@pytest.mark.parametrize("accept", ["", "accept"])
def test_a_flip_in_any_header_is_refused(copy: Path, judge: Judge, accept: str) -> None:
    manifest = manifest_of(copy)
    content = manifest.read_bytes()
    for at in headers(content):
        for byte in range(at, at + 7):
            for bit in (0, 2) if byte == at + KIND else (byte % 8,):
                flipped = bytearray(content)
                flipped[byte] ^= 1 << bit
                manifest.write_bytes(flipped)
                verdict = judge(copy, accept)
                assert f"damaged: {manifest.name} is not as it was written" in verdict, (byte, bit)


def older(path: Path) -> str:
    """An earlier manifest, whole, is there again and in use."""
    shutil.copy(manifest_of(path), path / "MANIFEST-000001")
    (path / "CURRENT").write_text("MANIFEST-000001\n")
    return "CURRENT names MANIFEST-000001, but number "


def absent(path: Path) -> str:
    (path / "CURRENT").write_text("MANIFEST-999999\n")
    return "MANIFEST-999999 is missing"


def garbled(path: Path) -> str:
    (path / "CURRENT").write_bytes(b"MANIFEST-00000\xb5\n")
    return "CURRENT names no manifest"


def emptied(path: Path) -> str:
    (path / "CURRENT").write_bytes(b"")
    return "CURRENT names no manifest"


def lost(path: Path) -> str:
    (path / "CURRENT").unlink()
    return "CURRENT is missing"


@pytest.mark.parametrize("accept", ["", "accept"])
@pytest.mark.parametrize("damage", [older, absent, garbled, emptied, lost])
def test_a_current_that_names_another_manifest_is_refused(
    copy: Path, judge: Judge, damage: Callable[[Path], str], accept: str
) -> None:
    cause = damage(copy)
    names = {entry.name for entry in copy.iterdir()}
    assert judge(copy, accept).startswith(f"refused {copy}: damaged: {cause}")
    assert {entry.name for entry in copy.iterdir()} == names


def test_a_lost_current_is_no_new_store_though_the_loss_of_the_watermark_is_accepted(
    copy: Path, judge: Judge
) -> None:
    (copy / "CURRENT").unlink()
    (copy / "WATERMARK").unlink()
    assert judge(copy, "accept").startswith(f"refused {copy}: damaged: CURRENT is missing")


@pytest.mark.parametrize("accept", ["", "accept"])
@pytest.mark.parametrize("pattern", ["MANIFEST-*", "*.log"])
def test_no_kind_of_record_hangs_where_nothing_was_noted(
    copy: Path, tmp_path: Path, judge: Judge, pattern: str, accept: str
) -> None:
    """More kinds than are in use, so that a later RocksDB that hangs on others is found out."""
    forget_manifest(copy)
    victim = max(copy.glob(pattern))
    content = victim.read_bytes()
    places = headers(content)
    assert len(places) > 3
    at = places[len(places) // 2]
    for kind in KINDS:
        other = Path(shutil.copytree(copy, tmp_path / "other"))
        damaged = bytearray(content)
        damaged[at + KIND] = kind
        (other / victim.name).write_bytes(damaged)
        verdict = judge(other, accept)
        if kind == content[at + KIND]:
            assert verdict == f"holds {COUNT}"
        elif pattern == "*.log" and accept:
            assert 0 < groups(verdict) < COUNT, kind
        else:
            assert verdict.startswith(f"refused {other}: "), kind
        shutil.rmtree(other)


def test_a_log_that_rocksdb_would_never_finish_is_refused_until_the_loss_is_accepted(
    copy: Path, judge: Judge
) -> None:
    log = max(copy.glob("*.log"))
    content = bytearray(log.read_bytes())
    at = headers(content)[2]
    content[at + KIND] ^= 4
    log.write_bytes(content)
    for _ in range(2):
        verdict = judge(copy)
        cause = f"{log.name} has an impossible record at byte {at}; put the missing files back, or"
        assert verdict.startswith(f"refused {copy}: damaged: {cause}")
        assert "start with --accept-data-loss" in verdict
        assert log.read_bytes() == content
    left = judge(copy, "accept")
    assert 0 < groups(left) < COUNT
    assert judge(copy) == left


def test_one_impossible_record_in_each_block_is_found(tmp_path: Path) -> None:
    path = tmp_path / "000001.log"
    usual = b"\0\0\0\0" + struct.pack("<HB", 93, 1) + bytes(93)
    endless = b"\0\0\0\0" + struct.pack("<HB", 93, 7) + bytes(93)
    first = (usual * 3 + endless * 2).ljust(32768, b"\0")
    second = (usual * 327).ljust(32768, b"\0")
    third = usual + b"\0\0\0\0" + struct.pack("<HB", 60_000, 1) + endless  # an impossible length
    path.write_bytes(first + second + third.ljust(32768, b"\1") + usual + endless[:7])
    assert list(endless_records(path)) == [300, 3 * 32768 + 100]
    path.write_bytes(usual + endless[:6])
    assert list(endless_records(path)) == []
    path.write_bytes(b"")
    assert list(endless_records(path)) == []


# --- What is noted, and when ----------------------------------------------------------------------


def extent_of(path: Path) -> Extent:
    manifest = manifest_of(path)
    content = manifest.read_bytes()
    return Extent(int(manifest.name[9:]), len(content), zlib.crc32(content))


def test_the_manifest_is_noted_at_the_open_by_each_sync_while_idle_and_at_the_close(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data"
    for life in range(2):
        store = RocksStorage.open(str(path))
        assert noted(path) == extent_of(path)
        store.write([(Column.MESSAGES, b"%d" % life, b"value")])
        store.reclaim()
        assert noted(path) != extent_of(path)
        store.sync()
        assert noted(path) == extent_of(path)
        store.write([(Column.MESSAGES, b"%d" % life, b"another")])
        store.reclaim()
        assert noted(path) != extent_of(path)
        store.settle()
        assert noted(path) == extent_of(path)
        store.write([(Column.MESSAGES, b"%d" % life, b"last")])  # the close writes it out
        before = noted(path)
        store.close()
        assert before != noted(path) == extent_of(path)


class Files:
    """A manifest in the hands of the test, and what is fsynced of it, by name."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.synced: list[str] = []
        self.opened = os.open
        self.before_open: Callable[[], None] = lambda: None
        monkeypatch.setattr("os.fsync", self._fsync)
        monkeypatch.setattr("os.open", self._open)

    def _fsync(self, fd: int) -> None:
        self.synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)

    def _open(self, path: str | Path, *flags: int) -> int:
        if "MANIFEST" in str(path):
            self.before_open()
        return self.opened(path, *flags)

    def replace(self, number: int, content: bytes) -> None:
        name = f"MANIFEST-{number:06}"
        (self.folder / name).write_bytes(content)
        (self.folder / "temporary").write_text(f"{name}\n")
        (self.folder / "temporary").rename(self.folder / "CURRENT")

    def append(self, number: int, content: bytes) -> None:
        with (self.folder / f"MANIFEST-{number:06}").open("ab") as file:
            file.write(content)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    with monkeypatch.context() as patch:
        yield Files(tmp_path, patch)


def test_what_is_noted_was_fsynced_before_and_only_what_was_added(files: Files) -> None:
    manifest = Manifest(files.folder)
    assert manifest.settle() == NOTHING
    files.replace(5, b"first")
    assert manifest.settle() == Extent(5, 5, zlib.crc32(b"first"))
    assert files.synced == ["MANIFEST-000005", files.folder.name]
    assert manifest.settle() == Extent(5, 5, zlib.crc32(b"first"))
    assert len(files.synced) == 2  # nothing to do
    files.append(5, b" second")
    assert manifest.settle() == Extent(5, 12, zlib.crc32(b"first second"))
    assert files.synced[2:] == ["MANIFEST-000005"]
    files.replace(9, b"other")  # The old one is there for a while.
    assert manifest.settle() == Extent(9, 5, zlib.crc32(b"other"))
    assert files.synced[3:] == ["MANIFEST-000009", files.folder.name]


def test_what_is_added_after_the_look_is_noted_the_next_time(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Manifest(files.folder)
    files.replace(5, b"first")
    fsync = os.fsync

    def append_then_sync(fd: int) -> None:
        files.append(5, b", late")
        fsync(fd)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", append_then_sync)
        assert manifest.settle() == Extent(5, 5, zlib.crc32(b"first"))
    full = b"first, late, late"  # The directory was fsynced as well.
    assert manifest.settle() == Extent(5, len(full), zlib.crc32(full))


def test_a_manifest_that_is_replaced_during_the_look_is_noted_the_next_time(files: Files) -> None:
    manifest = Manifest(files.folder)
    files.replace(5, b"first")
    manifest.settle()

    def replace_again() -> None:
        files.before_open = lambda: None
        (files.folder / "MANIFEST-000007").unlink()
        files.replace(9, b"newest")

    files.replace(7, b"newer")
    files.before_open = replace_again
    assert manifest.settle() == Extent(5, 5, zlib.crc32(b"first"))
    assert manifest.settle() == Extent(9, 6, zlib.crc32(b"newest"))


def test_without_descriptors_nothing_more_is_noted_and_nothing_fails(files: Files) -> None:
    manifest = Manifest(files.folder)
    files.replace(5, b"first")

    def refuse() -> None:
        raise OSError(EMFILE, "Too many open files")

    files.before_open = refuse
    assert manifest.settle() == NOTHING
    files.before_open = lambda: None
    assert manifest.settle().size == 5
    files.append(5, b" second")
    files.before_open = refuse
    assert manifest.settle().size == 5
    files.before_open = lambda: None
    assert manifest.settle().size == 12


def test_an_fsync_that_fails_is_no_note(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Manifest(files.folder)
    files.replace(5, b"first")

    def fail(fd: int) -> None:
        raise OSError(EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            manifest.settle()
    assert manifest.extent == NOTHING


def test_what_rocksdb_takes_back_during_the_look_is_not_noted(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Manifest(files.folder)
    files.replace(5, b"first and a part of a record")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda fd: os.truncate(files.folder / "MANIFEST-000005", 5))
        patch.setattr("fila_server.storage.manifest.fsync_directory", lambda path: None)
        assert manifest.settle() == Extent(5, 5, zlib.crc32(b"first"))
