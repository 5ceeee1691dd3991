# SPDX-License-Identifier: AGPL-3.0-only
"""A turn: the time it happens at, what it writes and leads to, and how much work it has done.

Work is counted in units: messages touched, records read, lanes looked at. A turn does a bounded
number of them and leaves the rest for the next.
"""

from __future__ import annotations

from typing import NamedTuple

from fila_server.core.batch import Batch
from fila_server.core.clock import NS_PER_MS, Now
from fila_server.core.effects import Effects
from fila_server.core.schedule.message import Origin
from fila_server.core.wire.intake import PIECE_ITEMS
from fila_server.core.wire.records import ID_TAG, stamp
from fila_server.errors import DiskFull
from fila_server.storage.api import Reader

# Messages that one command may touch before the others get their turn: a piece is done at once.
SLICE = PIECE_ITEMS
# A write of this many bytes costs as much as handling one message.
BYTES_PER_UNIT = 1024
# Bytes that are read or sent, and not written, cost far less.
COPIED_PER_UNIT = 16 * 1024
# What time brings, and commands that have just come: as much of each in one turn. The engine bounds
# the messages of a group; this bounds what else hundreds of calls ask for.
TIME_UNITS = 500
COMMAND_UNITS = 2000
# What hooks may take of a turn, all commands together; their own limits bound a single call.
HOOK_NS = 20 * NS_PER_MS


class Room(NamedTuple):
    """How many units of what can wait a turn may do."""

    slice: int  # of one command
    chores: int  # of all commands that go on from turns before
    deliveries: int


FULL = Room(SLICE, 1000, 2000)
# Somebody asks for little, and a unary call takes eight rounds of the loop.
SHARED = Room(200, 200, 500)
# The same, while heavy work rests.
BRIEF = Room(200, 0, 200)


class Turn:
    """The turn under way. Begun anew for each, so that work which spans several can hold on to it;
    only `batch`, `effects` and `write` must not be kept across a turn's end.
    """

    __slots__ = (
        "batch",
        "disk_full",
        "effects",
        "front",
        "hook_ns",
        "now",
        "origin",
        "room",
        "units",
        "write",
    )

    def __init__(self, read: Reader) -> None:
        # Why nothing may be written that need not be, None while there is room; the engine knows.
        self.disk_full: DiskFull | None = None
        self.room = FULL
        self.begin(Now(0, 0), read, ID_TAG)

    def begin(self, now: Now, read: Reader, id_field: bytes) -> None:
        self.now = now
        self.batch = Batch(read)
        self.write = self.batch.writes.append  # for what runs per message
        self.effects = Effects(self.batch)
        self.origin = Origin(stamp(now.wall_ns), id_field)  # of messages that are enqueued now
        self.front = self.origin.stamp + id_field  # of their records, after the head
        self.units = 0
        self.hook_ns = 0  # what hooks have taken of it

    @property
    def has_hook_time(self) -> bool:
        """Whether hooks may be called in this turn; the rest waits for the next."""
        return self.hook_ns < HOOK_NS
