# SPDX-License-Identifier: AGPL-3.0-only
"""Turns and frames that hold little, so that a few messages take as many turns as a million would.

A purge or a redrive then leaves most of its work for later turns, and so do deliveries. What time
brings stays whole: the ledger has to know which leases have ended when a command comes. Ends of
lives may be slow, where nobody looks at what is not gone yet.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from fila.v1 import admin_pb2 as pb
from fila_server.config import Config
from fila_server.core import broker
from fila_server.core.traffic import failure
from fila_server.core.traffic.delivery import deliver

_WEIGHT = 150  # each message counts as so many units
_DELIVERIES = 2
_LIVES = 1


def _heavy(handler: Callable[..., Any]) -> Callable[..., Any]:
    def work(*arguments: Any) -> Generator[int, None, Any]:
        steps = handler(*arguments)
        while True:
            try:
                yield next(steps) * _WEIGHT
            except StopIteration as end:
                return end.value

    return work


def small_frames() -> Config:
    """Return a configuration in which a few messages fill a frame, so that frames are cut."""
    base = Config()
    limits = replace(
        base.limits,
        max_payload_bytes=1600,
        max_header_bytes=128,
        max_headers=4,
        max_fairness_key_bytes=16,
        max_throttle_keys=5,
        max_idempotency_key_bytes=8,
        max_error_bytes=256,
        max_name_bytes=64,
    )
    return replace(base, limits=replace(limits, max_frame_bytes=limits.max_message_bytes))


@contextmanager
def small_turns() -> Iterator[None]:
    """Let turns hold little for as long as this lasts."""
    changes = broker._CHANGES

    def deliver_few(state: Any, turn: Any) -> None:
        turn.room = turn.room._replace(deliveries=_DELIVERIES)
        deliver(state, turn)

    heavy = {kind: _heavy(changes[kind]) for kind in (pb.PurgeRequest, pb.RedriveRequest)}
    with patch.dict(changes, heavy), patch.object(broker, "deliver", deliver_few):
        yield


@contextmanager
def slow_ends() -> Iterator[None]:
    """Let a turn end few lives for as long as this lasts."""
    end_lives = failure.end_lives

    def end_few(state: Any, turn: Any, _: int) -> None:
        end_lives(state, turn, _LIVES)

    with patch.object(failure, "end_lives", end_few):
        yield
