# SPDX-License-Identifier: AGPL-3.0-only
"""Bugs that show after a restart only: what is stored is not what memory has."""

from __future__ import annotations

from collections.abc import Iterator

from fila_server.core import broker
from fila_server.core.admin import settings
from fila_server.core.clock import Now
from fila_server.core.schedule.limiter import Limiter
from fila_server.core.state import State
from fila_server.core.turn import Turn
from server.tests.simulation.planting import plant, replaced


@plant
def a_bucket_is_not_stored_when_its_rate_changes() -> Iterator[None]:
    """Tokens that are missing at the old rate are fewer, or more, at the new one."""

    def refresh(state: State, limiter: Limiter, turn: Turn) -> None:
        now_ns = turn.now.mono_ns
        if limiter.configure(*state.settings.throttle(limiter.name), now_ns):
            state.places.lines.freed(limiter)
            state.throttles.rest(limiter)

    with replaced(settings, "refresh", refresh):
        yield


@plant
def a_bucket_is_stored_by_another_clock() -> Iterator[None]:
    """A restart finds it fuller than it was."""
    store_bucket = broker.store_bucket

    def early(limiter: Limiter, turn: Turn) -> None:
        now = turn.now
        turn.now = Now(now.mono_ns, now.wall_ns - 100_000_000)
        try:
            store_bucket(limiter, turn)
        finally:
            turn.now = now

    with replaced(broker, "store_bucket", early):
        yield
