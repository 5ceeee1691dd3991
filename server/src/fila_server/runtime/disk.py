# SPDX-License-Identifier: AGPL-3.0-only
"""Whether the data volume has room for more messages, and what is done when it has not.

The floor is what the operator wants free (`storage.min_free_bytes`) and what the store may still
need for what it holds already: its buffers, which are written out, and its files, which are merged.
Below the floor enqueues are refused, so that acks, nacks and leases can go on writing. Then the
store is asked to give back the space of what was settled, again and again, until there is room.

The volume is looked at every second, and sooner once the engine has written so much that the floor
could be near. Somebody else may fill the volume nevertheless. If the space for what is in memory
gets short, the reserve is given up; at a start the store does so itself.

This module knows nothing of commands. It runs on the owner's thread, but for `reclaim`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from fila_server.errors import DiskFull, StorageFailed
from fila_server.storage.api import Space, Storage

log = logging.getLogger(__name__)

MIB = 1024 * 1024

_CHECK_S = 1.0
# At least so much is written between two looks: a look costs as much as writing some of it.
_LOOK_BYTES = MIB
# While there is room, space is given back in passing: once a minute, if it is worth a flush.
_IDLE_RECLAIM_S = 60.0
_IDLE_DELETIONS = 1000
# While there is little, as often as merging files keeps up with.
_TIGHT_RECLAIM_S = 5.0


class Disk:
    """The room on the data volume. `failed` is told of a store that can no longer say."""

    def __init__(
        self, storage: Storage, min_free_bytes: int, failed: Callable[[StorageFailed], None]
    ) -> None:
        self._storage = storage
        self._min_free_bytes = min_free_bytes
        self._failed = failed
        self.space = Space(0, 0, 0, 0, 0)
        self._until_look = 0  # bytes that may be written before the next look
        self._since_reclaim = 0  # bytes written since the last reclaim
        self._reclaimed_s = 0.0
        self._reclaimer: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_low = False

    def start(self) -> None:
        """Look at the volume, now and from now on."""
        self._loop = asyncio.get_running_loop()
        self._reclaimed_s = self._loop.time()
        self._tick()

    def stop(self) -> None:
        """Look no more. A reclaim under way is ended by closing the store."""
        if self._timer is not None:
            self._timer.cancel()

    def wrote(self, count: int) -> None:
        """Note that so many bytes were written, and look again if that could matter.

        Raises StorageFailed.
        """
        self._since_reclaim += count
        self._until_look -= count
        if self._until_look < 0:
            self._look()

    def refusal(self) -> DiskFull:
        """Return why enqueues are refused, with the figures and what helps."""
        space = self.space
        needed = space.buffered + space.merging
        return DiskFull(
            f"the data volume has {_mib(space.free)} MiB free, and enqueues are refused below"
            f" {_mib(self.floor)} MiB: {_mib(self._min_free_bytes)} MiB for acks"
            f" (storage.min_free_bytes) and {_mib(needed)} MiB to write out and merge what is"
            " stored; ack or purge messages, whose space comes back within seconds, or give the"
            " volume more room"
        )

    @property
    def floor(self) -> int:
        """What has to stay free on the volume."""
        return self._min_free_bytes + self.space.buffered + self.space.merging

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_CHECK_S, self._tick)
        try:
            self._look()
        except StorageFailed as error:
            self._failed(error)

    def _look(self) -> None:
        space = self.space = self._storage.space()
        room = space.free - self.floor
        # What is written takes its size in the log, and once more when it is written out.
        self._until_look = max(_LOOK_BYTES, room // 4)
        self._judge(room)
        self._keep_reserve(space)
        if self._is_worth_a_reclaim(space, is_tight=room < self.floor):
            self._reclaim()

    def _judge(self, room: int) -> None:
        if room < 0 and not self.is_low:
            self.is_low = True
            log.warning("enqueues are refused: %s", self.refusal().message)
        elif room >= self._min_free_bytes // 4 and self.is_low:  # not at every turn of the tide
            self.is_low = False
            log.info(
                "the data volume has space again, %d MiB free: enqueues are accepted",
                _mib(self.space.free),
            )

    def _keep_reserve(self, space: Space) -> None:
        """Have a reserve while the volume is not far from full, unless it is used up."""
        size = self._storage.reserve_bytes
        if space.reserved:
            if space.free < space.buffered + self._min_free_bytes // 4:
                self._storage.release_reserve()
                log.warning(
                    "the data volume has %d MiB free: the reserve of %d MiB is given up for acks",
                    _mib(space.free),
                    _mib(space.reserved),
                )
        elif self.floor + 2 * size < space.free < 4 * (self.floor + size):
            self._storage.hold_reserve()

    def _is_worth_a_reclaim(self, space: Space, is_tight: bool) -> bool:
        if not space.deleted or (self._reclaimer is not None and self._reclaimer.is_alive()):
            return False
        waited_s = self._loop.time() - self._reclaimed_s
        if is_tight:
            return waited_s > _TIGHT_RECLAIM_S or self._since_reclaim > self._min_free_bytes // 8
        return waited_s > _IDLE_RECLAIM_S and space.deleted > _IDLE_DELETIONS

    def _reclaim(self) -> None:
        self._reclaimed_s = self._loop.time()
        self._since_reclaim = 0
        # A thread of its own: it may take minutes, with the interpreter lock released.
        self._reclaimer = threading.Thread(
            target=self._run_reclaim, name="fila-reclaim", daemon=True
        )
        self._reclaimer.start()

    def _run_reclaim(self) -> None:
        try:
            self._storage.reclaim()
        except StorageFailed as error:
            log.warning("space of settled messages is not given back yet: %s", error.message)


def _mib(count: int) -> int:
    return count // MIB
