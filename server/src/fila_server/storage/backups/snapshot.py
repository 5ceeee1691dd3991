# SPDX-License-Identifier: AGPL-3.0-only
"""The files of a store that a broker is writing, as they are at one moment.

Theory of operation. RocksDB never changes a table once it is listed in the manifest, and only adds
to its manifest and its logs. It adds to the manifest before it deletes what the manifest no longer
lists. So if the manifest was not added to while all files were opened, then every file that it
lists is among them, and a file that is open stays whole when its name is deleted. The sizes of the
manifest and of the logs are noted then, and what comes later is not part of the snapshot. If it was
added to, all begins again: that takes milliseconds, and RocksDB adds a few times a second at most.

Tables that are still being written are opened, too. The manifest does not list them; whoever reads
it tells them apart. This runs in a process of its own, and neither locks nor stops the broker.
"""

import os
import resource
from contextlib import suppress
from pathlib import Path
from time import sleep
from types import TracebackType
from typing import NamedTuple

from fila_server.errors import StorageFailed
from fila_server.storage.faults import explain

_ATTEMPTS = 100
_PAUSE_S = 0.01


class Opened(NamedTuple):
    """A file by its descriptor, and how many of its bytes belong to the snapshot."""

    descriptor: int
    size: int


class Snapshot:
    """Open files by name, until the way out. Raises StorageFailed if they never hold still.

    `current` is what the file CURRENT says.
    """

    def __init__(self, path: Path) -> None:
        _raise_limit()
        self.files: dict[str, Opened] = {}
        try:
            for _ in range(_ATTEMPTS):
                if self._take(path):
                    return
                self.close()
                sleep(_PAUSE_S)
        except OSError as error:
            self.close()
            raise explain(path, error) from error
        raise StorageFailed(
            f"{path}: its files changed {_ATTEMPTS} times while they were opened; try again when"
            " less is written"
        )

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files.values())

    def __enter__(self) -> "Snapshot":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for file in self.files.values():
            os.close(file.descriptor)
        self.files.clear()

    def _take(self, path: Path) -> bool:
        """Open everything, and return whether the manifest stayed as it was."""
        self.current = (path / "CURRENT").read_bytes()
        manifest = self.current.decode().strip()
        try:
            size = (path / manifest).stat().st_size
        except FileNotFoundError:
            return False  # replaced meanwhile
        names = os.listdir(path)
        # Each log ends where the next begins: in this order, none is cut before a later one.
        logs = sorted((name for name in names if name.endswith(".log")), key=_number)
        tables = [name for name in names if name.endswith(".sst")]
        for name in (manifest, *tables, *logs):
            try:
                descriptor = os.open(path / name, os.O_RDONLY)
            except FileNotFoundError:
                continue  # no longer listed, or the manifest has changed
            self.files[name] = Opened(descriptor, os.fstat(descriptor).st_size)
        is_same = (path / "CURRENT").read_bytes() == self.current
        return is_same and manifest in self.files and self._size(manifest) == size

    def _size(self, name: str) -> int:
        return os.fstat(self.files[name].descriptor).st_size


def _raise_limit() -> None:
    """Let this process open as many files as the system lets it: one for each table."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _number(name: str) -> int:
    return int(name.partition(".")[0])
