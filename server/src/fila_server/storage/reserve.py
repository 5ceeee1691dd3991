# SPDX-License-Identifier: AGPL-3.0-only
"""Space kept back on the data volume, in real blocks.

A store on a full volume cannot even be opened: what its log holds is written out first, and only
then is the log given back. The reserve is given up for that, and made again when there is room.

This module knows nothing of when. Its errors are plain OSErrors.
"""

import os
from pathlib import Path


class Reserve:
    """The reserve file. `bytes` is 0 while there is none."""

    __slots__ = ("_path", "bytes")

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # Blocks, not length: a copy of the directory may have left holes.
            self.bytes = path.stat().st_blocks * 512
        except FileNotFoundError:
            self.bytes = 0

    def hold(self, size: int) -> None:
        """Keep `size` bytes back, or nothing if the volume has not that much left."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            self.bytes = size
        except OSError:
            self.release()
        finally:
            os.close(fd)

    def release(self) -> None:
        """Give the space back to the volume."""
        self._path.unlink(missing_ok=True)
        self.bytes = 0
