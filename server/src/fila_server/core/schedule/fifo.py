# SPDX-License-Identifier: AGPL-3.0-only
"""The messages of a lane that wait as they came, as few bytes of each as will do.

A message on disk is its number. One in memory is its number, its content and the group that it came
with: no object is made of it before it is picked. A few have an object already, because they came
back; their place is an order of its own.

They stand in chunks, by order. So nothing that grows with the lane is ever moved or made anew: an
end costs the same with ten and with a million, and taking one out of the middle moves a chunk's
worth at most. Only counting how many stand before one looks at every chunk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fila_server.core.schedule.message import Message, Origin

if TYPE_CHECKING:
    from fila_server.core.schedule.lane import Lane

# A pending message: itself, or its number when only the disk has it.
Waiting = Message | int
# A message to deliver: itself, or its lane and number when only the disk has it.
Pick = Message | tuple["Lane", int]
# What memory has of a message: nothing, its content, or the message.
Kept = Message | bytes | None

CHUNK = 512
_SPARE = 16  # places at a chunk's front that are not worth clearing away


class Chunk:
    """Neighbours: their orders, and in lists beside these what memory has of them, if it has
    anything of any.
    """

    __slots__ = ("at", "kept", "orders", "origins")

    def __init__(self) -> None:
        self.at = 0  # those before it have been taken out
        self.orders: array[int] = array("Q")
        self.kept: list[Kept] | None = None
        self.origins: list[Origin | None] | None = None  # of those with a content

    def warm(self) -> None:
        """Make the lists, for the first one of which memory has something."""
        self.kept = [None] * len(self.orders)
        self.origins = [None] * len(self.orders)

    def skip(self, at: int) -> None:
        """Let go of all before `at`, which have been taken out. Something is left."""
        self.at = at
        if at > _SPARE and 2 * at > len(self.orders):  # so that a lane that never ends stays small
            self.at = 0
            del self.orders[:at]
            if self.kept is not None and self.origins is not None:
                del self.kept[:at]
                del self.origins[:at]

    def empty(self) -> None:
        """Be as new. Lists that were needed will be again."""
        self.at = 0
        del self.orders[:]
        if self.kept is not None and self.origins is not None:
            self.kept.clear()
            self.origins.clear()


class Fifo:
    """Pending messages in their order. `lane` is theirs, and given where a message is made."""

    __slots__ = ("chunks", "size")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []  # none of them is empty but a lone one
        self.size = 0

    def append(self, order: int, kept: Kept, origin: Origin | None) -> None:
        """Let a message wait whose order is above all others'."""
        chunks = self.chunks
        if not chunks or len(chunks[-1].orders) == CHUNK:
            chunks.append(Chunk())
        chunk = chunks[-1]
        if kept is not None and chunk.kept is None:
            chunk.warm()
        chunk.orders.append(order)
        if chunk.kept is not None and chunk.origins is not None:
            chunk.kept.append(kept)
            chunk.origins.append(origin)
        self.size += 1

    def first_order(self) -> int:
        """Return the first one's order. There is one."""
        chunk = self.chunks[0]
        return chunk.orders[chunk.at]

    def first(self) -> Waiting:
        """Return the first one: its number, unless it has an object. There is one."""
        chunk = self.chunks[0]
        kept = None if chunk.kept is None else chunk.kept[chunk.at]
        return kept if isinstance(kept, Message) else chunk.orders[chunk.at]

    def take(self, lane: Lane, count: int, picked: list[Pick]) -> None:
        """Move so many from the front to `picked`. There are as many."""
        self.size -= count
        while count > 0:
            chunk = self.chunks[0]
            orders, kept, origins = chunk.orders, chunk.kept, chunk.origins
            start = chunk.at
            end = min(len(orders), start + count)
            count -= end - start
            if kept is None or origins is None:
                picked.extend([(lane, order) for order in orders[start:end]])
            else:
                for at in range(start, end):
                    one = kept[at]
                    if one is None:
                        picked.append((lane, orders[at]))
                    elif isinstance(one, Message):
                        picked.append(one)
                    else:
                        picked.append(Message(orders[at], one, lane, origins[at]))  # type: ignore[arg-type]
                    kept[at] = origins[at] = None  # else the chunk would keep it in memory
            if end < len(orders):
                chunk.skip(end)
            elif len(self.chunks) > 1:
                del self.chunks[0]
            else:
                chunk.empty()

    def pop(self, lane: Lane) -> Waiting:
        """Take out the first one. There is one."""
        chunk = self.chunks[0]
        found = _waiting(chunk, chunk.at, lane)
        self._remove(0, chunk.at)
        return found

    def __contains__(self, order: int) -> bool:
        return self._find(order) is not None

    def before(self, order: int) -> int:
        """Return how many have a smaller order."""
        count = 0
        for chunk in self.chunks:
            if not chunk.orders or chunk.orders[-1] >= order:
                return count + bisect_left(chunk.orders, order, chunk.at) - chunk.at
            count += len(chunk.orders) - chunk.at
        return count

    def discard(self, order: int, lane: Lane) -> Waiting | None:
        """Take out the message of this order; None if it is not here."""
        found = self._find(order)
        if found is None:
            return None
        chunk = self.chunks[found[0]]
        waiting = _waiting(chunk, found[1], lane)
        self._remove(*found)
        return waiting

    def __iter__(self) -> Iterator[tuple[int, Kept]]:
        """Yield orders, and what memory has of each."""
        for chunk in self.chunks:
            for at in range(chunk.at, len(chunk.orders)):
                yield chunk.orders[at], None if chunk.kept is None else chunk.kept[at]

    def _find(self, order: int) -> tuple[int, int] | None:
        """Return the chunk that has this order, and where in it."""
        number = bisect_left(self.chunks, order, key=_last_order)
        if number == len(self.chunks):
            return None
        chunk = self.chunks[number]
        at = bisect_left(chunk.orders, order, chunk.at)
        if at == len(chunk.orders) or chunk.orders[at] != order:
            return None
        return number, at

    def _remove(self, number: int, at: int) -> None:
        chunk = self.chunks[number]
        self.size -= 1
        if len(chunk.orders) - chunk.at > 1:
            if at == chunk.at:
                if chunk.kept is not None and chunk.origins is not None:
                    chunk.kept[at] = chunk.origins[at] = None
                chunk.skip(at + 1)
                return
            del chunk.orders[at]
            if chunk.kept is not None and chunk.origins is not None:
                del chunk.kept[at]
                del chunk.origins[at]
        elif len(self.chunks) > 1:
            del self.chunks[number]
        else:
            chunk.empty()


def _waiting(chunk: Chunk, at: int, lane: Lane) -> Waiting:
    order = chunk.orders[at]
    if chunk.kept is None or chunk.origins is None:
        return order
    kept = chunk.kept[at]
    if isinstance(kept, bytes):
        return Message(order, kept, lane, chunk.origins[at])  # type: ignore[arg-type]
    return order if kept is None else kept


def _last_order(chunk: Chunk) -> int:
    return chunk.orders[-1] if chunk.orders else -1
