# SPDX-License-Identifier: AGPL-3.0-only
"""Why a lane waits. Stats and explanations both ask here, so that they say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fila_server.core.schedule.lane import Lane
    from fila_server.core.schedule.limiter import Limiter
    from fila_server.core.schedule.queue import Queue


def blockers(lane: Lane, now_ns: int) -> list[Limiter]:
    """Return the limiters that hold the lane back now, itself or those before it in their line."""
    cost = lane.cost
    found = [limiter for limiter in lane.limiters if limiter.blocked_until(cost, now_ns)]
    line = lane.line
    if line is not None and not lane.is_ready and line.limiter not in found:
        first: Lane = line.waiting.peekitem(0)[1]
        if line.limiter.blocked_until(first.cost, now_ns):
            found.append(line.limiter)
    return found


def has_credit(queue: Queue) -> bool:
    """Whether any consumer would take more messages than it holds."""
    return bool(queue.available) or any(consumer.credit > 0 for consumer in queue.consumers)
