# SPDX-License-Identifier: AGPL-3.0-only
"""What pages show while it changes: the overview, and one queue. Gathered once for all who may
see the same.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Any

from fila.v1 import admin_pb2 as pb
from fila_server.errors import FilaError
from fila_server.http import views
from fila_server.http.gathering import Gatherer
from fila_server.rpc.admin import perform, permit
from fila_server.rpc.auth import restricted
from fila_server.runtime.engine import Engine

# A name may not be longer, and every text is a view of its own.
_MATCH_CHARS = 255


class Live:
    """Encoded views of a running broker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._gatherer = Gatherer()

    def close(self) -> None:
        self._gatherer.close()

    async def overview(self, match: str) -> bytes:
        """Return the queues whose names hold a text, and how the broker is doing."""
        match = match[:_MATCH_CHARS]
        return await self._gatherer.view(
            ("overview", _rights(), match), lambda: self._overview(match)
        )

    async def queue(self, name: str) -> bytes:
        """Return one queue's stats. Raises FilaError."""
        request = pb.GetStatsRequest(queue=name, max_keys=views.KEYS_MAX)
        permit("GetStats", request)  # for this caller; the view may be another's
        return await self._gatherer.view(("queue", name), lambda: self._queue(request))

    async def _queue(self, request: pb.GetStatsRequest) -> bytes:
        response = await perform(self._engine, "GetStats", request)
        seen = {"at": _now_ms(), "name": request.queue, **views.stats(response)}
        seen["waiters"] = await self._waiters(request.queue, response)
        return views.encode(seen)

    async def _waiters(self, queue: str, response: pb.GetStatsResponse) -> list[views.Json]:
        """Return which throttle keys the fairness keys wait for that limits hold back most.

        Stats say how much of a key is held back, and not by what; that, its explanation says.
        """
        waiters = []
        for row in views.held_most(response):
            question = pb.ExplainRequest(queue=queue, fairness_key=row.key)
            answer = await perform(self._engine, "Explain", question)
            waiters.append(views.waiter(row, answer))
        return waiters

    async def _overview(self, match: str) -> bytes:
        response = await perform(self._engine, "ListQueues", pb.ListQueuesRequest())
        rows = (row for row in response.queues if match in row.name)
        queues, count = await views.queues(rows)
        return views.encode(
            {"at": _now_ms(), "queues": queues, "queue_count": count, **await self._status()}
        )

    async def _status(self) -> dict[str, Any]:
        try:
            response = await perform(self._engine, "GetStatus", pb.GetStatusRequest())
        except FilaError:  # not for this caller, or the broker is on its way out
            return {"status": None, "troubles": []}
        caller = restricted()
        troubles = [
            views.trouble(row)
            for row in response.troubles
            if caller is None or not row.queue or caller.may_see(row.queue)
        ]
        return {"status": views.status(response), "troubles": troubles}


def _rights() -> Hashable:
    """Return what two callers have in common who see the same."""
    caller = restricted()
    return None if caller is None else caller.acl


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
