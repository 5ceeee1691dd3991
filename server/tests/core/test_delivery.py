# SPDX-License-Identifier: AGPL-3.0-only
"""Frames: cut by the sizes of what is in them, in order, with nothing lost on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fila.v1.service_pb2 import EnqueueRequest
from fila_server.core.commands import CloseConsumer, Enqueue, FrameTaken, OpenConsumer
from fila_server.core.turn import FULL, TIME_UNITS
from fila_server.storage.api import Column
from fila_server.storage.memory import MemoryStorage
from server.tests.core.harness import Harness, check_consistent

KIB = 1024
MIB = 1024 * KIB


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create("q")
    return harness


def put(h: Harness, size: int, count: int = 1, **fields: Any) -> list[str]:
    return h.enqueue_many("q", count, payload=bytes(size), **fields)


def frames(h: Harness, credit: int = 1000) -> list[list[str]]:
    """Open a stream and return the ids of each frame that it takes until nothing more comes."""
    consumer = h.open("q", credit, batch=1000)
    taken = []
    while h.frames:
        under_way, h.frames = h.frames, []
        taken += [[message.id for message in messages] for _, _, messages in under_way]
        h.run(*[FrameTaken(consumer)] * len(under_way))
    h.run(CloseConsumer(consumer, []))
    return taken


def sizes(h: Harness) -> list[int]:
    """Return the bytes of the frames of the last turn."""
    return [len(frame) for _, _, frame in h.last.frames]


def test_one_large_message_that_came_and_went_does_not_shrink_frames(h: Harness) -> None:
    h.enqueue_many("q", 3000, ["quiet"], payload=bytes(256))
    assert max(map(len, frames(h))) >= 900
    (large,) = h.enqueue_many("q", 1, ["noisy"], payload=bytes(3 * MIB))
    taken = [message.id for message in h.receive("q", 2) + h.receive("q", 1)]
    assert large in taken
    for message_id in taken:
        assert h.ack("q", message_id) is None
    assert max(map(len, frames(h))) >= 900


def test_a_frame_is_never_larger_than_it_may_be(h: Harness) -> None:
    """Sizes that no estimate foresees: small, then large, then mixed."""
    limit = h.config.limits.max_frame_bytes
    ids = []
    for size, count in ((10, 300), (900 * KIB, 6), (2 * MIB, 3), (200, 300), (MIB, 5), (0, 10)):
        ids += put(h, size, count)
    seen: list[str] = []
    consumer = h.open("q", 1000, batch=1000)
    while h.frames:
        assert all(size <= limit for size in sizes(h))
        under_way, h.frames = h.frames, []
        seen += [message.id for _, _, messages in under_way for message in messages]
        h.run(*[FrameTaken(consumer)] * len(under_way))
    assert seen == ids
    check_consistent(h)


def test_headers_names_and_what_failed_before_count_too(h: Harness) -> None:
    limit = h.config.limits.max_frame_bytes
    keys = ["\N{GRINNING FACE}" * 60 + str(number) for number in range(3)]
    h.enqueue_many("q", 400, keys, headers={"h" * 200: "v" * 3000}, throttle_keys=keys)
    for message in h.receive("q", 400):
        assert h.nack("q", message.id, error="e" * 4096) is None
    ids = {message_id for frame in frames(h) for message_id in frame}
    assert len(ids) == 400
    h.clock.advance(31)
    h.run(OpenConsumer(0, 99, "q", 1000, 1000, 0, False))
    assert sizes(h) and all(size <= limit for size in sizes(h))


def test_the_largest_message_is_a_frame_of_its_own(h: Harness) -> None:
    limits = h.config.limits
    ids = put(h, limits.max_payload_bytes, 2)
    assert frames(h) == [[message_id] for message_id in ids]


@pytest.mark.parametrize("hot_bytes", [0, 1 << 28])
def test_what_does_not_fit_goes_back_to_its_place_with_its_tokens(hot_bytes: int) -> None:
    h = Harness(hot_bytes=hot_bytes)
    h.create("q")
    h.set("throttle.mail", "1,100")
    h.set("concurrency:mail:limit", "50")
    ids = []
    for size in (10, 10, 3 * MIB, 3 * MIB, 10):
        ids += put(h, size, throttle_keys=["mail"])
    h.open("q", credit=4, batch=10)
    assert [message.id for message in h.take()] == ids[:4]
    (row,) = h.stats("q").per_throttle_stats
    assert (row.in_flight, row.passed) == (4, 4)
    assert row.tokens == pytest.approx(96)
    assert h.stats("q").counters.delivered == 4
    check_consistent(h)
    for message_id in ids[:4]:
        assert h.ack("q", message_id) is None
    assert [message.id for message in h.take()] == ids[4:]
    check_consistent(h)


class Watched(MemoryStorage):
    """A store that notes how much each read brought into memory."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []

    def get_many(self, column: Column, keys: Sequence[bytes]) -> list[bytes | None]:
        found = super().get_many(column, keys)
        self.reads.append(sum(len(value) for value in found if value is not None))
        return found


def test_bodies_are_brought_into_memory_a_few_at_a_time() -> None:
    """A cold backlog of large messages: no more than the bound, however large the batch."""
    storage = Watched()
    h = Harness(storage, hot_bytes=0)
    h.create("q")
    for _ in range(60):
        put(h, MIB)
    h.open("q", 60, batch=60)
    assert len(h.take()) == 60
    assert max(storage.reads) <= 33 * MIB
    assert h.broker.state.places.hot_bytes == 0


def test_deliveries_of_one_turn_are_bounded_and_go_on_in_the_next(h: Harness) -> None:
    for _ in range(8):
        h.run(Enqueue(0, h.drafts(*[EnqueueRequest(queue="q")] * 1000)))
    for number in range(20):
        h.turn(OpenConsumer(0, 100 + number, "q", 1000, 1000, 0, False))
    while h.last.more:
        h.turn()
    assert max(h.units) <= FULL.deliveries + 2000
    assert sum(len(messages) for _, _, messages in h.frames) == 8000


@pytest.mark.parametrize("has_restarted", [False, True])
def test_more_lives_than_a_turn_can_end_are_over_for_consumers_too(
    h: Harness, has_restarted: bool
) -> None:
    h.enqueue_many("q", 2 * TIME_UNITS, ["a", "b"], ttl_ms=1000)
    h.enqueue_many("q", 3, ["a"])
    h.clock.advance(3600)
    if has_restarted:
        h.restart()
    h.open("q", credit=5000, batch=1000)
    assert len(h.take()) == 3
    assert h.stats("q").counters.timed_out == 2 * TIME_UNITS
    check_consistent(h)


def test_the_largest_message_is_forgotten_with_the_last(h: Harness) -> None:
    put(h, 3 * MIB)
    put(h, 1)
    for message in h.receive("q", 2):
        assert h.ack("q", message.id) is None
    put(h, 1000)
    assert 1000 < h.broker.state.queues["q"].largest < 2000
