# SPDX-License-Identifier: AGPL-3.0-only
"""From one format to the next: in order, batch by batch, again after a crash, never half done.

Old records here are lower case, new ones upper case; `x` moves to another key.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fila_server.errors import StorageFailed
from fila_server.storage import directory, rocks
from fila_server.storage.api import Column, Reader, Write
from fila_server.storage.migration import Steps
from fila_server.storage.rocks import RocksStorage

END = b"\xff"
OLD = {b"a": b"old", b"b": b"old", b"c": b"new ALREADY".upper(), b"x": b"old", b"z": b"old"}
NEW = {b"a": b"OLD", b"b": b"OLD", b"c": b"NEW ALREADY", b"y": b"OLD", b"z": b"OLD"}


class Crash(Exception):
    pass


def from_1(read: Reader) -> Iterator[Sequence[Write]]:
    """A record is changed in one batch, and one that is new already is left alone."""
    for key, value in read.scan(Column.MESSAGES, b"", END):
        if value.islower():
            moved = b"y" if key == b"x" else key
            yield [(Column.MESSAGES, key, None), (Column.MESSAGES, moved, value.upper())]


def from_2(read: Reader) -> Iterator[Sequence[Write]]:
    count = sum(1 for _ in read.scan(Column.MESSAGES, b"", END))
    yield [(Column.STATE, b"count", b"%d" % count)]


def interrupted(step: int, after: int) -> Steps:
    """The steps, one of which crashes after so many batches."""

    def crashing(read: Reader) -> Iterator[Sequence[Write]]:
        for number, batch in enumerate((from_1, from_2)[step - 1](read)):
            if number == after:
                break
            yield batch
        raise Crash

    return {1: from_1, 2: from_2, step: crashing}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory of format 1."""
    path = tmp_path / "data"
    store = RocksStorage.open(str(path))
    store.write([(Column.MESSAGES, key, value) for key, value in OLD.items()])
    store.close()
    (path / "FORMAT").write_text("1\n")
    return path


@pytest.fixture
def newest(monkeypatch: pytest.MonkeyPatch) -> int:
    """Make this broker's format the third."""
    monkeypatch.setattr(directory, "FORMAT_VERSION", 3)
    monkeypatch.setattr(rocks, "FORMAT_VERSION", 3)
    monkeypatch.setattr("fila_server.storage.inspection.FORMAT_VERSION", 3)
    return 3


def content(store: RocksStorage) -> dict[bytes, bytes]:
    return dict(store.scan(Column.MESSAGES, b"", END))


def test_a_directory_goes_through_all_steps(path: Path, newest: int) -> None:
    store = RocksStorage.open(str(path), steps={1: from_1, 2: from_2})
    assert content(store) == NEW
    assert store.get_many(Column.STATE, [b"count"]) == [b"5"]
    assert (path / "FORMAT").read_text() == "3\n"
    store.close()
    store = RocksStorage.open(str(path))
    assert content(store) == NEW
    store.close()


@pytest.mark.parametrize("after", range(6))
def test_a_step_that_was_interrupted_runs_again(path: Path, newest: int, after: int) -> None:
    for _ in range(2):
        with pytest.raises(StorageFailed):
            RocksStorage.open(str(path), steps=interrupted(1, after))
        assert (path / "FORMAT").read_text() == "1\n"
    store = RocksStorage.open(str(path), steps={1: from_1, 2: from_2})
    assert content(store) == NEW
    store.close()


def test_steps_that_were_done_are_not_repeated(path: Path, newest: int) -> None:
    with pytest.raises(StorageFailed):
        RocksStorage.open(str(path), steps=interrupted(2, 0))
    assert (path / "FORMAT").read_text() == "2\n"
    store = RocksStorage.open(str(path), steps={2: from_2})
    assert content(store) == NEW
    store.close()


def test_a_format_that_no_step_leads_from_is_refused(path: Path, newest: int) -> None:
    with pytest.raises(StorageFailed, match=r"older Fila \(format 1, this one reads 3\); start a"):
        RocksStorage.open(str(path), steps={1: from_1})
    assert (path / "FORMAT").read_text() == "1\n"
    (path / "FORMAT").write_text("4\n")
    with pytest.raises(StorageFailed, match=r"newer Fila \(format 4, this one reads 3\); upgrade"):
        RocksStorage.open(str(path), steps={1: from_1, 2: from_2})


def test_a_new_directory_needs_no_step(tmp_path: Path, newest: int) -> None:
    RocksStorage.open(str(tmp_path / "new")).close()
    assert (tmp_path / "new" / "FORMAT").read_text() == "3\n"


def test_who_waits_is_told_how_far_it_is(
    path: Path, newest: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fila_server.storage.migration._REPORT_S", 0.0)
    caplog.set_level(logging.INFO)
    RocksStorage.open(str(path), steps={1: from_1, 2: from_2}).close()
    messages = [record.message for record in caplog.records]
    kept = path / "before-format-3"
    assert messages[0] == f"format 1 is kept in {kept}; remove it when you no longer need it"
    assert messages[1] == "migrating from format 1 to 2: about 5 records"
    assert "migrating from format 1 to 2: 2 of about 5 records read" in messages
    assert "migrated from format 1 to 2 in 0 s: 8 writes" in messages
