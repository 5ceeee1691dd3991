# SPDX-License-Identifier: AGPL-3.0-only
"""What a directory held before it was migrated, kept inside it: DATA_DIR/before-format-2.

Tables never change, so they only get another name; the rest is small and copied. It costs next to
nothing at first, and as much as the old tables once the broker has merged them away. The earlier
Fila can be started on it. It stays until somebody removes it.

It is not beside the directory, because that is often the root of a volume.
"""

import errno
import logging
import os
import shutil
from pathlib import Path

from fila_server.errors import StorageFailed
from fila_server.storage.backups import files
from fila_server.storage.directory import Directory, fsync_directory

log = logging.getLogger(__name__)

# Of this process, not of the store.
_LEFT_OUT = {"fila.lock", "RESERVE", "LOCK", "FORMAT.new"}


def keep_before_migration(directory: Directory, target: int) -> None:
    """Keep a copy if the format is before the target. Raises StorageFailed if it cannot.

    One that is there already stays: by now the directory may be migrated in part.
    """
    version, path = directory.version, directory.path
    kept = path / f"before-format-{target}"
    if version == target or kept.exists():
        return
    partial = kept.with_suffix(".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        for source in sorted(path.iterdir()):
            if source.is_file() and source.name not in _LEFT_OUT:
                _keep(source, partial / source.name)
        fsync_directory(partial)
        partial.rename(kept)
        directory.settle()
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        way_out = "free some space" if is_full else "let the broker's user write to it"
        raise StorageFailed(
            f"{path}: it has format {version} and is not migrated to {target}, because no"
            f" copy of it could be kept in {kept.name} ({error}); {way_out} and start again, or go"
            " on with the Fila that wrote it"
        ) from error
    log.info("format %d is kept in %s; remove it when you no longer need it", version, kept)


def _keep(source: Path, target: Path) -> None:
    if source.suffix == ".sst" and files.link(source, target):
        return
    descriptor = os.open(source, os.O_RDONLY)
    try:
        files.copy(descriptor, os.fstat(descriptor).st_size, target, lambda count: None)
    finally:
        os.close(descriptor)
