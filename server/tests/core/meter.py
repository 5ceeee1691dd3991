# SPDX-License-Identifier: AGPL-3.0-only
"""How much work turns do: in units, and in lines of the core that were run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

from fila_server.core.commands import Command
from server.tests.core.harness import Harness, check_consistent

CORE = os.path.join("fila_server", "core")
MOST_UNITS = 6000
MOST_LINES = 400_000
SIZES = (3_000, 9_000)

# Makes a queue of a size, and returns what is then asked of the broker.
Case = Callable[[Harness, int], list[Command]]


class Meter:
    """Takes turns, and notes the largest."""

    def __init__(self, h: Harness) -> None:
        self._h = h
        self.units = self.lines = self.turns = 0

    def run(self, commands: Iterable[Command]) -> None:
        group = list(commands)
        while True:
            # Counting lines is slow, and one turn of a long command is like the others.
            is_counted = self.turns < 4 or self.turns % 7 == 0
            with counting() if is_counted else nullcontext([0]) as lines:
                effects = self._h.broker.handle(group, self._h.clock.now())
            self._h.storage.write(effects.writes)
            self._h.storage.sync()
            self.units = max(self.units, effects.units)
            self.lines = max(self.lines, lines[0])
            self.turns += 1
            group = []
            if not effects.more:
                return
            assert self.turns < 1000, "it does not end"


@contextmanager
def counting() -> Iterator[list[int]]:
    """Count the lines of the core that are run."""
    count = [0]

    def call(frame: FrameType, event: str, _: Any) -> Any:
        return line if CORE in frame.f_code.co_filename else None

    def line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            count[0] += 1
        return line

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield count
    finally:
        sys.settrace(before)


def assert_bounded(case: Case) -> None:
    """Fail if the largest turn of a case grows with the size."""
    meters = []
    for size in SIZES:
        h = Harness(hot_bytes=0)
        meter = Meter(h)
        meter.run(case(h, size))
        meters.append(meter)
    small, large = meters
    assert large.units <= MOST_UNITS
    assert large.lines <= MOST_LINES
    assert large.units <= small.units * 1.1 + 1000  # the small one may not fill a turn
    assert large.lines <= small.lines * 1.3 + 10_000 + 30 * max(0, large.units - small.units)
    check_consistent(h)
