# SPDX-License-Identifier: AGPL-3.0-only
"""Answers of pipelines that wait for their callers to read. They take up no room of requests, or
who reads nothing would keep others out; they are counted here, and when they are too many the
pipeline that has the most of them is cut. Who reads what it asked for is never that one.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol


class Reader(Protocol):
    """Whoever has answers that wait."""

    def cut(self) -> None:
        """End it; there is no telling somebody who does not read."""


class Unread:
    """Counts them. Everything happens on the event loop's thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes: Counter[Reader] = Counter()
        self.all = 0

    def put(self, reader: Reader, size: int) -> None:
        self._sizes[reader] += size
        self.all += size
        if self.all > self._most:
            worst = max(self._sizes, key=self._sizes.__getitem__)
            self.forget(worst)
            worst.cut()

    def take(self, reader: Reader, size: int) -> None:
        """One has been read, or is on its way."""
        if reader in self._sizes:  # it was not cut
            self._sizes[reader] -= size
            self.all -= size

    def forget(self, reader: Reader) -> None:
        self.all -= self._sizes.pop(reader, 0)
