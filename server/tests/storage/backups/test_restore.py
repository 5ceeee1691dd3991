# SPDX-License-Identifier: AGPL-3.0-only
"""Damage to any file of a backup is named, and never restored; a restore is whole or refused."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fila_server.errors import StorageFailed
from fila_server.storage.backups import catalog, contents
from fila_server.storage.backups.generation import Made, make_generation
from fila_server.storage.backups.restore import restore
from fila_server.storage.directory import FORMAT_VERSION, RESTORING
from fila_server.storage.rocks import RocksStorage
from server.tests.storage.backups.conftest import message, queue, silent
from server.tests.storage.record_headers import KIND, headers

KINDS = ["*.sst", "*.log", "MANIFEST-*", "CURRENT", "FORMAT", "WATERMARK", catalog.NAME]


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def remove(file: Path) -> None:
    file.unlink()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A backup whose log is not empty: the last message was written out by nobody."""
    folder = tmp_path_factory.mktemp("original")
    store = RocksStorage.open(str(folder / "data"))
    store.write([queue(1, "orders"), *(message(1, number) for number in range(100))])
    store.write_out()
    store.write([message(1, 700)])
    made = make_generation(
        folder / "data", folder / "backups", sequence=0, floor_bytes=0, tell=silent
    )
    store.close()
    return made


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    """A backup to do anything with."""
    path = tmp_path / original.path.name
    shutil.copytree(original.path, path)
    return replace(original, path=path)


@pytest.mark.parametrize("harm", [flip, cut, remove])
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_named_and_not_restored(
    made: Made, tmp_path: Path, kind: str, harm: Callable[[Path], None]
) -> None:
    file = max(made.path.glob(kind), key=lambda file: file.stat().st_size)
    assert file.stat().st_size > 0
    harm(file)
    with pytest.raises(StorageFailed) as caught:
        restore(made.path, tmp_path / "new", silent)
    assert file.name in caught.value.message
    assert not (tmp_path / "new").exists()
    if (kind, harm) != (catalog.NAME, remove):  # then it is a data directory like any other
        with pytest.raises(StorageFailed) as caught:
            contents.verify(made.path, silent)
        assert file.name in caught.value.message


@pytest.mark.parametrize("kind", ["*.sst", "MANIFEST-*", "CURRENT", "FORMAT", "WATERMARK"])
def test_a_file_that_is_missing_from_a_data_directory_is_noticed(made: Made, kind: str) -> None:
    (made.path / catalog.NAME).unlink()
    max(made.path.glob(kind), key=lambda file: file.stat().st_size).unlink()
    with pytest.raises(StorageFailed):
        contents.verify(made.path, silent)


def test_a_restored_directory_has_everything_and_shares_no_file(made: Made, tmp_path: Path) -> None:
    restored = restore(made.path, tmp_path / "new", silent)
    assert restored.contents.messages == made.messages == 101
    assert {file.stat().st_nlink for file in (tmp_path / "new").iterdir()} == {1}
    assert contents.verify(tmp_path / "new", silent).contents == restored.contents
    store = RocksStorage.open(str(tmp_path / "new"))
    store.close()


def test_verifying_changes_nothing(made: Made) -> None:
    def state() -> list[tuple[str, int, bytes]]:
        return [
            (file.name, file.stat().st_mtime_ns, file.read_bytes())
            for file in sorted(made.path.iterdir())
        ]

    before = state()
    contents.verify(made.path, silent)
    assert state() == before


def test_a_newer_format_is_refused_by_name(made: Made, tmp_path: Path) -> None:
    (made.path / catalog.NAME).unlink()
    (made.path / "FORMAT").write_text(f"{FORMAT_VERSION + 1}\n")
    for attempt in (
        lambda: contents.verify(made.path, silent),
        lambda: restore(made.path, tmp_path / "new", silent),
        lambda: RocksStorage.open(str(made.path)),
    ):
        with pytest.raises(StorageFailed, match=f"newer Fila .format {FORMAT_VERSION + 1}"):
            attempt()


def test_a_directory_that_holds_something_is_refused(made: Made, tmp_path: Path) -> None:
    target = tmp_path / "new"
    target.mkdir()
    (target / "lost+found").mkdir()
    (target / "notes.txt").write_text("mine")
    with pytest.raises(StorageFailed, match=r"not empty \(it holds 'notes.txt'\)"):
        restore(made.path, target, silent)
    assert (target / "notes.txt").read_text() == "mine"
    (target / "notes.txt").unlink()
    restore(made.path, target, silent)


def test_a_directory_in_use_is_refused(made: Made, tmp_path: Path) -> None:
    store = RocksStorage.open(str(tmp_path / "data"))
    with pytest.raises(StorageFailed, match="not empty"):
        restore(made.path, tmp_path / "data", silent)
    with pytest.raises(StorageFailed, match="in use by the broker with process id"):
        contents.verify(tmp_path / "data", silent)
    store.close()


def test_a_data_directory_is_no_backup(made: Made, tmp_path: Path) -> None:
    (made.path / catalog.NAME).unlink()
    with pytest.raises(StorageFailed, match="no backup"):
        restore(made.path, tmp_path / "new", silent)


def test_a_restore_that_was_cut_short_is_refused_by_name(made: Made, tmp_path: Path) -> None:
    target = tmp_path / "new"

    class Cut(BaseException):
        pass

    def tell(phase: str, done: int, total: int) -> None:
        if phase == "copy" and done == total:  # all is there but the end
            raise Cut

    with pytest.raises(Cut):
        restore(made.path, target, tell)
    assert (target / RESTORING).exists()
    with pytest.raises(StorageFailed, match="a restore into it was cut short"):
        RocksStorage.open(str(target))
    with pytest.raises(StorageFailed, match="cut short"):
        restore(made.path, target, silent)
    shutil.rmtree(target)
    restore(made.path, target, silent)


def test_a_backup_cannot_be_restored_into_itself(made: Made) -> None:
    with pytest.raises(StorageFailed, match="inside the backup"):
        restore(made.path, made.path / "data", silent)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", ["*.log", "MANIFEST-*"])
def test_what_rocksdb_would_read_for_ever_is_named(
    store: RocksStorage, tmp_path: Path, part: str
) -> None:
    """A flipped bit in the kind of a record, in the directory that a killed broker left."""
    left = tmp_path / "left"
    shutil.copytree(tmp_path / "data", left)
    file = max(left.glob(part), key=lambda it: it.stat().st_size)
    content = bytearray(file.read_bytes())
    content[headers(content)[0] + KIND] = 5
    file.write_bytes(content)
    with pytest.raises(StorageFailed, match=file.name):
        contents.verify(left, silent)
