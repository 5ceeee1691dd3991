# SPDX-License-Identifier: AGPL-3.0-only
"""Leaves a hook alone for a while after it failed several times in a row.

This module owns when a call is allowed. It must not know Lua or queues, and it has no clock: every
time is the caller's monotonic now.

    closed --threshold failures in a row--> open --cooldown over--> one trial
       ^                                      ^                     |      |
       '------------------ success -----------|---------------------'      |
                                              '--------- failure ----------'
"""


class Breaker:
    """Counts failures in a row; open from the threshold on, until a call succeeds."""

    __slots__ = ("_cooldown_ns", "_opened_until_ns", "_threshold", "failures_in_a_row")

    def __init__(self, threshold: int, cooldown_ms: int) -> None:
        self._threshold = threshold
        self._cooldown_ns = cooldown_ms * 1_000_000
        self._opened_until_ns = 0
        self.failures_in_a_row = 0

    @property
    def is_open(self) -> bool:
        """True until a trial call succeeds, even if the cooldown is over."""
        return self.failures_in_a_row >= self._threshold

    def allows(self, now_ns: int) -> bool:
        """Return whether a call may be made: always while closed, as a trial after the cooldown."""
        return self.failures_in_a_row < self._threshold or now_ns >= self._opened_until_ns

    def succeeded(self) -> bool:
        """Close; return whether it was open."""
        was_open = self.is_open
        self.failures_in_a_row = 0
        return was_open

    def failed(self, now_ns: int) -> bool:
        """Count one failure; at the threshold, and after a failed trial, open for the cooldown.

        Return whether it was closed until now.
        """
        self.failures_in_a_row += 1
        if self.failures_in_a_row >= self._threshold:
            self._opened_until_ns = now_ns + self._cooldown_ns
        return self.failures_in_a_row == self._threshold
