# SPDX-License-Identifier: AGPL-3.0-only
"""Copying and summing up files, a piece at a time, so that progress, a lack of space and a stop are
noticed on the way.

A copy is on disk when it is done. Its name is not: whoever made the directory settles that.
"""

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from fila_server.limits import MIB

_PIECE_BYTES = MIB

# Told of every piece, with its size, before it is written.
Watch = Callable[[int], None]


def copy(source: int, size: int, target: Path, watch: Watch) -> str:
    """Copy the first bytes of an open file to a new one, and return their SHA-256. Raises OSError.

    What a program adds to the source meanwhile is left out.
    """
    summed = hashlib.sha256()
    copied = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        for piece in _pieces(source, size):
            watch(len(piece))
            summed.update(piece)
            _write(copied, piece)
        os.fsync(copied)
    finally:
        os.close(copied)
    return summed.hexdigest()


def sum_up(source: int, size: int, watch: Watch) -> str:
    """Return the SHA-256 of the first bytes of an open file."""
    summed = hashlib.sha256()
    for piece in _pieces(source, size):
        watch(len(piece))
        summed.update(piece)
    return summed.hexdigest()


def put(target: Path, content: bytes) -> str:
    """Write a small new file, and return its SHA-256."""
    copied = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _write(copied, content)
        os.fsync(copied)
    finally:
        os.close(copied)
    return hashlib.sha256(content).hexdigest()


def link(source: Path, target: Path) -> bool:
    """Give a file another name; return whether the file system could."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        return False
    return True


def _pieces(source: int, size: int) -> Iterator[bytes]:
    at = 0
    while at < size:
        piece = os.pread(source, min(_PIECE_BYTES, size - at), at)
        if not piece:
            raise OSError(errno.EIO, f"a file ends at byte {at} of {size}")
        at += len(piece)
        yield piece


def _write(target: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(target, view) :]
