# SPDX-License-Identifier: AGPL-3.0-only
"""A directory of an older format is migrated only once a copy of it is kept."""

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fila_server.core.migration import from_1
from fila_server.errors import StorageFailed
from fila_server.storage.api import Reader, Write
from fila_server.storage.backups import contents
from fila_server.storage.directory import FORMAT_VERSION
from fila_server.storage.rocks import RocksStorage
from server.tests.storage.backups.conftest import silent

DATA = Path(__file__).parents[2] / "process" / "data"
KEPT = f"before-format-{FORMAT_VERSION}"


class Crash(Exception):
    pass


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The directory of format 1 that an earlier broker has left."""
    path = tmp_path / "old"
    path.mkdir()
    with tarfile.open(DATA / "format-1.tar.gz") as archive:
        archive.extractall(path, filter="data")
    return path


def crashing(read: Reader) -> Iterator[Sequence[Write]]:
    for batch in from_1(read):
        yield batch[:1]
        raise Crash


def test_what_was_there_before_is_kept_whole(old: Path) -> None:
    before = contents.verify(old, silent)
    RocksStorage.open(str(old), steps={1: from_1}).close()
    kept = contents.verify(old / KEPT, silent)
    assert (kept.format, kept.contents.queues) == (1, before.contents.queues)
    assert sum(kept.contents.queues.values()) > 50
    after = contents.verify(old, silent)
    assert (after.format, after.contents.queues) == (FORMAT_VERSION, before.contents.queues)


def test_a_migration_that_is_begun_again_keeps_the_first_copy(old: Path) -> None:
    with pytest.raises(StorageFailed):
        RocksStorage.open(str(old), steps={1: crashing})
    first = {file.name: file.read_bytes() for file in (old / KEPT).iterdir()}
    RocksStorage.open(str(old), steps={1: from_1}).close()
    assert {file.name: file.read_bytes() for file in (old / KEPT).iterdir()} == first
    assert first["FORMAT"] == b"1\n"


def test_without_a_copy_nothing_is_migrated(old: Path) -> None:
    (old / f"{KEPT}.partial").write_text("in the way")
    with pytest.raises(StorageFailed, match=r"not migrated .* go on with the Fila that wrote it"):
        RocksStorage.open(str(old), steps={1: from_1})
    assert contents.verify(old, silent).format == 1
    (old / f"{KEPT}.partial").unlink()
    RocksStorage.open(str(old), steps={1: from_1}).close()
    assert contents.verify(old, silent).format == FORMAT_VERSION


def test_a_directory_of_this_format_is_not_copied(tmp_path: Path) -> None:
    RocksStorage.open(str(tmp_path / "data")).close()
    RocksStorage.open(str(tmp_path / "data")).close()
    assert not (tmp_path / "data" / KEPT).exists()
