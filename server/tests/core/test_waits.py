# SPDX-License-Identifier: AGPL-3.0-only
"""What first deliveries waited for, by cause."""

import pytest

from server.tests.core.harness import Harness


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create("q")
    return harness


def waited_ms(h: Harness) -> dict[str, float]:
    """What messages waited for in all, by cause."""
    causes = h.broker.state.queues["q"].waits.by_cause
    return {cause: round(it.sum) for cause, it in causes.items() if round(it.sum)}


@pytest.mark.parametrize("count", [2, 3])  # the second is the last of its lane, or is not
@pytest.mark.parametrize(
    ("setting", "value", "cause"),
    [("concurrency:p:limit", "1", "concurrency"), ("throttle:p:rate", "0.5", "throttle")],
)
def test_what_a_limit_held_back_waited_for_it(
    h: Harness, setting: str, value: str, cause: str, count: int
) -> None:
    h.set(setting, value)
    h.open("q", credit=10)
    h.enqueue_many("q", count, throttle_keys=["p"])
    (first,) = h.take()
    h.clock.advance(2)
    assert h.ack("q", first.id) is None
    assert len(h.take()) == 1
    assert waited_ms(h) == {cause: 2000}


def test_a_lane_that_comes_again_has_waited_for_nothing(h: Harness) -> None:
    h.set("concurrency:p:limit", "1")
    h.open("q", credit=10)
    h.enqueue_many("q", 2, throttle_keys=["p"])
    for _ in range(2):
        (message,) = h.take()
        h.clock.advance(1)
        assert h.ack("q", message.id) is None
    h.enqueue("q", throttle_keys=["p"])
    assert len(h.take()) == 1
    assert waited_ms(h) == {"concurrency": 1000}
