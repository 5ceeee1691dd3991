# SPDX-License-Identifier: AGPL-3.0-only
"""Makes a data directory out of a backup.

Files are copied and never shared, so that the broker and the backup cannot harm each other. A mark
in the directory says that it is not complete; it is on disk before the first file, and removed
after the last. FORMAT is written just before, so that even without the mark no broker takes the
half for the whole.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fila_server.errors import DiskFull, StorageFailed
from fila_server.limits import MIB
from fila_server.storage.backups import catalog, contents, files
from fila_server.storage.backups.contents import Tell, Verified
from fila_server.storage.directory import RESTORING, fsync_directory, make, strangers_in
from fila_server.storage.faults import explain


def restore(backup: Path, data: Path, tell: Tell) -> Verified:
    """Verify a backup and copy it to a directory that is empty or not there yet.

    Raises FilaError; what was copied until then is not taken for a data directory.
    """
    try:
        _check_target(backup, data)
        verified = contents.verify(backup, tell)
        if verified.made is None:
            raise StorageFailed(
                f"{backup}: no backup: the file {catalog.NAME} is missing; a data directory whose"
                " broker is stopped can be copied as it is"
            )
        make(data)
        with _owned(data):
            _check_target(backup, data)
            _copy(backup, data, verified.made, tell)
        return verified
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"{data}: the volume is full; free some space, remove the directory and restore"
                " again"
            ) from error
        raise explain(data, error) from error


def _copy(backup: Path, data: Path, made: catalog.Catalog, tell: Tell) -> None:
    total, done = sum(entry.bytes for entry in made.files), 0
    volume = os.statvfs(data)
    free = volume.f_bavail * volume.f_frsize
    if free < total:
        raise DiskFull(
            f"{data}: the backup has {total // MIB} MiB, and the volume {free // MIB} MiB free;"
            " free some space, or restore to another volume"
        )
    files.put(data / RESTORING, f"{backup}\n".encode())
    fsync_directory(data)

    def wrote(count: int) -> None:
        nonlocal done
        done += count
        tell("copy", done, total)

    for entry in sorted(made.files, key=lambda entry: entry.name == "FORMAT"):
        if entry.name == "FORMAT":
            fsync_directory(data)  # all before it
        source = os.open(backup / entry.name, os.O_RDONLY)
        try:
            if files.copy(source, entry.bytes, data / entry.name, wrote) != entry.sha256:
                raise catalog.damaged(backup, f"{entry.name} changed while it was copied")
        finally:
            os.close(source)
    fsync_directory(data)
    (data / RESTORING).unlink()
    fsync_directory(data)


def _check_target(backup: Path, data: Path) -> None:
    if data.is_dir() and (data / RESTORING).exists():
        raise StorageFailed(
            f"{data}: a restore into it was cut short; remove the directory and run this again"
        )
    if (data.exists() or data.is_symlink()) and not data.is_dir():
        raise StorageFailed(f"{data}: not a directory; name an empty or new one")
    if data.is_dir() and (strangers := strangers_in(data)):
        raise StorageFailed(
            f"{data}: not empty (it holds {strangers[0]!r}); a backup is restored to an empty or"
            " new directory, so move the old one away first"
        )
    if data.resolve().is_relative_to(backup.resolve()):
        raise StorageFailed(f"{data}: inside the backup; name a directory elsewhere")


@contextmanager
def _owned(data: Path) -> Iterator[None]:
    """Keep brokers out."""
    lock = os.open(data / "fila.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise StorageFailed(f"{data}: in use by a broker; stop it, or name another") from error
    finally:
        os.close(lock)
