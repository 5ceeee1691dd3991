# SPDX-License-Identifier: AGPL-3.0-only
"""Records on which RocksDB would never return, found in its logs and manifests.

Both are blocks of 32 KiB, filled with records: a checksum of 4 bytes, a length of 2, a kind of 1,
and so many bytes. RocksDB 9.8.4 looks at a record's kind before its checksum. If that is one of a
recycled log, and the file did not begin with such a one, it looks at the same record for ever, with
the interpreter lock held. The store recycles no logs, so one flipped bit is all it takes.

Here the same headers are looked at as there. Everything else that may be wrong with a record is
left to RocksDB, which refuses it. This module opens no store.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

_BLOCK_BYTES = 32 * 1024
_LENGTH_AND_KIND = struct.Struct("<HB")
_HEADER_BYTES = 7
_KIND_AT = 6
# Four kinds of record of a recycled log, and the kind for sizes of timestamps in one.
_ENDLESS = frozenset({5, 6, 7, 8, 11})
# Any that RocksDB takes for an ordinary mismatch of the checksum.
_HARMLESS = b"\xff"


def endless_records(path: Path) -> Iterator[int]:
    """Yield where in the file RocksDB would stay for ever, block by block."""
    with path.open("rb") as file:
        start = 0
        while block := file.read(_BLOCK_BYTES):
            at = _endless(block)
            if at is not None:
                yield start + at
            start += len(block)


def disarm(path: Path, at: int) -> None:
    """Make the record at this place one that RocksDB finds damaged, with all after it."""
    with path.open("r+b") as file:
        file.seek(at + _KIND_AT)
        file.write(_HARMLESS)
        file.flush()
        os.fsync(file.fileno())


def _endless(block: bytes) -> int | None:
    """Return where the first such record is. RocksDB drops the rest of a block that has damage."""
    read, at, last = _LENGTH_AND_KIND.unpack_from, 0, len(block) - _HEADER_BYTES
    while at <= last:
        length, kind = read(block, at + 4)
        if kind in _ENDLESS:
            return at
        if not kind and not length:
            return None  # zeroes to the end of the block
        at += _HEADER_BYTES + length
    return None
