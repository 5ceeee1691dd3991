# SPDX-License-Identifier: AGPL-3.0-only
"""Time as the core sees it: a value that comes in with every call.

The monotonic reading drives leases, delays, time to live and throttles. The wall reading is what is
stored and shown, and what a restart turns back into a monotonic deadline.
"""

from typing import NamedTuple

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


class Now(NamedTuple):
    """One reading of both clocks, in nanoseconds."""

    mono_ns: int
    wall_ns: int

    def mono_at(self, wall_ns: int) -> int:
        """Return the monotonic time at which the wall clock is expected to show `wall_ns`."""
        return self.mono_ns + wall_ns - self.wall_ns
