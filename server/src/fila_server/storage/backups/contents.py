# SPDX-License-Identifier: AGPL-3.0-only
"""Reads all of a store that nobody is writing, and changes nothing: a backup, or a data directory
whose broker is stopped.

RocksDB compares the checksum of every block that it reads, and here every record is parsed. RocksDB
writes into a directory even if it only reads, so it is shown a directory of links.
"""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import DecodeError
from rocksdict import AccessType, Rdict

from fila_server.core.names import counted
from fila_server.core.wire.parsers import PARSERS
from fila_server.core.wire.records_pb2 import StoredQueue
from fila_server.errors import StorageFailed
from fila_server.limits import MIB
from fila_server.storage.api import Column
from fila_server.storage.backups import catalog, files
from fila_server.storage.directory import FORMAT_VERSION, RESTORING, format_of
from fila_server.storage.faults import explain
from fila_server.storage.inspection import check_logs
from fila_server.storage.manifest import check_manifest
from fila_server.storage.tuning import make_options
from fila_server.storage.watermark import Extent, Watermark

# Told of a phase, and how many of its bytes are done.
Tell = Callable[[str, int, int], None]

_NAMES = [column.name.lower() for column in Column]
# Between two words on how far it is.
_RECORDS = 5000
# What RocksDB needs of a directory to read it.
_PARTS = ("CURRENT", "MANIFEST-*", "*.sst", "*.log")


@dataclass(slots=True)
class Contents:
    """What is in a store."""

    sequence: int = 0
    records: int = 0
    messages: int = 0
    queues: dict[str, int] = field(default_factory=dict)  # messages by queue
    tables: frozenset[str] = frozenset()  # the names of the files that are part of it


@dataclass(frozen=True, slots=True)
class Verified:
    """What a directory holds that was found whole. `made` is what a backup says of itself."""

    format: int
    contents: Contents
    bytes: int
    made: catalog.Catalog | None


def verify(path: Path, tell: Tell) -> Verified:
    """Read every file and record of a backup or a data directory.

    Raises StorageFailed that names what is damaged, or that a broker uses the directory.
    """
    try:
        with _unused(path):
            return _verify(path, tell)
    except OSError as error:
        raise explain(path, error) from error


def _verify(path: Path, tell: Tell) -> Verified:
    if (path / RESTORING).exists():
        raise StorageFailed(f"{path}: a restore into it was cut short; run `fila restore` again")
    made = catalog.read(path)
    if made is not None:
        progress = _Counted("checksums", sum(entry.bytes for entry in made.files), tell)
        catalog.check_files(path, made, progress.add)
    try:
        version = format_of(path)
    except FileNotFoundError as error:
        raise StorageFailed(
            f"{path}: neither a backup nor a data directory: the file FORMAT is missing"
        ) from error
    size = sum(file.stat().st_size for part in _PARTS for file in path.glob(part))
    promised, noted = _promised(path)
    check_manifest(path, noted)  # first: RocksDB may never return from what these find
    check_logs(path, accept_data_loss=False)
    contents = read(path, version, size, tell)
    if contents.sequence < promised:
        raise StorageFailed(
            f"{path}: damaged: it ends at sequence {contents.sequence}, but {promised} was"
            " confirmed as durable"
        )
    if made is not None and (made.sequence, made.messages) != (
        contents.sequence,
        contents.messages,
    ):
        raise catalog.damaged(
            path,
            f"it holds {counted(contents.messages, 'message')} up to sequence"
            f" {contents.sequence}, and {made.messages} up to {made.sequence} were put into it",
        )
    return Verified(version, contents, size, made)


def read(path: Path, version: int, size: int, tell: Tell) -> Contents:
    """Read every record of a store of a format. Raises StorageFailed."""
    with _links(path) as linked:
        try:
            return _read(linked, version, size, tell)
        except StorageFailed:
            raise
        except (DecodeError, UnicodeDecodeError) as error:
            raise StorageFailed(f"{path}: damaged: a record cannot be decoded ({error})") from error
        except Exception as error:  # rocksdict raises plain ones
            told = Exception(str(error).replace(str(linked), str(path)))
            raise explain(path, told) from error


