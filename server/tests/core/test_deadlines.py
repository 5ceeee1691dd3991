# SPDX-License-Identifier: AGPL-3.0-only
"""Deadlines against a table of times: everything comes due once, in order, a slice at a time."""

from __future__ import annotations

import tracemalloc

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fila_server.core.schedule.deadlines import _BUCKET_BITS as BUCKET_BITS
from fila_server.core.schedule.deadlines import Deadlines

S = 1_000_000_000
THINGS = [f"t{n}" for n in range(12)]
# Within a bucket of a second, in neighbouring ones, and far off.
times = st.one_of(st.integers(0, 3 * S), st.integers(0, 100 * S), st.sampled_from([0, 1, 1 << 62]))


class DeadlinesModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.deadlines: Deadlines[str] = Deadlines()
        self.times: dict[str, int] = {}
        self.now = 0

    @rule(thing=st.sampled_from(THINGS), after=times)
    def set(self, thing: str, after: int) -> None:
        self.deadlines.set(thing, self.now + after)
        self.times[thing] = self.now + after

    @rule(thing=st.sampled_from(THINGS), at=st.integers(0, 50 * S))
    def set_absolute(self, thing: str, at: int) -> None:
        """Perhaps in the past."""
        self.deadlines.set(thing, at)
        self.times[thing] = at

    @rule(thing=st.sampled_from(THINGS))
    def discard(self, thing: str) -> None:
        self.deadlines.discard(thing)
        self.times.pop(thing, None)

    @rule(after=st.sampled_from([0, 1, S // 3, S, 2 * S, 17 * S]), limit=st.integers(0, 15))
    def take(self, after: int, limit: int) -> None:
        self.now += after
        expected = sorted(at for at in self.times.values() if at <= self.now)
        taken = [self.times.pop(thing) for thing in self.deadlines.due(self.now, limit)]
        assert len(taken) <= limit
        assert all(at <= self.now for at in taken)
        near = sum(at >> BUCKET_BITS <= (self.now >> BUCKET_BITS) + 1 for at in self.times.values())
        if near + len(taken) <= limit:
            assert taken == expected  # in order, where one slice is enough to look at all of them

    @rule(after=st.sampled_from([0, S, 40 * S]))
    def take_all(self, after: int) -> None:
        """As the broker does: as long as something is due, in turns of a few."""
        self.now += after
        expected = {thing for thing, at in self.times.items() if at <= self.now}
        turns = 0
        while self.deadlines.is_due(self.now):
            for thing in self.deadlines.due(self.now, 2):
                expected.remove(thing)
                del self.times[thing]
            turns += 1
            assert turns < 100, "something is due and never comes"
        assert not expected

    @invariant()
    def it_knows_what_the_model_knows(self) -> None:
        assert len(self.deadlines) == len(self.times)
        for thing in THINGS:
            assert (thing in self.deadlines) is (thing in self.times)
            assert self.deadlines.time_of(thing, -1) == self.times.get(thing, -1)
        next_ns = self.deadlines.next_ns()
        assert (next_ns is None) is (not self.times)
        if next_ns is not None:  # never too late, and not more than two seconds early
            first = min(self.times.values())
            assert first - 2.2 * S <= next_ns <= first
        if any(at <= self.now for at in self.times.values()):
            assert self.deadlines.is_due(self.now)


DeadlinesModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestDeadlines = DeadlinesModel.TestCase


def test_what_a_slice_has_no_room_to_look_at_comes_with_the_next() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for thing, at in (("first", 0), ("not yet", 1), ("second", 0)):
        deadlines.set(thing, at)
    taken: list[str] = []
    while deadlines.is_due(0):
        taken += deadlines.due(0, 2)
    assert sorted(taken) == ["first", "second"]


def test_things_come_in_the_order_of_their_times() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for thing, at in enumerate([30, 10, 20, 11, 40]):
        deadlines.set(thing, at)
    assert deadlines.is_due(10)
    assert list(deadlines.due(20, 100)) == [1, 3, 2]
    assert list(deadlines.due(20, 100)) == []
    assert list(deadlines.due(100, 100)) == [0, 4]
    assert deadlines.next_ns() is None
    assert not deadlines.is_due(100)


def test_things_may_be_set_and_taken_out_while_others_come_due() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for thing in range(100):
        deadlines.set(thing, thing)
    seen = []
    for thing in deadlines.due(1000, 1000):
        seen.append(thing)
        deadlines.discard(thing + 1)
        if thing == 50:
            deadlines.set(1000, 5)
    while deadlines.is_due(1000):  # what was set meanwhile comes now or in the next turn
        seen.extend(deadlines.due(1000, 1000))
    assert sorted(seen) == [*range(0, 100, 2), 1000]
    assert deadlines.next_ns() is None


@pytest.mark.parametrize("distance", [S // 2, 3600 * S])
def test_what_was_taken_out_does_not_stay_in_memory(distance: int) -> None:
    """Leases of 30 s that end after a millisecond, for a minute."""
    deadlines: Deadlines[int] = Deadlines()
    now = 0
    for thing in range(60_000):
        now += S // 1000
        deadlines.set(thing, now + distance)
        deadlines.discard(thing)
        if thing % 100 == 0:
            list(deadlines.due(now, 1000))
            deadlines.next_ns()
    held = len(deadlines._heap) + sum(len(things) for things in deadlines._far.values())
    assert held < 3000
    assert len(deadlines._far) < 100


def test_what_was_taken_out_long_before_its_time_costs_nothing() -> None:
    """A life of days is over with its ack: the second at which it would have ended is forgotten."""
    deadlines: Deadlines[int] = Deadlines()
    deadlines.set(-1, 1000 * S)
    tracemalloc.start()
    for second in range(20_000):
        deadlines.set(second, (5000 + 2 * second) * S)
        deadlines.discard(second)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 50_000
    assert list(deadlines.due(10**6 * S, 10)) == [-1]
    assert deadlines.next_ns() is None
