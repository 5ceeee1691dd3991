# SPDX-License-Identifier: AGPL-3.0-only
"""Throttle keys as operators see them: what limits each, what passes, what nobody configured."""

from __future__ import annotations

from collections.abc import Generator
from itertools import chain
from typing import TYPE_CHECKING

from fila.v1 import admin_pb2 as pb
from fila_server.core.admin.tally import smallest
from fila_server.core.schedule.limiter import Limiter
from fila_server.limits import DEFAULT_THROTTLES

if TYPE_CHECKING:
    from fila_server.core.clock import Now
    from fila_server.core.state import State
    from fila_server.core.turn import Turn

_MOST = 10_000


def list_throttles(
    state: State, request: pb.ListThrottlesRequest, turn: Turn
) -> Generator[int, None, pb.ListThrottlesResponse]:
    """List the throttle keys in use and those with settings of their own, by name."""
    limiters = state.throttles.limiters
    names = [] if request.unset else state.settings.throttle_keys()
    found: list[str] = []
    for name in dict.fromkeys(chain(limiters, names)):
        yield 1
        if name.startswith(request.prefix):
            limiter = limiters.get(name)
            if not request.unset or (limiter is not None and not limiter.is_set):
                found.append(name)
    response = pb.ListThrottlesResponse(total_count=len(found))
    wanted = min(request.limit or DEFAULT_THROTTLES, _MOST)
    for name in (yield from smallest(found, wanted, str)):
        limiter = limiters.get(name)
        if limiter is None:
            limiter = Limiter(name)
            limiter.configure(*state.settings.throttle(name), turn.now.mono_ns)
        waiting = 0
        for lane in list(limiter.lanes):
            waiting += len(lane)
            yield 1
        response.throttles.append(row(limiter, waiting, turn.now))
        yield 1
    return response


def row(limiter: Limiter, waiting: int, now: Now) -> pb.PerThrottleKeyStats:
    """Return what people may see of a limiter."""
    mono_ns = now.mono_ns
    found = pb.PerThrottleKeyStats(
        key=limiter.name,
        tokens=limiter.tokens(mono_ns) if limiter.interval_ps else 0,
        rate_per_second=limiter.rate,
        burst=limiter.burst if limiter.rate else 0,
        passed=limiter.passed_count,
        blocked=limiter.blocked_count,
        concurrency_limit=limiter.limit,
        in_flight=limiter.in_flight,
        waiting=waiting,
        passed_per_second=limiter.passed.per_second(mono_ns),
        blocked_per_second=limiter.blocked.per_second(mono_ns),
        pattern=limiter.pattern,
        unset=not limiter.is_set,
        paused=limiter.is_held or (limiter.is_paused and limiter.paused_until_ns > mono_ns),
    )
    if limiter.paused_until_ns > mono_ns and not limiter.is_held:
        found.paused_until.FromNanoseconds(now.wall_ns + limiter.paused_until_ns - mono_ns)
    return found
