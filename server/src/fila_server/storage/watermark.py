# SPDX-License-Identifier: AGPL-3.0-only
"""How far the log was on disk, kept beside the log so that a loss in it is noticed.

RocksDB opens without a word when its log was cut, damaged or deleted, and shows an older state. The
watermark remembers the last sequence number that an fsync covered; a store that ends below it has
lost what was promised.

Two slots are written in turn, each with a checksum and in a disk sector of its own, so a torn write
spoils one of them at most. Nothing is fsynced here: the slot is written after the fsync that it
reports, so a slot that power loss takes back only weakens the check and never raises a false alarm.

This module knows nothing of RocksDB. Its errors are plain OSErrors.
"""

import os
import struct
import zlib
from pathlib import Path

_SECTOR_BYTES = 512
_NUMBER = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_SLOT_BYTES = _NUMBER.size + _CHECKSUM.size


class Watermark:
    """The watermark file, open. `sequence` is 0 where nothing readable was ever recorded."""

    __slots__ = ("_fd", "_slot", "sequence")

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            content = os.pread(self._fd, 2 * _SECTOR_BYTES, 0)
            if len(content) < 2 * _SECTOR_BYTES:
                # Full length from the start: later writes need no space on a full disk.
                content = content.ljust(2 * _SECTOR_BYTES, b"\0")
                os.pwrite(self._fd, content, 0)
        except OSError:
            os.close(self._fd)
            raise
        first, second = _decode(content), _decode(content[_SECTOR_BYTES:])
        self.sequence = max(first, second)
        self._slot = 0 if first < second else 1  # The older one: if it tears, the newer is left.

    def advance(self, sequence: int) -> None:
        """Record that everything up to `sequence` is on disk."""
        os.pwrite(self._fd, _encode(sequence), self._slot * _SECTOR_BYTES)
        self._slot ^= 1
        self.sequence = sequence

    def reset(self, sequence: int) -> None:
        """Forget what was promised before: the loss of it was accepted."""
        content = _encode(sequence).ljust(2 * _SECTOR_BYTES, b"\0")
        os.pwrite(self._fd, content, 0)
        os.fsync(self._fd)
        self._slot = 1
        self.sequence = sequence

    def close(self) -> None:
        os.close(self._fd)


def _encode(sequence: int) -> bytes:
    number = _NUMBER.pack(sequence)
    return number + _CHECKSUM.pack(zlib.crc32(number))


def _decode(content: bytes) -> int:
    number, checksum = content[: _NUMBER.size], content[_NUMBER.size : _SLOT_BYTES]
    if _CHECKSUM.pack(zlib.crc32(number)) != checksum:
        return 0
    sequence: int = _NUMBER.unpack(number)[0]
    return sequence
