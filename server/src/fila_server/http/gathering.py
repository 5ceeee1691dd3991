# SPDX-License-Identifier: AGPL-3.0-only
"""What pages show is asked of the engine here, seldom, and kept for everybody who may see it.

A view is gathered at most once a second, whoever asks. Views are gathered one at a time, and after
each one there is a rest, so that all pages together take a known part of the broker's time and no
more. A page that would have to wait gets what was gathered last.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple

from fila_server.errors import Overloaded

_FRESH_S = 1.0
# Rests are so many times as long as what they follow: gathering takes a twentieth of the time.
_REST = 19
# A broker that is busy answers late. Pages should not stand still for that.
_REST_MAX_S = 5.0
# Then a page gets what there is, and its next poll the rest.
_PATIENCE_S = 1.0
_PATIENCE_WITHOUT_S = 20.0
_VIEWS_MAX = 64
# Views that wait to be gathered. Whoever asked may be gone, and every text to look for is another.
_WAITING_MAX = 64

Gather = Callable[[], Awaitable[bytes]]


class _View(NamedTuple):
    body: bytes
    at_s: float


class Gatherer:
    """Encoded views by name."""

    def __init__(self) -> None:
        self._views: OrderedDict[Hashable, _View] = OrderedDict()
        self._under_way: dict[Hashable, asyncio.Task[bytes]] = {}
        self._turn = asyncio.Lock()
        self._rests_until_s = 0.0
        self.gathered = 0  # views, since the start

    async def view(self, name: Hashable, gather: Gather) -> bytes:
        """Return a view, gathered if it is not fresh. Raises what gathering raises, Overloaded."""
        now_s = asyncio.get_running_loop().time()
        last = self._views.get(name)
        if last is not None:
            self._views.move_to_end(name)
            if now_s - last.at_s < _FRESH_S:
                return last.body
        task = self._under_way.get(name)
        if task is None:
            if len(self._under_way) >= _WAITING_MAX:
                raise Overloaded(f"{len(self._under_way)} views are waiting; try again later")
            task = asyncio.get_running_loop().create_task(self._gather(name, gather))
            self._under_way[name] = task
            task.add_done_callback(lambda done: self._ended(name, done))
        patience_s = _PATIENCE_S if last is not None else _PATIENCE_WITHOUT_S
        await asyncio.wait((task,), timeout=patience_s)
        if task.done():
            return task.result()
        if last is not None:
            return last.body
        raise Overloaded("the broker is busy with other views; try again later")

    async def _gather(self, name: Hashable, gather: Gather) -> bytes:
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(max(0.0, self._rests_until_s - loop.time()))
            began_s = loop.time()
            try:
                body = await gather()
            finally:
                took_s = loop.time() - began_s
                self._rests_until_s = loop.time() + min(_REST_MAX_S, _REST * took_s)
            self.gathered += 1
            self._views[name] = _View(body, loop.time())
            self._views.move_to_end(name)
            if len(self._views) > _VIEWS_MAX:
                self._views.popitem(last=False)
            return body

    def _ended(self, name: Hashable, task: asyncio.Task[bytes]) -> None:
        del self._under_way[name]
        if not task.cancelled():
            task.exception()  # whoever asked may have left; then nobody else looks at it

    def close(self) -> None:
        for task in list(self._under_way.values()):
            task.cancel()
