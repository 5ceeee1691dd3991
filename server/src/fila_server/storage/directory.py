# SPDX-License-Identifier: AGPL-3.0-only
"""The data directory before RocksDB sees it: creation, ownership, lock and format.

    FORMAT       the version of what the directory holds, written before anything else
    fila.lock    locked by the broker that uses the directory; holds its process id
    WATERMARK    see watermark.py
    RESERVE      see reserve.py; there only while the volume is not far from full
    RESTORING    there only while a backup is being restored into the directory
    before-format-N   what the directory held before it was migrated: see migration.py
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
# meaning of a record. A broker refuses newer formats, and migrates older ones: see migration.py.
FORMAT_VERSION = 2

# Of a restore under way, or cut short. See restore.py.
RESTORING = "RESTORING"

# What an empty data directory may hold: what a start that was cut short left behind, and what mkfs
# puts into a volume's root.
_HARMLESS = {"fila.lock", "FORMAT.new", "lost+found"}


class Directory:
    """A data directory that this process has to itself. Raises StorageFailed when it cannot.

    `version` is the format of what it holds, this broker's or an older one.
    """

    __slots__ = ("_lock", "path", "version")

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            make(path)
        except FileNotFoundError as error:
            # A file system that takes no directories, or a link that leads nowhere.
            raise StorageFailed(
                f"{path}: cannot be created; create it for the broker's user, or set "
                f"server.data_dir to another directory ({error})"
            ) from error
        except OSError as error:
            raise explain(path, error) from error
        try:
            self._lock = os.open(path / "fila.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise explain(path, error) from error
        try:
            self._take_lock()
            self.version = self._read_format()
        except OSError as error:
            os.close(self._lock)
            raise explain(path, error) from error
        except StorageFailed:
            os.close(self._lock)
            raise

    def volume(self) -> tuple[int, int]:
        """Return the size of the volume, and the space that the broker's user may still fill."""
        try:
            volume = os.statvfs(self.path)
        except OSError as error:
            raise explain(self.path, error) from error
        return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize

    def has_store(self) -> bool:
        """Return whether RocksDB has left anything here."""
        patterns = ("CURRENT", "MANIFEST-*", "*.sst", "*.log")
        return any(True for pattern in patterns for _ in self.path.glob(pattern))

    def log_bytes(self) -> int:
        """Return the size of the logs, which an open writes out before it gives them back."""
        return sum(log.stat().st_size for log in self.path.glob("*.log"))

    def write_format(self, version: int) -> None:
        """Record the format, whole or not at all, and on disk before there is more to misread."""
        draft = self.path / "FORMAT.new"
        with draft.open("wb") as file:
            file.write(b"%d\n" % version)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self.path / "FORMAT")
        self.settle()
        self.version = version

    def settle(self) -> None:
        """Make the names of new files survive power loss."""
        fsync_directory(self.path)

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

    def _read_format(self) -> int:
        if (self.path / RESTORING).exists():
            raise StorageFailed(
                f"{self.path}: a restore into it was cut short, so it holds part of a backup; "
                "remove the directory and run `fila restore` again"
            )
        try:
            return format_of(self.path)
        except FileNotFoundError:
            self._check_empty()
            self.write_format(FORMAT_VERSION)
            return FORMAT_VERSION

    def _check_empty(self) -> None:
        strangers = strangers_in(self.path)
        if strangers:
            raise StorageFailed(
                f"{self.path}: no Fila data directory, and not empty (it holds {strangers[0]!r}); "
                "set server.data_dir to an empty or new directory"
            )


def format_of(path: Path) -> int:
    """Return the format of what a directory holds.

    Raises FileNotFoundError where nothing says so, and StorageFailed for one that is not known.
    """
    content = (path / "FORMAT").read_bytes()
    version = int(content) if content.strip().isdigit() else 0
    if version > FORMAT_VERSION:
        raise StorageFailed(
            f"{path}: written by a newer Fila (format {version}, this one reads "
            f"{FORMAT_VERSION}); upgrade fila-server"
        )
    if version < 1:
        raise StorageFailed(
            f"{path}: the file FORMAT is damaged; restore the directory from a copy"
        )
    return version


def strangers_in(path: Path) -> list[str]:
    """Return the names of what an empty data directory would not hold."""
    return sorted({entry.name for entry in path.iterdir()} - _HARMLESS)


def make(path: Path) -> None:
    """Create the directory and what is missing above it, so that power loss cannot undo it."""
    if path.is_dir():
        return
    parent = path.absolute().parent
    make(parent)
    # Messages are nobody else's business.
    path.mkdir(mode=0o700)
    fsync_directory(parent)


def fsync_directory(path: Path) -> None:
    """Make the names in a directory survive power loss."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
