# SPDX-License-Identifier: AGPL-3.0-only
"""Turns stay bounded where many come at once: callers, streams that end, queues that go, and lanes
that all have to wait, move or end before anything can be delivered.
"""

from __future__ import annotations

import pytest

from fila.v1 import admin_pb2 as pb
from fila_server.core.commands import Admin, CloseConsumer, Command, OpenConsumer
from server.tests.core.backlogs import many, wide
from server.tests.core.harness import Harness
from server.tests.core.meter import Case, assert_bounded


def many_peek_at_once(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    return [Admin(n, pb.PeekRequest(queue="q", limit=size // 30)) for n in range(64)]


def many_ask_for_stats_at_once(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    return [Admin(n, pb.GetStatsRequest(queue="q")) for n in range(64)]


def close_many_streams_with_their_frames_unsent(h: Harness, size: int) -> list[Command]:
    wide(h, size)
    for _ in range(20):
        h.open("q", credit=1000, batch=size // 40)
    unsent: dict[int, list[int]] = {}
    for consumer, grant, _ in h.frames:
        unsent.setdefault(consumer, []).append(grant)
    return [CloseConsumer(consumer, grants) for consumer, grants in unsent.items()]


def open_a_stream_where_all_wait_for_one_limiter(h: Harness, size: int) -> list[Command]:
    h.create("q")
    h.set("throttle.shared", "0.001,1")
    many(h, size, size, throttle_keys=["shared"])
    return [OpenConsumer(0, 900, "q", 100, 100, 0, False)]


def delete_many_queues_at_once(h: Harness, size: int) -> list[Command]:
    count = size // 100
    for n in range(count):
        h.create(f"q{n}")
        many(h, 100, 3, queue=f"q{n}")
    return [Admin(n, pb.DeleteQueueRequest(queue=f"q{n}")) for n in range(count)]


def resume_one_of_two_throttle_keys_that_all_carry(h: Harness, size: int) -> list[Command]:
    """All lanes then have to wait for the other one."""
    h.create("q")
    h.admin(pb.PauseRequest(throttle_key="first"))
    many(h, size, size, throttle_keys=["first", "second"])
    h.open("q", credit=100)
    h.admin(pb.PauseRequest(throttle_key="second"))
    return [Admin(0, pb.ResumeRequest(throttle_key="first"))]


def lives_end_before_somebody_comes(h: Harness, size: int) -> list[Command]:
    h.create("q")
    many(h, size, size // 4, ttl_ms=10_000)
    h.clock.advance(11)
    return [OpenConsumer(0, 900, "q", 1000, 1000, 0, False)]


CASES: list[Case] = [
    many_peek_at_once,
    many_ask_for_stats_at_once,
    close_many_streams_with_their_frames_unsent,
    open_a_stream_where_all_wait_for_one_limiter,
    delete_many_queues_at_once,
    resume_one_of_two_throttle_keys_that_all_carry,
    lives_end_before_somebody_comes,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_largest_turn_does_not_grow_with_the_crowd(case: Case) -> None:
    assert_bounded(case)
