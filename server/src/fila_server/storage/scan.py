# SPDX-License-Identifier: AGPL-3.0-only
"""Reading a range of a RocksDB column, record by record.

This module knows nothing of what the store does meanwhile, but for two things: it may be closed,
and it may be opened anew under a scan.
"""

from pathlib import Path
from time import monotonic, sleep

from rocksdict import Rdict, RdictIter, ReadOptions

from fila_server.errors import StorageFailed
from fila_server.storage import tuning
from fila_server.storage.api import Column
from fila_server.storage.faults import explain, is_out_of_files


class Scan:
    """A bounded iterator that the store can pause, because RocksDB stays open while one is alive.

    rocksdict's own `items()` ends without a word at a block that cannot be read. And its iterators
    point to the bounds without holding them: let go of too early, they are whatever took their
    place in memory, and the scan runs on into what follows.
    """

    __slots__ = ("__weakref__", "_bounds", "_end", "_next", "_path", "_rows", "_table", "column")

    def __init__(self, path: Path, column: Column, start: bytes, end: bytes) -> None:
        self.column = column
        self._path = path
        self._next = start
        self._end = end
        self._table: Rdict | None = None
        self._rows: RdictIter | None = None

    def begin(self, table: Rdict) -> None:
        """Begin, or go on after a pause with what is stored by then."""
        self._bounds = ReadOptions()
        self._bounds.set_iterate_lower_bound(self._next)
        self._bounds.set_iterate_upper_bound(self._end)
        self._table = table
        self._rows = table.iter(self._bounds)
        self._rows.seek(self._next)

    def pause(self) -> None:
        """Let go of RocksDB."""
        self._rows = None
        self._table = None

    def __iter__(self) -> "Scan":
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        rows = self._rows
        if rows is None or not rows.valid():
            rows = self._row()
        key: bytes = rows.key()
        row = (key, rows.value())
        self._next = key + b"\0"
        rows.next()
        return row

    def _row(self) -> RdictIter:
        """Tell the end from an error, and wait for the end of one that passes."""
        deadline = 0.0
        while True:
            if self._rows is None or self._table is None:
                raise StorageFailed(f"{self._path}: the store is closed")
            if self._rows.valid():
                return self._rows
            try:
                self._rows.status()
            except Exception as error:
                deadline = deadline or monotonic() + tuning.STALL_LIMIT_S
                if not is_out_of_files(error) or monotonic() > deadline:
                    raise explain(self._path, error) from error
            else:
                raise StopIteration
            sleep(tuning.STALL_PAUSE_S)
            self.begin(self._table)  # an iterator that failed stays failed
