# SPDX-License-Identifier: AGPL-3.0-only
"""A broker whose wall clock begins at WALL_NS and goes on from there.

What is stored with the time of day, such as leases and delays, is as it was then. Everything else
is the broker as it is.
"""

import os
import time

from fila_server.main import main


def begin_at(wall_ns: int) -> None:
    """Set this process's idea of the time of day."""
    offset_ns = wall_ns - time.time_ns()
    real_ns = time.time_ns
    time.time_ns = lambda: real_ns() + offset_ns


if __name__ == "__main__":
    begin_at(int(os.environ["WALL_NS"]))
    main()
