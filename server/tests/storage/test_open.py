# SPDX-License-Identifier: AGPL-3.0-only
"""Which directories the RocksDB store opens, and what it says of the others."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from fila_server.errors import StorageFailed
from fila_server.storage.api import Column
from fila_server.storage.directory import FORMAT_VERSION
from fila_server.storage.faults import explain
from fila_server.storage.rocks import RocksStorage
from fila_server.storage.watermark import Watermark

RECORDS = 20_000

StartChild = Callable[..., "subprocess.Popen[str]"]


def fill(path: Path) -> None:
    """Make a store with a file of records that was written out and synced."""
    store = RocksStorage.open(str(path))
    records = [(Column.MESSAGES, n.to_bytes(4, "big"), os.urandom(50)) for n in range(RECORDS)]
    store.write(records)
    store.close()


def refusal(path: Path) -> str:
    """Try to open, and return why it was refused: one line about the path, twice alike."""
    texts = []
    for _ in range(2):
        with pytest.raises(StorageFailed) as caught:
            RocksStorage.open(str(path))
        texts.append(caught.value.message)
    assert texts[0].partition(" (")[0] == texts[1].partition(" (")[0]
    assert "\n" not in texts[0]
    assert texts[0].startswith(f"{path}: ")
    return texts[0]


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write anywhere, so become nobody for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


# --- Directories ----------------------------------------------------------------------------------


def test_missing_directories_are_made_for_the_broker_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "data"
    RocksStorage.open(str(path)).close()
    assert path.stat().st_mode & 0o777 == 0o700
    assert (path / "FORMAT").read_text() == f"{FORMAT_VERSION}\n"


def test_a_relative_path_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    RocksStorage.open("./fila-data").close()
    RocksStorage.open("fila-data").close()
    assert (tmp_path / "fila-data" / "CURRENT").exists()


def test_the_root_of_a_fresh_volume_will_do(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "FORMAT.new").touch()  # a first start that was cut short
    (tmp_path / "fila.lock").touch()
    RocksStorage.open(str(tmp_path)).close()


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    text = refusal(tmp_path)
    assert "not empty (it holds 'thesis.tex')" in text
    assert "set server.data_dir to" in text
    assert {entry.name for entry in tmp_path.iterdir()} == {"thesis.tex", "fila.lock"}


@pytest.mark.parametrize("below", ["", "data"])
def test_a_file_in_the_way_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    assert "not a directory; set server.data_dir" in refusal(tmp_path / "file" / below)


@pytest.mark.parametrize("place", ["/proc/fila/data", "dangling"])
def test_a_directory_that_cannot_be_made_is_not_called_damaged(tmp_path: Path, place: str) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "deep")
    text = refusal(tmp_path / place)
    assert f"{tmp_path / place}: " in text and "damaged" not in text
    assert "set server.data_dir to " in text


@pytest.mark.parametrize("below", ["", "data"])
def test_a_directory_without_permission_is_named(tmp_path: Path, below: str) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with without_privileges():
        assert "no permission; let the broker's user" in refusal(closed / below)


# --- Formats --------------------------------------------------------------------------------------


def test_a_newer_format_is_refused_before_rocksdb_sees_it(tmp_path: Path) -> None:
    path = tmp_path / "data"
    fill(path)
    newer = FORMAT_VERSION + 1
    (path / "FORMAT").write_text(f"{newer}\n")
    before = {entry.name: entry.stat().st_mtime_ns for entry in path.iterdir()}
    text = f"written by a newer Fila (format {newer}, this one reads {FORMAT_VERSION}); upgrade"
    assert text in refusal(path)
    before.pop("fila.lock")
    assert before.items() <= {e.name: e.stat().st_mtime_ns for e in path.iterdir()}.items()


@pytest.mark.parametrize("content", ["", "0", "-1", "one", "\N{SUPERSCRIPT TWO}"])
def test_a_damaged_format_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "data"
    fill(path)
    (path / "FORMAT").write_text(content)
    assert "the file FORMAT is damaged; restore" in refusal(path)


# --- Locks ----------------------------------------------------------------------------------------


def test_a_directory_in_use_by_another_process_is_refused(
    tmp_path: Path, start_child: StartChild
) -> None:
    path = tmp_path / "data"
    child = start_child("hold", path)
    assert child.stdout is not None
    assert child.stdout.readline() == "opened 0\n"
    text = refusal(path)
    assert f"in use by the broker with process id {child.pid}; stop it, or set" in text
    child.communicate("")
    assert child.returncode == 0
    RocksStorage.open(str(path)).close()


def test_a_directory_in_use_by_this_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    store = RocksStorage.open(str(path))
    assert f"in use by the broker with process id {os.getpid()}; stop it" in refusal(path)
    store.close()
    RocksStorage.open(str(path)).close()


def test_a_directory_in_use_by_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    fill(path)
    watermark = Watermark(path / "WATERMARK", create=False)
    watermark.reset(0)  # nothing to check: straight to the open for writing
    watermark.close()
    stranger = Rdict(str(path), Options(raw_mode=True), _columns())
    assert "in use by another process; stop it" in refusal(path)
    stranger.close()
    RocksStorage.open(str(path)).close()


def _columns() -> dict[str, Options]:
    return {column.name.lower(): Options(raw_mode=True) for column in Column}


# --- Damage ---------------------------------------------------------------------------------------


def _garble(path: Path) -> None:
    middle = path.stat().st_size // 2
    with path.open("r+b") as file:
        file.seek(middle)
        file.write(b"\xa5" * 16)


def _halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _fill_with_garbage(path: Path) -> None:
    path.write_bytes(b"garbage")


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("CURRENT", Path.unlink),
        ("CURRENT", _fill_with_garbage),
        ("MANIFEST-*", Path.unlink),
        ("MANIFEST-*", _garble),
        ("MANIFEST-*", _halve),
        ("*.sst", Path.unlink),
        ("*.sst", _halve),
    ],
)
def test_a_damaged_store_is_refused(
    tmp_path: Path, pattern: str, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "data"
    fill(path)
    (victim,) = path.glob(pattern)
    damage(victim)
    text = refusal(path)
    assert "damaged" in text
    assert "; restore the directory from a copy (" in text


def test_a_damaged_block_is_no_silent_end_of_a_scan(tmp_path: Path) -> None:
    path = tmp_path / "data"
    fill(path)
    (victim,) = path.glob("*.sst")
    _garble(victim)
    store = RocksStorage.open(str(path))
    with pytest.raises(StorageFailed, match=r"damaged; restore the directory from a copy"):
        list(store.scan(Column.MESSAGES, b"", b"\xff" * 5))
    with pytest.raises(StorageFailed, match=r"damaged; restore the directory from a copy"):
        store.get_many(Column.MESSAGES, [n.to_bytes(4, "big") for n in range(RECORDS)])
    store.close()


def test_a_torn_file_of_rocksdict_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "data"
    fill(path)
    (path / "rocksdict-config.json").write_text('{"raw_mo')
    store = RocksStorage.open(str(path))
    assert sum(1 for _ in store.scan(Column.MESSAGES, b"", b"\xff" * 5)) == RECORDS
    store.close()


def test_a_directory_named_like_an_error_does_not_mislead() -> None:
    path = Path("/data/Corruption/LOCK")
    error = Exception(f"IO error: {path}/000001.sst:\n No space left on device")
    assert explain(path, error).message.startswith(f"{path}: the disk is full; free some space")
    late = Exception("IO error: Seen error. Skip writing buffer.")
    assert explain(path, late).message.startswith(f"{path}: the disk failed; check the disk")
    assert explain(path, Exception("odd")).message == f"{path}: storage failed (odd)"


# --- Bounds ---------------------------------------------------------------------------------------


def test_the_log_is_bounded_even_if_a_column_is_hardly_written(tmp_path: Path) -> None:
    path = tmp_path / "data"
    store = RocksStorage.open(str(path), write_buffer_bytes=65536)
    store.write([(Column.QUEUES, b"queue", b"once")])
    for n in range(400):
        store.write([(Column.MESSAGES, n.to_bytes(4, "big"), os.urandom(10_000))])
    total = 0
    for log in path.glob("*.log"):
        with suppress(FileNotFoundError):  # the store has just removed it
            total += log.stat().st_size
    assert total <= 10 * 65536  # of 4 MB that were written
    store.close()


def test_deleted_records_are_cleaned_up(tmp_path: Path) -> None:
    """Too few files for an ordinary compaction; it is the deletions that call for one."""
    path = tmp_path / "data"
    fill(path)
    store = RocksStorage.open(str(path))
    store.write([(Column.MESSAGES, n.to_bytes(4, "big"), None) for n in range(1, RECORDS)])
    store.close()
    store = RocksStorage.open(str(path))
    deadline = time.monotonic() + 20
    while _table_bytes(path) > 10_000:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert sum(1 for _ in store.scan(Column.MESSAGES, b"", b"\xff" * 5)) == 1
    store.close()


def _table_bytes(path: Path) -> int:
    total = 0
    for file in path.glob("*.sst"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            pass  # compacted away in between
    return total
