# SPDX-License-Identifier: AGPL-3.0-only
"""What went wrong with a data directory, in one line that names it and the way out.

RocksDB and rocksdict raise plain exceptions, so their texts are all there is to go by. This module
is the only one that reads them. It knows nothing of what the store holds.
"""

from pathlib import Path

from fila_server.errors import StorageFailed

ACCEPT_LOSS = (
    "put the missing files back, or start with --accept-data-loss to go on without what they held"
)

# The first row whose mark occurs in the text decides. What the system says comes first, because
# RocksDB wraps it in words of its own.
_ADVICE = (
    ("No space left on device", "the disk is full", "free some space and start again"),
    ("File too large", "a file hit its size limit", "raise `ulimit -f` and start again"),
    ("Too many open files", "no file can be opened", "raise `ulimit -n` and start again"),
    ("Permission denied", "no permission", "let the broker's user read and write it"),
    ("Operation not permitted", "no permission", "let the broker's user read and write it"),
    ("Read-only file system", "the file system is read-only", "mount it writable"),
    ("Not a directory", "not a directory", "set server.data_dir to a directory"),
    ("File exists", "not a directory", "set server.data_dir to a directory"),
    ("/LOCK", "in use by another process", "stop it, or set server.data_dir to another directory"),
    ("Missing WAL", "a log is missing", ACCEPT_LOSS),
    ("Size mismatch: WAL", "a log was cut", ACCEPT_LOSS),
    ("Corruption", "damaged", "restore the directory from a copy"),
    ("No such file", "damaged: a file is missing", "restore the directory from a copy"),
    ("olumn famil", "damaged: a column is missing", "restore the directory from a copy"),
    ("previous error", "an earlier write failed", "check the disk, then start again"),
    ("Write stall", "the disk cannot keep up", "check its health and space, then start again"),
    # A write that comes after a failed one, or beside a failed fsync that is not reported yet.
    ("Seen error", "the disk failed", "check the disk, then start again"),
    ("Input/output error", "the disk failed", "check the disk, then start again"),
)


def is_stall(error: Exception) -> bool:
    """Return whether RocksDB refused a write until it has written out its buffers."""
    return "Write stall" in str(error)


def is_out_of_files(error: Exception) -> bool:
    """Return whether a file could not be opened for want of descriptors.

    Writes need none: it strikes before the batch is written, or work in the background.
    """
    return "Too many open files" in str(error)


def explain(path: Path, error: Exception) -> StorageFailed:
    """Turn an exception of RocksDB or of the system into a StorageFailed about the directory."""
    detail = " ".join(str(error).split())
    words = detail.replace(str(path), "")  # A directory may be called anything.
    for mark, what, way_out in _ADVICE:
        if mark in words:
            return StorageFailed(f"{path}: {what}; {way_out} ({detail})")
    return StorageFailed(f"{path}: storage failed ({detail})")
