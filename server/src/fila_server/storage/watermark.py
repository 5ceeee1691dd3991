# SPDX-License-Identifier: AGPL-3.0-only
"""How much was on disk, kept beside the store so that a loss in it is noticed.

RocksDB opens without a word when its log or its manifest was cut, and shows an older state. The
watermark remembers the last sequence number that an fsync of the log covered, and what was on disk
of the manifest: a store that ends below either has lost what was promised.

Two slots are written in turn, each with a checksum and in a disk sector of its own, so a torn write
spoils one of them at most. The file is on disk, with both slots, before there is anything to lose:
later it is missing or unreadable only if somebody or something damaged it. An advance is not
fsynced: the slot is written after the fsync that it reports, so a slot that power loss takes back
only weakens the check and never raises a false alarm.

This module knows nothing of RocksDB. Its errors are plain OSErrors.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple


class Extent(NamedTuple):
    """How much of a file that only grows is on disk: the file's number, its first bytes' CRC-32."""

    number: int
    size: int
    checksum: int


# As it is where a directory is new, or was left by a broker of format 1.
NOTHING = Extent(0, 0, 0)

_SECTOR_BYTES = 512
_FIELDS = struct.Struct("<QQQI")
_FIELDS_1 = struct.Struct("<Q")  # of format 1, which has the sequence number alone
_CHECKSUM = struct.Struct("<I")


class _Slot(NamedTuple):
    """What a slot says. None of it is ever less in a later slot, so that the greater is newer."""

    sequence: int
    extent: Extent


class Watermark:
    """The watermark file, open. `is_readable` is False where it does not say what was promised."""

    __slots__ = ("_fd", "_slot", "extent", "is_readable", "sequence")

    def __init__(self, path: Path, *, create: bool) -> None:
        self._fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
        try:
            content = os.pread(self._fd, 2 * _SECTOR_BYTES, 0)
        except OSError:
            os.close(self._fd)
            raise
        first, second = _decode(content), _decode(content[_SECTOR_BYTES:])
        self.is_readable = first is not None or second is not None
        nothing = _Slot(0, NOTHING)
        self.sequence, self.extent = max(first or nothing, second or nothing)
        # The older one, or the damaged one: if it tears, the newer is left.
        self._slot = 0 if first is None or (second is not None and first < second) else 1

    def advance(self, sequence: int, extent: Extent) -> None:
        """Record that everything up to `sequence` is on disk, and so much of the manifest."""
        os.pwrite(self._fd, _encode(sequence, extent), self._slot * _SECTOR_BYTES)
        self._slot ^= 1
        self.sequence = sequence
        self.extent = extent

    def reset(self, sequence: int) -> None:
        """Begin anew, on disk: nothing was promised before, or the loss of it was accepted.

        Full length from the start, so that later writes need no space on a full disk.
        """
        slot = _encode(sequence, NOTHING).ljust(_SECTOR_BYTES, b"\0")
        os.pwrite(self._fd, slot * 2, 0)
        os.fsync(self._fd)
        self.is_readable = True
        self._slot = 0
        self.sequence = sequence
        self.extent = NOTHING

    def close(self) -> None:
        os.close(self._fd)


def _encode(sequence: int, extent: Extent) -> bytes:
    fields = _FIELDS.pack(sequence, *extent)
    return fields + _CHECKSUM.pack(zlib.crc32(fields))


def _decode(content: bytes) -> _Slot | None:
    for layout in (_FIELDS, _FIELDS_1):
        fields, checksum = content[: layout.size], content[layout.size :][: _CHECKSUM.size]
        if len(fields) == layout.size and _CHECKSUM.pack(zlib.crc32(fields)) == checksum:
            sequence, *rest = layout.unpack(fields)
            return _Slot(sequence, Extent(*rest) if rest else NOTHING)
    return None
