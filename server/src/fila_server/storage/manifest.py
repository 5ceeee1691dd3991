# SPDX-License-Identifier: AGPL-3.0-only
"""RocksDB's manifest: how much of it is on disk, and whether that is still there.

The manifest lists the files of the store, and the file CURRENT names the manifest. RocksDB adds to
it whenever it writes out or merges, and begins another with a greater number when it is opened or
the file is large. Where it was cut between two records, RocksDB takes the store for an older one,
and deletes all files that the older one did not have. So the watermark notes how long the manifest
was, with a checksum: it only grows, so the checksum is carried on over what was added.

What is noted is fsynced before, and for a new manifest the directory as well, so that power loss
cannot take back what was noted. What RocksDB adds meanwhile is noted the next time.

This module knows nothing of what the manifest says. How it is built up is in records.py.
"""

import os
import re
import zlib
from errno import EMFILE, ENFILE
from pathlib import Path

from fila_server.errors import StorageFailed
from fila_server.storage.directory import fsync_directory
from fila_server.storage.records import endless_records
from fila_server.storage.watermark import NOTHING, Extent

_CHUNK_BYTES = 1 << 20
_NAME = re.compile(rb"MANIFEST-([0-9]{1,19})\n")


class Manifest:
    """The manifest of a store that is open. `extent` is what is known to be on disk of it."""

    __slots__ = ("_current", "_folder", "_identity", "_path", "extent")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Strings, because a look comes with every fsync of the log and joining paths costs more.
        self._current = str(folder / "CURRENT")
        self._path = ""
        self._identity = (0, 0)
        self.extent = NOTHING

    def settle(self) -> Extent:
        """Make all of the manifest survive power loss, and return how much that is.

        Without descriptors it stays with what is known. Raises OSError.
        """
        try:
            status = os.stat(self._current)
            identity = status.st_ino, status.st_mtime_ns
            if identity != self._identity:
                self._turn()
                self._identity = identity
            elif os.stat(self._path).st_size != self.extent.size:
                self._extend(self._path, self.extent)
        except FileNotFoundError:
            pass  # Replaced between two calls; the next look finds the new one.
        except OSError as error:
            if error.errno not in (EMFILE, ENFILE):
                raise
        return self.extent

    def _turn(self) -> None:
        """Go on with the manifest that CURRENT names now."""
        named = _named(self._folder)
        if named is None:
            return
        name, number = named
        path = str(self._folder / name)
        self._extend(path, Extent(number, 0, 0))
        self._path = path

    def _extend(self, path: str, known: Extent) -> None:
        fd = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            os.fsync(fd)
            # RocksDB takes back what a full disk left of a write that failed.
            size = min(size, os.fstat(fd).st_size)
            checksum = _checksum(fd, known.size, size, known.checksum)
        finally:
            os.close(fd)
        if known.number != self.extent.number:
            fsync_directory(self._folder)  # else power loss could bring the CURRENT before back
        self.extent = Extent(known.number, size, checksum)


def check_manifest(path: Path, noted: Extent) -> None:
    """Raise StorageFailed if the manifest is not, or begins not with, what was noted of it.

    RocksDB must not have seen the directory before: it would delete files, or never return.
    """
    named = _named(path)
    if named is None:
        if (path / "CURRENT").exists():
            raise _damaged(path, "CURRENT names no manifest")
        # A first start that was cut short has neither tables nor logs.
        if noted.number or any(True for kind in ("*.sst", "*.log") for _ in path.glob(kind)):
            raise _damaged(path, "CURRENT is missing")
        return
    name, number = named
    if number < noted.number:
        raise _damaged(path, f"CURRENT names {name}, but number {noted.number} was in use")
    try:
        fd = os.open(path / name, os.O_RDONLY)
    except FileNotFoundError as error:
        raise _damaged(path, f"{name} is missing") from error
    try:
        if number == noted.number:
            size = os.fstat(fd).st_size
            if size < noted.size:
                raise _damaged(path, f"{name} was cut to {size} of {noted.size} bytes")
            if _checksum(fd, 0, noted.size, 0) != noted.checksum:
                raise _damaged(path, f"{name} is not as it was written")
    finally:
        os.close(fd)
    for at in endless_records(path / name):
        raise _damaged(path, f"{name} has an impossible record at byte {at}")


def _named(folder: Path) -> tuple[str, int] | None:
    """Return the name and the number of the manifest in CURRENT, or None if it says none."""
    try:
        found = _NAME.fullmatch((folder / "CURRENT").read_bytes())
    except FileNotFoundError:
        return None
    return (found[0][:-1].decode(), int(found[1])) if found else None


def _checksum(fd: int, start: int, end: int, checksum: int) -> int:
    while start < end and (chunk := os.pread(fd, min(_CHUNK_BYTES, end - start), start)):
        checksum = zlib.crc32(chunk, checksum)
        start += len(chunk)
    return checksum


def _damaged(path: Path, what: str) -> StorageFailed:
    return StorageFailed(
        f"{path}: damaged: {what}; restore the directory from a copy (the manifest lists the files "
        "of the store, and nothing makes up for it)"
    )
