# SPDX-License-Identifier: AGPL-3.0-only
"""A broker that kills itself, as kill -9 would, at a chosen point of its work with the store.

CRASH_POINT names the point and CRASH_AT its how-maniest passing. Everything else is the broker as
it is; the points are put around the store's methods from outside.
"""

import os
import signal
from collections.abc import Callable
from typing import Any

from fila_server.core.broker import Broker
from fila_server.main import main
from fila_server.storage.rocks import RocksStorage

POINTS = ("before write", "after write", "before sync", "after sync", "recovered")


class Fuse:
    """Burns down by one at every passing of its point."""

    def __init__(self, point: str, length: int) -> None:
        self.point = point
        self.left = length

    def touch(self, point: str) -> None:
        if point == self.point:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def surround(self, owner: type, method: str, before: str, after: str) -> None:
        original: Callable[..., Any] = getattr(owner, method)

        def call(*arguments: Any) -> Any:
            self.touch(before)
            result = original(*arguments)
            self.touch(after)
            return result

        setattr(owner, method, call)


if __name__ == "__main__":
    fuse = Fuse(os.environ["CRASH_POINT"], int(os.environ["CRASH_AT"]))
    fuse.surround(RocksStorage, "write", "before write", "after write")
    fuse.surround(RocksStorage, "sync", "before sync", "after sync")
    fuse.surround(Broker, "recover", "", "recovered")
    main()
