# SPDX-License-Identifier: AGPL-3.0-only
"""The directory for backups: whether the broker could write one there, and whether it would fit.

A broker starts without it and refuses backups, so nothing here is worse than a warning. It does not
make the directory: a volume that is not mounted has to be noticed.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fila_server.config import Config
from fila_server.doctor.finding import NOTICE, OK, WARNING, Finding
from fila_server.limits import MIB

_CHECK = "backup_dir"
_ELSEWHERE = "set storage.backup_dir to another directory"


def backups(config: Config) -> Iterator[Finding]:
    """Whether `fila backup` would work, where it is on."""
    if not config.storage.backup_dir:
        return
    path = Path(config.storage.backup_dir)
    data = Path(config.server.data_dir)
    trouble = _trouble(path, data)
    if trouble is not None:
        yield trouble
        return
    needed = _size(data)
    volume = os.statvfs(path)
    free = volume.f_bavail * volume.f_frsize
    is_shared = data.exists() and data.stat().st_dev == path.stat().st_dev
    kept = config.storage.min_free_bytes if is_shared else 0
    text = f"{path} has {free // MIB:,} MiB free, and a full backup takes {needed // MIB:,} MiB"
    if free - kept < needed:
        if kept:
            text += f" beside the {kept // MIB:,} MiB of storage.min_free_bytes"
        yield Finding(_CHECK, WARNING, text, f"delete old backups there, or {_ELSEWHERE}")
    else:
        yield Finding(_CHECK, OK, text)
    if is_shared:
        text = f"{path} is on the volume of the data, and would be lost with it"
        yield Finding(_CHECK, NOTICE, text, "use another volume, better another machine's")


def _trouble(path: Path, data: Path) -> Finding | None:
    """Why every backup would be refused, if it would."""
    if path.resolve().is_relative_to(data.resolve()):
        text = f"{path} is inside server.data_dir ({data}), where no backup may be"
        return Finding(_CHECK, WARNING, text, _ELSEWHERE)
    if not path.exists():
        text = f"{path} does not exist, so backups are refused"
        remedy = f"mount its volume, or create it (mkdir -m 700 {path}) as the broker's user"
        return Finding(_CHECK, WARNING, text, remedy)
    if not path.is_dir():
        return Finding(_CHECK, WARNING, f"{path} is not a directory", _ELSEWHERE)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        text = f"user {os.geteuid()} may not read and write {path}, so backups fail"
        return Finding(_CHECK, WARNING, text, "give the directory to the broker's user")
    return None


def _size(data: Path) -> int:
    """The bytes of the store's files, which a first backup copies."""
    total = 0
    for pattern in ("*.sst", "*.log", "MANIFEST-*"):
        for file in data.glob(pattern):
            with suppress(OSError):  # merged into another meanwhile
                total += file.stat().st_size
    return total
