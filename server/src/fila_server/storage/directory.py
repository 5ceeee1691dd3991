# SPDX-License-Identifier: AGPL-3.0-only
"""The data directory before RocksDB sees it: creation, ownership, lock and format.

    FORMAT       the version of what the directory holds, written before anything else
    fila.lock    locked by the broker that uses the directory; holds its process id
    WATERMARK    see watermark.py
    the rest     RocksDB's own files

The lock is not RocksDB's: the checks before an open must not look at a store that another broker is
writing. This module knows nothing of what the store holds.
"""

import fcntl
import os
from pathlib import Path

from fila_server.errors import StorageFailed
from fila_server.storage.faults import explain

# Raise it when an older broker could no longer read what this one writes: another column, another
# meaning of a record. A broker refuses newer formats, and migrates older ones.
FORMAT_VERSION = 1

# What an empty data directory may hold: what a start that was cut short left behind, and what mkfs
# puts into a volume's root.
_HARMLESS = {"fila.lock", "FORMAT.new", "lost+found"}


class Directory:
    """A data directory that this process has to itself. Raises StorageFailed when it cannot."""

    __slots__ = ("_lock", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            _make(path)
            self._lock = os.open(path / "fila.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise explain(path, error) from error
        try:
            self._take_lock()
            self._check_format()
        except OSError as error:
            os.close(self._lock)
            raise explain(path, error) from error
        except StorageFailed:
            os.close(self._lock)
            raise

    def free_bytes(self) -> int:
        """Return the space that the broker's user may still fill."""
        try:
            volume = os.statvfs(self.path)
        except OSError as error:
            raise explain(self.path, error) from error
        return volume.f_bavail * volume.f_frsize

    def release(self) -> None:
        """Let another broker, or this process once more, use the directory."""
        os.close(self._lock)

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise StorageFailed(
                f"{self.path}: in use by the broker with process id {owner}; "
                "stop it, or set server.data_dir to another directory"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)

    def _check_format(self) -> None:
        try:
            content = (self.path / "FORMAT").read_bytes()
        except FileNotFoundError:
            self._start_empty()
            return
        version = int(content) if content.strip().isdigit() else 0
        if version > FORMAT_VERSION:
            raise StorageFailed(
                f"{self.path}: written by a newer Fila (format {version}, this one reads "
                f"{FORMAT_VERSION}); upgrade fila-server"
            )
        if version != FORMAT_VERSION:
            raise StorageFailed(
                f"{self.path}: the file FORMAT is damaged; restore the directory from a copy"
            )

    def _start_empty(self) -> None:
        strangers = sorted({entry.name for entry in self.path.iterdir()} - _HARMLESS)
        if strangers:
            raise StorageFailed(
                f"{self.path}: no Fila data directory, and not empty (it holds {strangers[0]!r}); "
                "set server.data_dir to an empty or new directory"
            )
        # Whole or not at all, and on disk before there is anything to misread.
        draft = self.path / "FORMAT.new"
        with draft.open("wb") as file:
            file.write(b"%d\n" % FORMAT_VERSION)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self.path / "FORMAT")
        _fsync_directory(self.path)


def _make(path: Path) -> None:
    """Create the directory and what is missing above it, so that power loss cannot undo it."""
    if path.is_dir():
        return
    parent = path.absolute().parent
    _make(parent)
    # Messages are nobody else's business.
    path.mkdir(mode=0o700)
    _fsync_directory(parent)


def _fsync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
