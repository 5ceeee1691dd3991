# SPDX-License-Identifier: AGPL-3.0-only
"""A limiter never lets more than rate × t + burst through, whatever is taken and given back; and
one that nothing needs any more is forgotten."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from fila.v1 import admin_pb2 as pb
from fila_server.core.schedule.limiter import FOREVER, Limiter
from fila_server.storage.api import Column
from server.tests.core.harness import Harness, S, check_consistent


def limiter(rate: float = 0, burst: float = 0, limit: int = 0) -> Limiter:
    one = Limiter("mail")
    one.configure(rate, burst, limit, "", 0)
    return one


# --- The bucket -----------------------------------------------------------------------------------

steps = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([1, 10**6, S // 7, S // 2, S, 3 * S])),
    st.tuples(st.just("take"), st.integers(1, 12)),
    st.tuples(st.just("give back"), st.integers(0, 5)),
)


@settings(max_examples=300, deadline=None)
@given(
    rate=st.sampled_from([0.5, 3.0, 10.0, 999.0]),
    burst=st.integers(1, 12),
    cost=st.sampled_from([1, 1, 2, 30]),
    program=st.lists(steps, max_size=60),
)
def test_the_bound_holds_for_what_was_really_delivered(
    rate: float, burst: int, cost: int, program: list[tuple[str, int]]
) -> None:
    one = limiter(rate, burst)
    now = 0
    frames: list[tuple[int, int]] = []  # (time, deliveries)
    kept: list[tuple[int, int]] = []
    for what, number in program:
        if what == "wait":
            now += number
        elif what == "take":
            count = 0
            while count < number and not one.blocked_until(cost, now):
                one.take(cost, now)
                count += 1
            if count:
                frames.append((now, count))
        elif number < len(frames):
            taken_ns, count = frames.pop(number)
            one.give_back(count, cost, taken_ns, now)
        assert one.tokens(now) <= burst + 1e-6
        kept = sorted(frames)
    price = min(cost, burst)
    for start, (first_ns, _) in enumerate(kept):
        total = 0.0
        for at_ns, count in kept[start:]:
            total += count * price
            assert total <= rate * (at_ns - first_ns) / S + burst + 1e-6


@given(st.floats(1e-6, 1e9), st.floats(1, 1e9), st.integers(1, 1_000_000), st.integers(0, 10**18))
def test_when_to_ask_again_is_not_too_early_and_not_too_late(
    rate: float, burst: float, cost: int, now_ns: int
) -> None:
    one = limiter(rate, burst)
    taken = 0
    while not one.blocked_until(cost, now_ns) and taken < 50:
        assert one.room(cost, now_ns) > 0
        one.take(cost, now_ns)
        taken += 1
    until_ns = one.blocked_until(cost, now_ns)
    if until_ns:
        assert one.room(cost, now_ns) == 0
        assert until_ns > now_ns
        assert not one.blocked_until(cost, until_ns)
        assert until_ns == now_ns + 1 or one.blocked_until(cost, until_ns - 1)


def test_room_is_what_can_be_taken() -> None:
    one = limiter(rate=10, burst=7, limit=5)
    for left in (5, 4, 3, 2, 1, 0):
        assert one.room(1, 0) == left
        if left:
            one.take(1, 0)
    assert one.blocked_until(1, 0) == FOREVER
    one.in_flight = 0
    assert [one.room(cost, 0) for cost in (1, 2, 3)] == [2, 1, 0]


def test_a_new_rate_keeps_the_tokens_that_are_there() -> None:
    one = limiter(rate=1, burst=10)
    for _ in range(8):
        one.take(1, 0)
    assert one.tokens(0) == pytest.approx(2)
    one.configure(100, 50, 0, "", 0)
    assert one.tokens(0) == pytest.approx(2)
    one.configure(100, 1, 0, "", 0)
    assert one.tokens(0) == pytest.approx(1)


def test_what_was_given_back_to_a_limiter_that_never_gave_counts_nothing_below_zero() -> None:
    """A limit that is set while a frame is under way, which then goes back."""
    one = limiter()
    one.take(1, 0)
    one.configure(10, 10, 0, "", 0)
    one.give_back(1, 1, 0, 0)
    assert one.passed_count == 0
    assert one.tokens(0) == pytest.approx(10)


def test_pauses() -> None:
    one = limiter()
    assert one.is_free
    one.pause(10, 1, 0)
    one.pause(5, 1, 0)  # the later end wins
    assert (one.is_free, one.blocked_until(1, 9), one.blocked_until(1, 10)) == (False, 10, 0)
    one.hold()
    assert one.blocked_until(1, 100) == FOREVER
    one.resume()
    assert one.is_free and not one.blocked_until(1, 0)


# --- Who has one ----------------------------------------------------------------------------------


def buckets(h: Harness) -> int:
    return sum(1 for _ in h.storage.scan(Column.STATE, b"b", b"c"))


def rest(h: Harness, seconds: int = 60) -> None:
    """Time enough for what is idle to be forgotten."""
    for _ in range(seconds // 6):
        h.clock.advance(6)
        h.tick()


def test_every_throttle_key_in_use_has_a_limiter_and_no_other() -> None:
    h = Harness()
    h.create("q")
    limiters = h.broker.state.throttles.limiters
    h.set("throttle.unused", "1")
    assert not limiters
    h.enqueue("q", throttle_keys=["mail", "sms"])
    assert set(limiters) == {"mail", "sms"}
    (message,) = h.receive("q")
    rest(h, 24)
    assert set(limiters) == {"mail", "sms"}  # leased
    assert h.ack("q", message.id) is None
    rest(h)
    assert not limiters
    check_consistent(h)


def test_limiters_that_backpressure_made_are_forgotten_in_memory_and_on_disk() -> None:
    h = Harness()
    h.create("q")
    for n in range(300):
        key = f"customer-{n}"
        message_id = h.enqueue("q", throttle_keys=[key])
        h.receive("q")
        assert h.nack("q", message_id, retry_after_ms=1, throttle_key=key) is None
        h.clock.advance(0.002)
        assert len(h.receive("q")) == 1
        assert h.ack("q", message_id) is None
    rest(h)
    assert not h.broker.state.throttles.limiters
    assert buckets(h) == 0
    check_consistent(h)


def test_a_limiter_is_not_forgotten_before_its_bucket_is_full() -> None:
    """Else a queue that runs empty between messages would never be limited."""
    h = Harness()
    h.create("q")
    h.set("throttle.slow", "0.01,1")  # one in 100 s
    for _ in range(2):
        message_id = h.enqueue("q", throttle_keys=["slow"])
        assert len(h.receive("q")) == 1
        assert h.ack("q", message_id) is None
        rest(h, 60)
        assert buckets(h) == 1
        blocked = h.enqueue("q", throttle_keys=["slow"])
        assert h.receive("q") == []
        h.admin(pb.CancelMessageRequest(queue="q", message_id=blocked))
        rest(h, 120)
        assert (len(h.broker.state.throttles.limiters), buckets(h)) == (0, 0)


def test_a_limit_of_a_restart_is_forgotten_too() -> None:
    h = Harness()
    h.create("q")
    h.set("throttle.slow", "0.1,1")
    message_id = h.enqueue("q", throttle_keys=["slow"])
    assert len(h.receive("q")) == 1
    assert h.ack("q", message_id) is None
    h.restart()
    assert (len(h.broker.state.throttles.limiters), buckets(h)) == (1, 1)
    rest(h)
    assert (len(h.broker.state.throttles.limiters), buckets(h)) == (0, 0)
