# SPDX-License-Identifier: AGPL-3.0-only
"""Commands that wait for the engine, and how many of them make a group.

A group is bounded by what it costs to handle, so that nobody waits long for the loop. Light
commands go before heavy ones: whoever asks for little does not wait behind somebody's batches. A
group that takes heavy commands takes one at least, so those go on under any load.

In a line order is kept. Nothing orders two calls that are under way at the same time, so no caller
can tell that there are two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from fila_server.core.commands import Ack, Command, Enqueue, Extend, Nack, SettleGrants
from fila_server.core.turn import BYTES_PER_UNIT

# A group of this cost takes a millisecond or two. One fsync serves all groups that were written
# before it began, so larger groups would buy next to nothing.
GROUP_UNITS = 512
# Single calls and small batches. The others are heavy.
_LIGHT_UNITS = 32

_Items = (Enqueue, Ack, Nack, Extend)


def count(group: Iterable[Command]) -> int:
    """Return how many messages the commands are about."""
    return sum(map(_count, group))


def _count(command: Command) -> int:
    if isinstance(command, SettleGrants):  # as far as they say
        return sum(item.expected_messages or 1 for item in command.items)
    return len(command.items) if isinstance(command, _Items) else 0


class Inbox:
    """What waits, in two lines."""

    def __init__(self) -> None:
        self._light: deque[tuple[Command, int]] = deque()  # with its cost
        self._heavy: deque[tuple[Command, int]] = deque()

    @property
    def has_light(self) -> bool:
        return bool(self._light)

    @property
    def has_heavy(self) -> bool:
        return bool(self._heavy)

    def put(self, command: Command, size: int = 0, callers: int = 1) -> bool:
        """Let a command wait, and return whether it is light: that is what each of its callers asks
        for.
        """
        units = max(1, count((command,))) + size // BYTES_PER_UNIT
        is_light = units <= _LIGHT_UNITS * callers
        (self._light if is_light else self._heavy).append((command, units))
        return is_light

    def take(self, with_heavy: bool) -> list[Command]:
        """Return the commands of the next group."""
        group: list[Command] = []
        left = GROUP_UNITS
        while self._light and left > 0:
            left -= self._move(self._light, group)
        if self._heavy and with_heavy:
            left -= self._move(self._heavy, group)
            while self._heavy and self._heavy[0][1] <= left:
                left -= self._move(self._heavy, group)
        return group

    def _move(self, line: deque[tuple[Command, int]], group: list[Command]) -> int:
        command, units = line.popleft()
        group.append(command)
        return units
