# SPDX-License-Identifier: AGPL-3.0-only
"""The store on RocksDB: one column family per column, one write batch per group.

Theory of operation. A write appends its batch to the log, which is in the system's hands once the
call returns. The fsync is a call of its own, for a thread of its own: it releases the interpreter
lock, writes hold it. An open looks at the store without changing it, refuses if it ends below the
watermark, and only then opens it for writing. Columns are flushed all at once (`atomic_flush`): if
each went on its own, one of them could carry the sequence number past the watermark while the log
that holds the others is gone, and the loss would pass unseen.

A write or an fsync that failed leaves memory and disk apart, so from then on every call raises the
first cause. Only opening anew helps.

This module knows nothing of messages, nor of when to sync. `faults.py` reads RocksDB's error texts.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import NoReturn, cast
from weakref import WeakSet

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from fila_server.errors import StorageFailed
from fila_server.storage.api import Column, Write
from fila_server.storage.directory import Directory
from fila_server.storage.faults import ACCEPT_LOSS, explain
from fila_server.storage.watermark import Watermark

MIB = 1024 * 1024

# How long a write waits for RocksDB to write out its buffers before the disk counts as failed. By
# then the deadlines of all callers have passed several times over.
STALL_LIMIT_S = 30.0
_STALL_PAUSE_S = 0.001
_STALL = "Write stall"

_NAMES = [column.name.lower() for column in Column]


class RocksStorage:
    """A `Storage` in a data directory. Make one with `open`."""

    def __init__(self, directory: Directory, watermark: Watermark, db: Rdict) -> None:
        self._directory = directory
        self._watermark = watermark
        self._db = db
        # Left to itself, RocksDB makes a writer wait with the interpreter lock held, even for
        # ever if the disk is full, and the whole process stands still.
        options = WriteOptions()
        options.no_slowdown = True
        db.set_write_options(options)
        # Indexed by column. Each entry keeps RocksDB open, so `close` must empty both lists.
        self._handles: list[ColumnFamily] = [db.get_column_family_handle(name) for name in _NAMES]
        self._tables: list[Rdict] = [db.get_column_family(name) for name in _NAMES]
        self._scans: WeakSet[_Scan] = WeakSet()
        self._failure = ""
        self._is_closed = False

    @staticmethod
    def open(
        path: str,
        *,
        block_cache_bytes: int = 64 * MIB,
        write_buffer_bytes: int = 64 * MIB,
        accept_data_loss: bool = False,
    ) -> "RocksStorage":
        """Open the store in the directory, or create both.

        With `accept_data_loss`, goes on with what is left where it would refuse because confirmed
        data is missing. Raises StorageFailed, with the directory as it was and free for others.
        """
        directory = Directory(Path(path))
        watermark: Watermark | None = None
        db: Rdict | None = None
        try:
            watermark = Watermark(directory.path / "WATERMARK")
            promised = watermark.sequence
            if promised and not accept_data_loss:
                _check_promise(directory.path, promised)
            options = _options(
                directory.path, block_cache_bytes, write_buffer_bytes, not accept_data_loss
            )
            db = Rdict(path, options, dict.fromkeys(_NAMES, options))
            reached = db.latest_sequence_number()
            if reached < promised:
                watermark.reset(reached)
            return RocksStorage(directory, watermark, db)
        except Exception as error:
            for opened in (db, watermark):
                if opened is not None:
                    opened.close()
            directory.release()
            if isinstance(error, StorageFailed):
                raise
            raise explain(directory.path, error) from error

    def write(self, writes: Sequence[Write]) -> None:
        """Apply all writes in order, atomically. Survives kill -9 once it returns."""
        if self._failure:
            raise StorageFailed(self._failure)
        deadline = 0.0
        while True:
            batch = self._batch(writes)
            if batch.is_empty():
                return
            try:
                self._db.write(batch)
                return
            except Exception as error:
                # Nothing was written, and the batch is used up.
                deadline = deadline or monotonic() + STALL_LIMIT_S
                if _STALL not in str(error) or monotonic() > deadline:
                    self._fail(error)
            sleep(_STALL_PAUSE_S)

    def sync(self) -> None:
        """Make what was written before this call survive power loss."""
        if self._failure:
            raise StorageFailed(self._failure)
        try:
            sequence = self._db.latest_sequence_number()
            self._db.flush_wal(True)
            self._watermark.advance(sequence)
        except Exception as error:
            self._fail(error)

    def get_many(self, column: Column, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values in the order of the keys, None where a key is not stored."""
        if self._failure:
            raise StorageFailed(self._failure)
        try:
            return cast("list[bytes | None]", self._tables[column].get(list(keys)))
        except Exception as error:
            raise explain(self._directory.path, error) from error

    def scan(self, column: Column, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records with start <= key < end as they are at the time of this call."""
        if self._failure:
            raise StorageFailed(self._failure)
        bounds = ReadOptions()
        bounds.set_iterate_lower_bound(start)
        bounds.set_iterate_upper_bound(end)
        scan = _Scan(self._directory.path, self._tables[column].iter(bounds), bounds, start)
        self._scans.add(scan)
        return scan

    def free_bytes(self) -> int:
        """Return the space left on the data volume."""
        if self._failure:
            raise StorageFailed(self._failure)
        return self._directory.free_bytes()

    def close(self) -> None:
        """Sync and release everything, so that the same process can open the store again.

        Raises StorageFailed if the sync fails; everything is released all the same. Harmless twice.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if not self._failure:
                self.sync()
        finally:
            self._release()
            self._failure = self._failure or f"{self._directory.path}: the store is closed"

    def _batch(self, writes: Sequence[Write]) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        put, delete, handles = batch.put, batch.delete, self._handles
        try:
            for column, key, value in writes:
                if isinstance(value, bytes):
                    put(key, value, handles[column])
                elif value is None:
                    delete(key, handles[column])
                elif key < value.end:
                    batch.delete_range(key, value.end, handles[column])
                # Else the range is empty. RocksDB would fail for good on an inverted one, and count
                # a sequence number that recovery does not for an empty one.
        except (AttributeError, KeyError, ValueError) as error:
            raise TypeError("only bytes can be stored") from error
        return batch

    def _fail(self, error: Exception) -> NoReturn:
        failure = explain(self._directory.path, error)
        self._failure = failure.message
        raise failure from error

    def _release(self) -> None:
        for scan in self._scans:
            scan.end()
        self._handles.clear()
        for table in (*self._tables, self._db):
            try:
                table.close()
            except Exception:
                pass  # It wrote memory out, which the log makes up for, and let go nevertheless.
        self._tables.clear()
        self._watermark.close()
        self._directory.release()


class _Scan:
    """A bounded iterator that the store can end, because RocksDB stays open while one is alive.

    rocksdict's own `items()` ends without a word at a block that cannot be read. And its iterators
    point to the bounds without holding them: let go of too early, they are whatever took their
    place in memory, and the scan runs on into what follows.
    """

    __slots__ = ("__weakref__", "_bounds", "_path", "_rows")

    def __init__(self, path: Path, rows: RdictIter, bounds: ReadOptions, start: bytes) -> None:
        self._path = path
        self._bounds = bounds
        self._rows: RdictIter | None = rows
        rows.seek(start)

    def __iter__(self) -> "_Scan":
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        rows = self._rows
        if rows is None:
            raise StorageFailed(f"{self._path}: the store is closed")
        if rows.valid():
            row = (rows.key(), rows.value())
            rows.next()
            return row
        try:
            rows.status()
        except Exception as error:
            raise explain(self._path, error) from error
        raise StopIteration

    def end(self) -> None:
        self._rows = None


def _check_promise(path: Path, promised: int) -> None:
    """Raise StorageFailed if the store ends below the promise, and leave it as it is.

    Opened for writing, RocksDB would drop what follows the damage, and a log that somebody puts
    back would no longer be read.
    """
    options = _options(path, MIB, MIB, True)
    columns = dict.fromkeys(_NAMES, options)
    db = Rdict(str(path), options, columns, AccessType.read_only(False))
    reached = db.latest_sequence_number()
    db.close()
    if reached < promised:
        raise StorageFailed(
            f"{path}: the log ends at sequence {reached}, but {promised} was confirmed as durable; "
            f"{ACCEPT_LOSS}"
        )


def _options(
    path: Path, block_cache_bytes: int, write_buffer_bytes: int, check_logs: bool
) -> Options:
    """The options of the database and of every column alike."""
    options = _with_log_check(path) if check_logs else Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_atomic_flush(True)

    # A write that RocksDB holds back holds the interpreter lock too, so the marks at which it slows
    # and stops writers are far above what background work falls behind by.
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_write_buffer_number(6)
    options.set_db_write_buffer_size(3 * write_buffer_bytes)
    options.set_max_total_wal_size(4 * write_buffer_bytes)
    options.set_level_zero_slowdown_writes_trigger(40)
    options.set_level_zero_stop_writes_trigger(80)
    options.set_max_background_jobs(2)
    options.set_avoid_unnecessary_blocking_io(True)
    # Written out bit by bit; otherwise the log's fsync waits for a whole flush of another file.
    options.set_bytes_per_sync(MIB)

    # Queues leave deleted keys behind: rewrite a file in which half of 10,000 neighbours are.
    options.add_compact_on_deletion_collector_factory(10_000, 5000, 0.5)
    options.set_compression_type(DBCompressionType.lz4())
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(block_cache_bytes))
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)

    # Bounded: file handles, RocksDB's own log, its manifest.
    options.set_max_open_files(512)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(8 * MIB)
    options.set_max_manifest_file_size(16 * MIB)
    return options


def _with_log_check(path: Path) -> Options:
    """Options under which RocksDB notes each finished log in its manifest, and misses a lost one.

    The watermark cannot tell that a log is gone while a later one is there. rocksdict has no call
    for this option, but it reads option files.
    """
    folder = path / "options"
    folder.mkdir(exist_ok=True)
    (folder / "rocksdict-config.json").write_text('{"raw_mode":true,"prefix_extractors":{}}')
    (folder / "OPTIONS-000001").write_text(_LOG_CHECK)
    options, _ = Options.load_latest(str(folder))
    return options


_LOG_CHECK = """\
[Version]
  rocksdb_version=9.8.4
  options_file_version=1.1
[DBOptions]
  track_and_verify_wals_in_manifest=true
[CFOptions "default"]
"""
