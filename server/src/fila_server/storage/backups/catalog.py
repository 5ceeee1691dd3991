# SPDX-License-Identifier: AGPL-3.0-only
"""BACKUP.json: what a backup consists of, file by file, so that damage to any of them is named.

It is written last, and has a checksum of its own. A directory without it is no backup.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fila_server.errors import StorageFailed
from fila_server.storage.backups import files

NAME = "BACKUP.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is in a backup, and which Fila made it when."""

    created_at: str
    fila_version: str
    format: int
    # The last write that is in it, as RocksDB counts them.
    sequence: int
    messages: int
    files: tuple[Entry, ...]

    def write(self, path: Path) -> None:
        """Put it into the directory, on disk."""
        document = asdict(self)
        document["checksum"] = _checksum(document)
        files.put(path / NAME, json.dumps(document, indent=1).encode())


def read(path: Path) -> Catalog | None:
    """Return the catalog of a backup; None where there is none. Raises StorageFailed if damaged."""
    try:
        content = (path / NAME).read_bytes()
    except FileNotFoundError:
        return None
    try:
        document: dict[str, Any] = json.loads(content)
        if document.pop("checksum") != _checksum(document):
            raise ValueError("it is not as it was written")
        entries = tuple(Entry(**entry) for entry in document.pop("files"))
        return Catalog(files=entries, **document)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged(path, f"{NAME} is not as it was written") from error


def check_files(path: Path, catalog: Catalog, watch: files.Watch) -> None:
    """Read every file of a backup. Raises StorageFailed that names the first damaged one."""
    for entry in catalog.files:
        try:
            source = os.open(path / entry.name, os.O_RDONLY)
        except FileNotFoundError as error:
            raise damaged(path, f"{entry.name} is missing") from error
        try:
            size = os.fstat(source).st_size
            if size != entry.bytes:
                raise damaged(path, f"{entry.name} has {size} bytes and not {entry.bytes}")
            if files.sum_up(source, size, watch) != entry.sha256:
                raise damaged(path, f"{entry.name} is not as it was written")
        finally:
            os.close(source)


def damaged(path: Path, what: str) -> StorageFailed:
    return StorageFailed(f"{path}: the backup is damaged: {what}; use another one")


def _checksum(document: dict[str, Any]) -> str:
    content = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()
