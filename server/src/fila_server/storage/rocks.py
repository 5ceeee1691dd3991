# SPDX-License-Identifier: AGPL-3.0-only
"""The store on RocksDB: one column family per column, one write batch per group.

Theory of operation. A write appends its batch to the log, which is in the system's hands once the
call returns. The fsync is a call of its own, for a thread of its own: it releases the interpreter
lock, writes hold it. An open looks at the files before RocksDB does, which believes a manifest that
was cut and never returns from some others; then at the store without changing it; it refuses what
ends below the watermark, and only then opens for writing. Columns are flushed all at once
(`atomic_flush`): if each went on its own, one of them could carry the sequence number past the
watermark while the log that holds the others is gone, and the loss would pass unseen.

A write or an fsync that failed leaves memory and disk apart, so from then on every call raises the
first cause. Only opening anew helps. The exception is a lack of descriptors, before which nothing
is written: RocksDB gives up then too, so it is opened anew in place, and the write tried again.

This module knows nothing of messages, nor of when to sync. `faults.py` reads RocksDB's error texts.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from types import MappingProxyType
from typing import NoReturn, cast
from weakref import WeakSet

from rocksdict import ColumnFamily, Rdict, WriteBatch, WriteOptions

from fila_server.errors import StorageFailed
from fila_server.storage import tuning
from fila_server.storage.api import Column, Figures, Space, Write
from fila_server.storage.backups import catalog
from fila_server.storage.backups.keepsake import keep_before_migration
from fila_server.storage.directory import FORMAT_VERSION, Directory
from fila_server.storage.faults import explain, is_out_of_files, is_stall
from fila_server.storage.inspection import (
    check_logs,
    check_promise,
    check_steps,
    make_room,
    open_watermark,
)
from fila_server.storage.manifest import Manifest, check_manifest
from fila_server.storage.migration import Steps, run_step
from fila_server.storage.reserve import Reserve
from fila_server.storage.scan import Scan
from fila_server.storage.tuning import MIB
from fila_server.storage.watermark import Watermark

# Ranges that were deleted whole and wait to be merged; older ones are left to RocksDB.
_RANGES_MAX = 1000

_NAMES = [column.name.lower() for column in Column]


class RocksStorage:
    """A `Storage` in a data directory. Make one with `open`."""

    def __init__(
        self,
        directory: Directory,
        watermark: Watermark,
        open_db: Callable[[], Rdict],
        write_buffer_bytes: int,
    ) -> None:
        self._directory = directory
        self._watermark = watermark
        self._manifest = Manifest(directory.path)
        self._open_db = open_db
        self._write_buffer_bytes = write_buffer_bytes
        self._reserve = Reserve(directory.path / "RESERVE")
        self.reserve_bytes = tuning.reserve_bytes(write_buffer_bytes)
        # Indexed by column. Each entry keeps RocksDB open, so whoever closes must empty both lists.
        self._handles: list[ColumnFamily] = []
        self._tables: list[Rdict] = []
        self._scans: WeakSet[Scan] = WeakSet()
        self._emptied: deque[tuple[Column, bytes, bytes]] = deque(maxlen=_RANGES_MAX)
        # Threads that `sync`, `settle`, `reclaim` or `write_out`, against an open anew or a close.
        self._syncing = Lock()
        self._reclaiming = Lock()
        self._failure = ""
        self._is_closed = False
        self._take_up(open_db())

    @staticmethod
    def open(
        path: str,
        *,
        block_cache_bytes: int = 64 * MIB,
        write_buffer_bytes: int = 64 * MIB,
        accept_data_loss: bool = False,
        steps: Steps = MappingProxyType({}),
    ) -> "RocksStorage":
        """Open the store in the directory, or create both.

        With `accept_data_loss`, goes on with what is left where it would refuse because confirmed
        data is missing. `steps` lead from older formats, by their numbers, to the next. Raises
        StorageFailed, with the directory as it was and free for others.
        """
        directory = Directory(Path(path))
        watermark: Watermark | None = None
        store: RocksStorage | None = None
        try:
            check_steps(directory, steps)
            make_room(directory)
            watermark = open_watermark(directory, accept_data_loss)
            check_manifest(directory.path, watermark.extent)
            check_logs(directory.path, accept_data_loss)
            keep_before_migration(directory, FORMAT_VERSION)
            promised = watermark.sequence
            if promised and not accept_data_loss:
                check_promise(directory.path, promised, _NAMES)
            buffer = tuning.fit_buffer(write_buffer_bytes, directory.volume()[0])
            options = tuning.make_options(
                directory.path, block_cache_bytes, buffer, check_logs=not accept_data_loss
            )

            def open_db() -> Rdict:
                return Rdict(path, options, dict.fromkeys(_NAMES, options))

            store = RocksStorage(directory, watermark, open_db, buffer)
            reached = store._db.latest_sequence_number()
            if reached < promised or not watermark.is_readable:
                watermark.reset(reached)
            store._note()
            store._migrate(steps)
            # From now on it is a data directory and no longer what the catalog of a backup says.
            (directory.path / catalog.NAME).unlink(missing_ok=True)
            return store
        except Exception as error:
            if store is not None:
                store._release()
            else:
                if watermark is not None:
                    watermark.close()
                directory.release()
            if isinstance(error, StorageFailed):
                raise
            raise explain(directory.path, error) from error

    def write(self, writes: Sequence[Write]) -> int:
        """Apply all writes in order, atomically. They survive kill -9 once it returns."""
        if self._failure:
            raise StorageFailed(self._failure)
        deadline = 0.0
        while True:
            batch = self._batch(writes)
            if batch.is_empty():
                return 0
            size: int = batch.size_in_bytes()
            try:
                self._db.write(batch)
                return size
            except Exception as error:
                # Nothing was written if it can be tried again, and the batch is used up.
                deadline = deadline or monotonic() + tuning.STALL_LIMIT_S
                can_retry = is_stall(error) or is_out_of_files(error)
                if not can_retry or monotonic() > deadline:
                    self._fail(error)
                if is_out_of_files(error):
                    self._open_anew(deadline)
            sleep(tuning.STALL_PAUSE_S)

    def sync(self) -> None:
        """Make what was written before this call survive power loss."""
        with self._syncing:
            if self._failure:
                raise StorageFailed(self._failure)
            try:
                sequence = self._db.latest_sequence_number()
                self._db.flush_wal(True)
                self._watermark.advance(sequence, self._manifest.settle())
            except Exception as error:
                self._fail(error)

    def settle(self) -> None:
        """Take note of what work in the background has written."""
        with self._syncing:
            if self._failure:
                raise StorageFailed(self._failure)
            try:
                self._note()
            except Exception as error:
                self._fail(error)

    def get_many(self, column: Column, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values in the order of the keys, None where a key is not stored."""
        if self._failure:
            raise StorageFailed(self._failure)
        deadline = 0.0
        while True:
            try:
                return cast("list[bytes | None]", self._tables[column].get(list(keys)))
            except Exception as error:
                deadline = deadline or monotonic() + tuning.STALL_LIMIT_S
                if not is_out_of_files(error) or monotonic() > deadline:
                    raise explain(self._directory.path, error) from error
            sleep(tuning.STALL_PAUSE_S)

    def scan(self, column: Column, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records with start <= key < end as they are at the time of this call."""
        if self._failure:
            raise StorageFailed(self._failure)
        scan = Scan(self._directory.path, column, start, end)
        scan.begin(self._tables[column])
        self._scans.add(scan)
        return scan

    # --- Disk space -------------------------------------------------------------------------------

    def space(self) -> Space:
        """Return how the data volume stands."""
        if self._failure:
            raise StorageFailed(self._failure)
        tables = self._tables
        return Space(
            free=self._directory.volume()[1],
            buffered=sum(_number(table, "cur-size-all-mem-tables") for table in tables),
            merging=tuning.merging_bytes(
                self._write_buffer_bytes, [_levels(table) for table in tables]
            ),
            reserved=self._reserve.bytes,
            deleted=sum(_number(table, "num-deletes-active-mem-table") for table in tables)
            + len(self._emptied),
        )

    def figures(self) -> Figures:
        """Return how large the store is."""
        if self._failure:
            raise StorageFailed(self._failure)
        tables = self._tables
        return Figures(
            volume=self._directory.volume()[0],
            log=self._directory.log_bytes(),
            tables=sum(_number(table, "total-sst-files-size") for table in tables),
            buffers=sum(_number(table, "cur-size-all-mem-tables") for table in tables),
            compaction=sum(_number(table, "estimate-pending-compaction-bytes") for table in tables),
        )

    def hold_reserve(self) -> None:
        """Keep `reserve_bytes` back on the volume, unless it has not that much left."""
        try:
            self._reserve.hold(self.reserve_bytes)
        except OSError as error:
            raise explain(self._directory.path, error) from error

    def release_reserve(self) -> None:
        """Give the reserve up for what has to be written."""
        try:
            self._reserve.release()
        except OSError as error:
            raise explain(self._directory.path, error) from error

    def reclaim(self) -> None:
        """Write out what is in memory, and merge the files of ranges that were deleted whole.

        Files in which many single records are deleted are merged by RocksDB itself, once it sees
        them: deletions in memory are what it does not look at.
        """
        with self._reclaiming:
            if self._failure:
                raise StorageFailed(self._failure)
            try:
                self._flush()
                while self._emptied:
                    column, start, end = self._emptied.popleft()
                    if self._covered_bytes(start, end) > self._write_buffer_bytes // 8:
                        self._tables[column].compact_range(start, end)
            except Exception as error:
                raise explain(self._directory.path, error) from error

    def write_out(self) -> int:
        """Write out what is in memory, and return the number of the last write before this call."""
        with self._reclaiming:
            if self._failure:
                raise StorageFailed(self._failure)
            try:
                sequence: int = self._db.latest_sequence_number()
                self._flush()
                return sequence
            except Exception as error:
                raise explain(self._directory.path, error) from error

    def _flush(self) -> None:
        """Write out all columns at once.

        rocksdict can flush one column, which would part it from the others. A manual merge of any
        column writes out all of them first, if there is something of that column in memory; so
        there is a record in RocksDB's own default column, which holds nothing else.
        """
        deadline = monotonic() + tuning.STALL_LIMIT_S
        while True:
            try:
                self._db[b"flush"] = b""
                break
            except Exception as error:
                if not is_stall(error) or monotonic() > deadline:
                    raise
            sleep(tuning.STALL_PAUSE_S)
        self._db.compact_range(b"", b"\xff")

    def _covered_bytes(self, start: bytes, end: bytes) -> int:
        """Return how much lies in files that hold nothing outside a range.

        The files of all columns, since RocksDB does not tell: columns have keys of the same form.
        """
        return sum(
            file["size"]
            for file in self._db.live_files()
            if file["level"] > 0 and start <= file["start_key"] and file["end_key"] < end
        )

    # --- Life -------------------------------------------------------------------------------------

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
            with self._alone():
                self._release()
                self._failure = self._failure or f"{self._directory.path}: the store is closed"

    def _migrate(self, steps: Steps) -> None:
        while (version := self._directory.version) < FORMAT_VERSION:
            records = sum(_number(table, "estimate-num-keys") for table in self._tables)
            run_step(steps[version], self, self.write, version, records)
            self.sync()
            self._directory.write_format(version + 1)

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
                    self._emptied.append((column, key, value.end))
                # Else the range is empty. RocksDB would fail for good on an inverted one, and count
                # a sequence number that recovery does not for an empty one.
        except (AttributeError, KeyError, ValueError) as error:
            raise TypeError("only bytes can be stored") from error
        return batch

    def _fail(self, error: Exception) -> NoReturn:
        if isinstance(error, StorageFailed):
            self._failure = error.message
            raise error
        failure = explain(self._directory.path, error)
        self._failure = failure.message
        raise failure from error

    def _take_up(self, db: Rdict) -> None:
        self._db = db
        # Left to itself, RocksDB makes a writer wait with the interpreter lock held, even for
        # ever if the disk is full, and the whole process stands still.
        options = WriteOptions()
        options.no_slowdown = True
        db.set_write_options(options)
        self._handles += [db.get_column_family_handle(name) for name in _NAMES]
        self._tables += [db.get_column_family(name) for name in _NAMES]
        for scan in self._scans:
            scan.begin(self._tables[scan.column])

    def _let_go(self) -> None:
        """Close RocksDB: what points into it first."""
        for scan in self._scans:
            scan.pause()
        self._handles.clear()
        for table in (*self._tables, self._db):
            try:
                table.close()
            except Exception:
                pass  # It wrote memory out, which the log makes up for, and let go nevertheless.
        self._tables.clear()

    def _open_anew(self, deadline: float) -> None:
        """Open RocksDB again after it gave up for want of descriptors. Nothing is lost by that."""
        with self._alone():
            self._let_go()
            while True:
                try:
                    check_manifest(self._directory.path, self._watermark.extent)
                    self._take_up(self._open_db())
                    self._note()
                    break
                except Exception as error:
                    if not is_out_of_files(error) or monotonic() > deadline:
                        self._fail(error)
                sleep(tuning.STALL_PAUSE_S)
            if self._db.latest_sequence_number() < self._watermark.sequence:
                self._fail(StorageFailed(f"{self._directory.path}: what was confirmed is missing"))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep the other threads out. A merge under way is cut short."""
        with self._syncing:
            if not self._reclaiming.acquire(blocking=False):
                self._db.cancel_all_background(False)
                self._reclaiming.acquire()
            try:
                yield
            finally:
                self._reclaiming.release()

    def _note(self) -> None:
        extent = self._manifest.settle()
        if extent != self._watermark.extent:
            self._watermark.advance(self._watermark.sequence, extent)

    def _release(self) -> None:
        self._let_go()
        try:
            if not self._failure:
                self._note()
        except OSError:
            pass  # What was noted before holds, and says less.
        self._watermark.close()
        self._directory.release()


def _number(table: Rdict, name: str) -> int:
    return table.property_int_value(f"rocksdb.{name}") or 0


def _levels(table: Rdict) -> list[int]:
    """Return the bytes in each level, rounded up to whole MiB as RocksDB's table rounds them."""
    lines = (table.property_value("rocksdb.levelstats") or "").splitlines()[2:]
    rows = [line.split() for line in lines]
    return [(int(size) + 1) * MIB if int(files) else 0 for _, files, size in rows]
