# SPDX-License-Identifier: AGPL-3.0-only
"""Throttle keys as operators see them: what limits each, what passes, what nobody configured."""

from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from server.tests.core.harness import Harness


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create("q")
    return harness


def listed(h: Harness, **fields: Any) -> dict[str, pb.PerThrottleKeyStats]:
    return {row.key: row for row in h.admin(pb.ListThrottlesRequest(**fields)).throttles}


def test_keys_in_use_and_keys_with_settings_are_listed_by_name(h: Harness) -> None:
    assert listed(h) == {}
    h.set("throttle.b-idle", "5,9")
    h.set("throttle.c-*", "7")
    h.enqueue("q", throttle_keys=["c-1", "a-free"])
    rows = listed(h)
    assert list(rows) == ["a-free", "b-idle", "c-1"]
    idle = rows["b-idle"]
    assert (idle.rate_per_second, idle.burst, idle.tokens, idle.unset) == (5, 9, 9, False)
    assert (rows["c-1"].pattern, rows["c-1"].rate_per_second) == ("c-*", 7)
    assert (rows["a-free"].unset, rows["a-free"].rate_per_second) == (True, 0)
    assert list(listed(h, unset=True)) == ["a-free"]
    assert list(listed(h, prefix="c-")) == ["c-1"]


def test_a_list_may_be_cut_and_says_how_many_there_are(h: Harness) -> None:
    for number in range(30):
        h.enqueue("q", throttle_keys=[f"k{number:02d}"])
    response = h.admin(pb.ListThrottlesRequest(limit=4))
    assert [row.key for row in response.throttles] == ["k00", "k01", "k02", "k03"]
    assert response.total_count == 30


def test_what_passes_and_what_is_held_back_is_counted_and_paced(h: Harness) -> None:
    h.set("throttle.mail", "10,10")
    h.set("concurrency:mail:limit", "1000")
    h.enqueue_many("q", 100, throttle_keys=["mail"])
    h.open("q", credit=1000)
    for _ in range(30):
        h.clock.advance(0.1)
        h.tick()
        h.take()
    row = listed(h)["mail"]
    assert row.passed == 40 and row.in_flight == 40
    assert row.blocked > 0
    assert row.passed_per_second == pytest.approx(10, rel=0.2)
    assert row.blocked_per_second > 0
    assert row.concurrency_limit == 1000
    assert h.stats("q").throttled == 60


def test_what_nobody_configured_is_named_by_explain(h: Harness) -> None:
    h.set("throttle.known", "1")
    message_id = h.enqueue("q", throttle_keys=["known", "unknown"], fairness_key="a")
    for found in (
        h.admin(pb.ExplainRequest(queue="q", message_id=message_id)),
        h.admin(pb.ExplainRequest(queue="q", fairness_key="a")),
    ):
        assert list(found.unset_throttle_keys) == ["unknown"]
