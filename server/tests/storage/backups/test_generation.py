# SPDX-License-Identifier: AGPL-3.0-only
"""A backup of a store that is being written: complete, shared with the one before, or nothing."""

import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fila_server.errors import DiskFull, StorageFailed
from fila_server.limits import MIB
from fila_server.storage.backups import catalog, contents
from fila_server.storage.backups.contents import Tell
from fila_server.storage.backups.generation import Made, make_generation
from fila_server.storage.rocks import RocksStorage
from server.tests.storage.backups.conftest import message, silent
from server.tests.torture.volume import volume

TIB = 1 << 40


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_a_backup_holds_every_message_and_opens_as_a_store(back_up: Callable[[], Made]) -> None:
    made = back_up()
    assert made.messages == 100
    verified = contents.verify(made.path, silent)
    assert verified.contents.queues == {"orders": 100, "orders.dlq": 0}
    before = names(made.path)
    store = RocksStorage.open(str(made.path))
    store.close()
    assert catalog.NAME in before
    assert catalog.NAME not in names(made.path)  # it is a data directory now


def test_a_second_backup_copies_only_what_is_new(
    store: RocksStorage, back_up: Callable[[], Made]
) -> None:
    for start in range(1000, 21_000, 1000):
        store.write([message(1, number, os.urandom(100)) for number in range(start, start + 1000)])
    store.reclaim()
    first = back_up()
    store.write([message(1, 50_000)])
    second = back_up()
    assert second.messages == first.messages + 1
    assert first.copied_bytes > 2_000_000
    assert second.copied_bytes < 100_000
    shared = [name for name in names(second.path) if (second.path / name).stat().st_nlink > 1]
    assert shared and all(name.endswith(".sst") for name in shared)


def test_a_generation_can_be_deleted_without_harm_to_the_next(
    store: RocksStorage, back_up: Callable[[], Made]
) -> None:
    first = back_up()
    second = back_up()
    for entry in first.path.iterdir():
        entry.unlink()
    assert contents.verify(second.path, silent).contents.messages == 100


def test_tables_of_another_store_are_not_taken_for_equal(
    store: RocksStorage, back_up: Callable[[], Made], tmp_path: Path
) -> None:
    first = back_up()
    table = max(first.path.glob("*.sst"), key=lambda table: table.stat().st_size)
    content = bytearray(table.read_bytes())
    known = catalog.read(first.path)
    assert known is not None
    content[10] ^= 1
    table.write_bytes(content)
    entries = tuple(
        catalog.Entry(e.name, e.bytes, "0" * 64) if e.name == table.name else e for e in known.files
    )
    (first.path / catalog.NAME).unlink()
    replace(known, files=entries).write(first.path)
    second = back_up()
    assert (second.path / table.name).stat().st_nlink == 1
    assert contents.verify(second.path, silent).contents.messages == 100


def test_backups_are_whole_while_the_store_is_written_and_merged(
    store: RocksStorage, tmp_path: Path
) -> None:
    """Small buffers: tables come and go, logs are cut, the manifest grows all the time."""
    over = threading.Event()
    written = [100]

    def write() -> None:
        number = 1000
        while not over.is_set():
            store.write([message(1, number + n, os.urandom(100)) for n in range(100)])
            store.sync()
            number += 100
            written[0] += 100

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(6):
            least, sequence = written[0], store._db.latest_sequence_number()
            made = make_generation(
                tmp_path / "data",
                tmp_path / "backups",
                sequence=sequence,
                floor_bytes=0,
                tell=silent,
            )
            assert made.messages >= least
            contents.verify(made.path, silent)
            store.reclaim()
    finally:
        over.set()
        writer.join()


def test_what_was_cut_short_is_cleared_away_and_nothing_else(
    back_up: Callable[[], Made], tmp_path: Path
) -> None:
    backups = tmp_path / "backups"
    (backups / "20260101-000000Z.partial").mkdir(parents=True)
    (backups / "20260101-000000Z.partial" / "000001.sst").write_bytes(b"half")
    (backups / "mine.partial").mkdir()
    made = back_up()
    assert names(backups) == sorted([made.path.name, "mine.partial"])


def test_a_backup_that_would_break_the_floor_is_refused_and_leaves_nothing(
    store: RocksStorage, tmp_path: Path
) -> None:
    with pytest.raises(DiskFull, match="deleting old backups"):
        make_generation(
            tmp_path / "data", tmp_path / "backups", sequence=0, floor_bytes=TIB, tell=silent
        )
    assert names(tmp_path / "backups") == []
    store.write([message(1, 5000)])


@pytest.mark.parametrize("phase", ["copy", "verify"])
def test_a_volume_that_fills_up_meanwhile_keeps_the_earlier_backup_and_nothing_else(
    store: RocksStorage, tmp_path: Path, phase: str
) -> None:
    with volume(tmp_path, 8 * MIB) as small:
        ballast = small.path / "ballast"

        def make(tell: Tell) -> Made:
            data, backups = tmp_path / "data", small.path / "backups"
            return make_generation(
                data, backups, sequence=store.write_out(), floor_bytes=0, tell=tell
            )

        def fill(now: str, done: int, total: int) -> None:
            if now == phase and done and not ballast.exists():
                with ballast.open("wb", buffering=0) as file, suppress(OSError):
                    while file.write(os.urandom(4096)):
                        pass

        first = make(silent)
        store.write([message(1, number, os.urandom(100)) for number in range(1000, 11_000)])
        with pytest.raises(DiskFull) as caught:
            make(fill)
        text = str(caught.value)
        assert text.startswith(f"{small.path / 'backups'}: ")
        needed = int(re.findall(r"takes ([0-9,]+) bytes", text)[0].replace(",", ""))
        assert needed > MIB
        assert names(small.path / "backups") == [first.path.name]
        assert contents.verify(first.path, silent).contents.messages == 100
        ballast.unlink()
        store.write([message(1, 20_000)])
        again = make(silent)
        assert contents.verify(again.path, silent).contents.messages == 10_101


def test_a_volume_without_room_for_another_file_is_named(
    store: RocksStorage, tmp_path: Path
) -> None:
    with volume(tmp_path, 8 * MIB, files=5) as small:
        backups = small.path / "backups"
        with pytest.raises(DiskFull, match=r"too many files \(df -i\)") as caught:
            make_generation(tmp_path / "data", backups, sequence=0, floor_bytes=0, tell=silent)
        assert str(caught.value).startswith(f"{backups}: the volume was full before")
        assert names(backups) == []


def test_a_backup_that_lacks_what_was_written_is_refused_and_leaves_nothing(
    store: RocksStorage, tmp_path: Path
) -> None:
    with pytest.raises(StorageFailed, match="the copy ends at sequence"):
        make_generation(
            tmp_path / "data", tmp_path / "backups", sequence=TIB, floor_bytes=0, tell=silent
        )
    assert names(tmp_path / "backups") == []


def test_two_backups_into_one_directory_exclude_each_other(
    store: RocksStorage, tmp_path: Path
) -> None:
    seen: list[str] = []

    def tell(phase: str, done: int, total: int) -> None:
        if not seen:
            seen.append(phase)
            with pytest.raises(StorageFailed, match="another backup into it is under way"):
                make_generation(
                    tmp_path / "data", tmp_path / "backups", sequence=0, floor_bytes=0, tell=silent
                )

    make_generation(tmp_path / "data", tmp_path / "backups", sequence=0, floor_bytes=0, tell=tell)
    assert seen
