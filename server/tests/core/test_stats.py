# SPDX-License-Identifier: AGPL-3.0-only
"""The stats of a queue: counts, ages, the busiest keys, whose turn it is."""

import pytest

from fila.v1 import admin_pb2 as pb
from fila_server.errors import QueueNotFound
from server.tests.core.harness import Harness


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create("q")
    return harness


def test_stats_tell_what_happened(h: Harness) -> None:
    h.create("s", max_attempts=2)
    done, dead = h.enqueue("s", fairness_key="a"), h.enqueue("s", fairness_key="b", weight=4)
    h.enqueue("s", ttl_ms=1, fairness_key="c", delay_ms=500)
    h.enqueue("s", idempotency_key="k", fairness_key="c")
    h.enqueue("s", idempotency_key="k")
    h.receive("s", 2)
    assert h.ack("s", done) is None
    assert h.nack("s", dead) is None
    h.clock.advance(1)
    assert {message.id for message in h.receive("s", 5)} >= {dead}
    h.clock.advance(30)
    h.tick()
    stats = h.stats("s")
    counters = stats.counters
    assert (counters.enqueued, counters.delivered, counters.acked) == (4, 4, 1)
    assert (counters.nacked, counters.expired, counters.dead_lettered) == (1, 2, 1)
    assert (counters.timed_out, counters.duplicates) == (1, 1)
    assert (stats.depth, stats.in_flight, stats.delayed) == (1, 0, 0)
    assert stats.active_fairness_keys == 1
    with pytest.raises(QueueNotFound):
        h.stats("nobody")


def test_stats_list_the_busiest_keys(h: Harness) -> None:
    for key, count in (("few", 1), ("many", 5), ("some", 3)):
        for _ in range(count):
            h.enqueue("q", fairness_key=key, weight=count)
    rows = h.stats("q").per_key_stats
    assert [(row.key, row.pending_count, row.weight) for row in rows] == [
        ("many", 5, 5),
        ("some", 3, 3),
        ("few", 1, 1),
    ]
    response = h.admin(pb.GetStatsRequest(queue="q", max_keys=1))
    assert [row.key for row in response.per_key_stats] == ["many"]
    assert response.active_fairness_keys == 3


def test_the_age_of_the_oldest(h: Harness) -> None:
    assert h.stats("q").oldest_pending_age_ms == 0
    h.enqueue("q", delay_ms=60_000)
    h.enqueue("q", fairness_key="a")
    h.clock.advance(3)
    h.enqueue("q", fairness_key="b")
    assert h.stats("q").oldest_pending_age_ms == 3000
    h.restart()  # only the disk knows when it came
    assert h.stats("q").oldest_pending_age_ms == 3000
    h.clock.jump(-3600)
    assert h.stats("q").oldest_pending_age_ms == 0


def test_credit_of_open_streams(h: Harness) -> None:
    h.open("q", credit=10)
    h.open("q", credit=5)
    h.enqueue("q")
    assert h.stats("q").consumer_credit == 14


def test_the_round_and_the_places_in_it(h: Harness) -> None:
    h.enqueue_many("q", 12, ["a", "b", "c"])
    h.set("throttle.mail", "1,1")
    h.enqueue_many("q", 3, ["held"], throttle_keys=["mail"])
    h.admin(pb.PauseRequest(queue="q", fairness_key="c"))
    h.receive("q", 6)  # a, b, held, a, b, and a again: held was asked and has to wait
    stats = h.stats("q")
    assert stats.round_key == "b"
    rows = {row.key: row for row in stats.per_key_stats}
    assert (rows["b"].round_position, rows["a"].round_position) == (0, 1)
    for key in ("c", "held"):
        assert not rows[key].HasField("round_position")
    assert rows["c"].paused
    h.admin(pb.PurgeRequest(queue="q"))
    assert h.stats("q").round_key == ""


@pytest.mark.parametrize("streams", [0, 1])
def test_stats_and_explain_say_the_same_of_what_waits(h: Harness, streams: int) -> None:
    """A lane that nobody consumes is not throttled, whether or not it was ever asked."""
    h.set("throttle.mail", "1,5")
    h.enqueue_many("q", 3, ["a"], throttle_keys=["mail"])
    if streams:
        h.open("q", credit=1)
    for _ in range(3):
        stats = h.stats("q")
        found = h.admin(pb.ExplainRequest(queue="q", fairness_key="a"))
        kinds = {reason.kind for reason in found.reasons}
        assert (stats.throttled > 0) is (pb.WAIT_KIND_THROTTLED in kinds)
        h.receive("q")
        h.clock.advance(0.1)


def test_stats_list_throttle_keys_of_what_waits_and_of_what_is_leased(h: Harness) -> None:
    h.set("throttle.mail", "1,1")
    h.enqueue_many("q", 3, throttle_keys=["mail"])
    h.enqueue_many("q", 1, throttle_keys=["sms"])
    h.receive("q", 2)
    rows = {row.key: row for row in h.stats("q").per_throttle_stats}
    assert (rows["mail"].waiting, rows["mail"].in_flight) == (2, 1)
    assert (rows["sms"].waiting, rows["sms"].in_flight, rows["sms"].unset) == (0, 1, True)
