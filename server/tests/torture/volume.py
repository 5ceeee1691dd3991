# SPDX-License-Identifier: AGPL-3.0-only
"""A small volume to fill: a tmpfs where this user may mount one, else a folder with a quota that
faultfs.c enforces in the broker's process.
"""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from server.tests.preload import FAULTFS, compiled


class Volume(NamedTuple):
    """Where it is, what a broker on it has to be started with, and what it is made of."""

    path: Path
    size_bytes: int
    kind: str
    environment: Mapping[str, str]

    def free_bytes(self) -> int:
        used = 0
        for file in (self.path / "data").rglob("*"):
            with suppress(FileNotFoundError):  # the store has just removed it
                used += file.stat().st_blocks * 512
        return self.size_bytes - used


@contextmanager
def volume(folder: Path, size_bytes: int, files: int = 0) -> Iterator[Volume]:
    """Make a volume of that size under `folder`, until the end of the block.

    Room for a number of `files` only needs a user who may mount.
    """
    path = folder / "volume"
    path.mkdir()
    options = f"size={size_bytes},nr_inodes={files}" if files else f"size={size_bytes}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True).returncode == 0:
        try:
            yield Volume(path, size_bytes, "tmpfs", {})
        finally:
            subprocess.run(["umount", str(path)], check=True)
        return
    library = compiled(FAULTFS, folder)
    quota = {"LD_PRELOAD": str(library), "FAULT_QUOTA": f"{size_bytes}:{path / 'data'}"}
    yield Volume(path, size_bytes, "quota", quota)