def _read(path: Path, version: int, size: int, tell: Tell) -> Contents:
    options = make_options(path, 8 * MIB, MIB, check_logs=True)
    store = Rdict(str(path), options, dict.fromkeys(_NAMES, options), AccessType.read_only(False))
    try:
        tables = [store.get_column_family(name) for name in _NAMES]
        found = Contents(
            sequence=store.latest_sequence_number(),
            tables=frozenset(file["name"].lstrip("/") for file in store.live_files()),
        )
        expected = sum(_estimated(table) for table in tables)

        def rows_of(table: Rdict) -> Iterator[tuple[bytes, bytes]]:
            for row in _rows(table):
                found.records += 1
                if found.records % _RECORDS == 0:
                    tell("verify", int(size * min(1.0, found.records / max(1, expected))), size)
                yield row

        names: dict[bytes, str] = {}
        for key, value in rows_of(tables[Column.QUEUES]):
            PARSERS[Column.QUEUES](key, value)
            names[key] = StoredQueue.FromString(value).name
        # Messages of a queue that is gone are cleared away bit by bit, and count no more.
        held = dict.fromkeys(names, 0)
        for column in (Column.MESSAGES, Column.RETRIES, Column.LEASES, Column.IDEMPOTENCY):
            parse = PARSERS[column]
            for key, value in rows_of(tables[column]):
                parse(key, value)
                if column is Column.MESSAGES and key[:4] in held:
                    held[key[:4]] += 1
        for key, value in rows_of(tables[Column.STATE]):
            if version == FORMAT_VERSION:  # before, it was stored in other ways
                PARSERS[Column.STATE](key, value)
        for _ in rows_of(store):  # RocksDB's own column, which holds next to nothing
            pass
        found.queues = {name: held[key] for key, name in names.items()}
        found.messages = sum(held.values())
        tell("verify", size, size)
        return found
    finally:
        store.close()


def _estimated(table: Rdict) -> int:
    return table.property_int_value("rocksdb.estimate-num-keys") or 0


def _rows(table: Rdict) -> Iterator[tuple[bytes, bytes]]:
    rows = table.iter()
    rows.seek_to_first()
    while rows.valid():
        yield rows.key(), rows.value()
        rows.next()
    rows.status()  # an error looks like the end


# --- The directory --------------------------------------------------------------------------------


@contextmanager
def _unused(path: Path) -> Iterator[None]:
    """Keep brokers out, and refuse if there is one. A backup has no lock, and needs none."""
    try:
        lock = os.open(path / "fila.lock", os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        owner = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
        raise StorageFailed(
            f"{path}: in use by the broker with process id {owner}; stop it first, or make a"
            " backup and verify that"
        ) from error
    finally:
        os.close(lock)


@contextmanager
def _links(path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fila-verify-") as folder:
        for part in _PARTS:
            for file in path.glob(part):
                os.symlink(file.absolute(), Path(folder, file.name))
        if not Path(folder, "CURRENT").exists():
            raise StorageFailed(f"{path}: damaged: the file CURRENT is missing")
        yield Path(folder)


def _promised(path: Path) -> tuple[int, Extent]:
    """Return what was confirmed as durable, and what was noted of the manifest.

    The file is copied first: it is opened for writing.
    """
    with tempfile.TemporaryDirectory(prefix="fila-verify-") as folder:
        copied = Path(folder, "WATERMARK")
        try:
            files.put(copied, (path / "WATERMARK").read_bytes())
        except FileNotFoundError as error:
            raise StorageFailed(f"{path}: damaged: the file WATERMARK is missing") from error
        watermark = Watermark(copied, create=False)
        watermark.close()
        if not watermark.is_readable:
            raise StorageFailed(f"{path}: damaged: the file WATERMARK cannot be read")
        return watermark.sequence, watermark.extent


class _Counted:
    """Adds bytes up, and tells."""

    def __init__(self, phase: str, total: int, tell: Tell) -> None:
        self._phase = phase
        self._total = total
        self._tell = tell
        self._done = 0

    def add(self, count: int) -> None:
        self._done += count
        self._tell(self._phase, self._done, self._total)
