# SPDX-License-Identifier: AGPL-3.0-only
"""Medians, shares, limits, and waits that count from when a message was due."""

import pytest

from bench.peers.figures import Latencies, due_ns, overshoot, share_error, spread

# 100 values of 1,000 to 100,000 µs, as hdrhistogram-go encodes them.
FROM_GO = (
    "HISTFAAAAFl42pJpmSzMwMBwkgECmKA0I4hQPuzGYP8BIvCZnekvI1M9UzWTI5M1kzWTLZ"
    "MikyyTNJMsnBRk4oVCbiwsXiZOJlYMyIxFDLcoMxMDURCvJCAAAP//gNoLeg=="
)


def test_spread_is_median_least_and_most() -> None:
    assert spread([3.0, 1.0, 10.0]) == (3.0, 1.0, 10.0)
    assert spread([1.0, 2.0]).middle == 1.5


def test_spread_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no round"):
        spread([])


def test_messages_are_due_at_their_rate_whatever_happened_before() -> None:
    assert [due_ns(5, number, 1000) for number in range(3)] == [5, 1_000_005, 2_000_005]


def test_latency_counts_from_when_the_message_was_due() -> None:
    """A stall of a second at 100/s is a hundred late messages, not a single one."""
    found = Latencies()
    for number in range(100):
        found.record(due_ns(0, number, 100), 1_000_000_000)
    assert found.count == 100
    assert found.at(50) == pytest.approx(500_000, rel=0.03)
    assert found.at(99) == pytest.approx(990_000, rel=0.03)


def test_histograms_merge() -> None:
    one, other = Latencies(), Latencies()
    one.record(0, 1_000_000)
    other.record(0, 3_000_000)
    one.merge(other.encoded())
    assert one.count == 2
    assert one.percentiles_us()["max"] == pytest.approx(3000, rel=0.02)


def test_histogram_of_the_go_client_is_read() -> None:
    found = Latencies(FROM_GO)
    assert found.count == 100
    assert found.at(50) == pytest.approx(50_000, rel=0.02)


def test_a_wait_beyond_the_histogram_counts_as_its_longest() -> None:
    found = Latencies()
    found.record(0, 10**15)
    assert found.count == 1


def test_share_error_is_a_part_of_the_share() -> None:
    weights = {"a": 1, "b": 3}
    assert share_error({"a": 25, "b": 75}, weights) == 0
    assert share_error({"a": 30, "b": 70}, weights) == pytest.approx(0.2)


def test_share_error_of_a_starved_tenant_is_all_of_it() -> None:
    assert share_error({"a": 100}, {"a": 1, "b": 1}) == 1


def test_calls_within_rate_and_burst_overshoot_nothing() -> None:
    times = [0.0] * 10 + [0.1 * number for number in range(1, 20)]
    assert overshoot(times, rate=10, burst=10) == 0


def test_overshoot_is_that_of_the_worst_window() -> None:
    times = [0.0, 10.0, 10.0, 10.0, 20.0]
    assert overshoot(times, rate=1, burst=1) == 2
