# SPDX-License-Identifier: AGPL-3.0-only
"""A lane against a sorted list: whatever comes, leaves and is put back, the order holds."""

from __future__ import annotations

from bisect import bisect_left

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fila.v1.admin_pb2 import QueueConfig
from fila_server.core.schedule.fifo import Waiting
from fila_server.core.schedule.lane import FairnessKey, Lane, order_of
from fila_server.core.schedule.message import Message, Origin
from fila_server.core.schedule.queue import Queue
from fila_server.core.wire.records import PLAIN

ORIGIN = Origin(b"y" + bytes(8), b"\n$" + b"0" * 24)


def lane() -> Lane:
    queue = Queue(1, "q", QueueConfig(), "")
    return Lane(FairnessKey(queue, "a", queue.others), PLAIN, ())


def message(of: Lane, order: int) -> Message:
    return Message(order, None, of, ORIGIN)


class LaneModel(RuleBasedStateMachine):
    """`order` grows as the broker's numbers do; what is put back has an order from before."""

    def __init__(self) -> None:
        super().__init__()
        self.lane = lane()
        self.orders: list[int] = []  # sorted
        self.next = 0
        self.left: list[int] = []  # orders that are free to come back

    def waiting(self, order: int, is_cold: bool) -> Waiting:
        return order if is_cold else message(self.lane, order)

    @initialize(count=st.integers(0, 40), cold=st.booleans())
    def fill(self, count: int, cold: bool) -> None:
        for _ in range(count):
            self.append(cold, 1)

    @rule(is_cold=st.booleans(), step=st.integers(1, 3))
    def append(self, is_cold: bool, step: int) -> None:
        self.next += step
        kept = None if is_cold else message(self.lane, self.next)
        self.lane.fifo.append(self.next, kept, None)
        self.orders.append(self.next)

    @rule(is_cold=st.booleans())
    def append_aside(self, is_cold: bool) -> None:
        """A message with a time to live may leave before its turn."""
        self.next += 1
        self.lane.set_aside(self.next, self.waiting(self.next, is_cold))
        self.orders.append(self.next)

    @precondition(lambda self: self.left)
    @rule(data=st.data(), is_cold=st.booleans())
    def put_back(self, data: st.DataObject, is_cold: bool) -> None:
        order = data.draw(st.sampled_from(self.left))
        self.left.remove(order)
        self.lane.set_aside(order, self.waiting(order, is_cold))
        self.orders.insert(bisect_left(self.orders, order), order)

    @precondition(lambda self: self.orders)
    @rule()
    def pop(self) -> None:
        order = self.orders.pop(0)
        assert order_of(self.lane.pop()) == order
        self.left.append(order)

    @precondition(lambda self: self.orders)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        order = data.draw(st.sampled_from(self.orders))
        found = self.lane.discard(order)
        assert found is not None and order_of(found) == order
        assert self.lane.discard(order) is None
        self.orders.remove(order)
        self.left.append(order)

    @precondition(lambda self: len(self.orders) > 4)
    @rule(data=st.data())
    def discard_many(self, data: st.DataObject) -> None:
        """Neighbours, at the front and at the end too."""
        start = data.draw(st.integers(0, len(self.orders) - 2))
        end = data.draw(st.integers(start + 1, len(self.orders)))
        for order in self.orders[start:end]:
            assert self.lane.discard(order) is not None
            self.left.append(order)
        del self.orders[start:end]

    @invariant()
    def every_message_has_its_place(self) -> None:
        lane = self.lane
        assert len(lane) == len(self.orders)
        assert bool(lane) is bool(self.orders)
        first = lane.first()
        assert (None if first is None else order_of(first)) == next(iter(self.orders), None)
        for at, order in enumerate(self.orders):
            assert lane.has(order)
            assert lane.before(order) == at
        for order in self.left:
            assert not lane.has(order)
            assert lane.discard(order) is None

    def teardown(self) -> None:
        assert [order_of(self.lane.pop()) for _ in range(len(self.lane))] == self.orders
        assert not self.lane and self.lane.first() is None


LaneModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestLane = LaneModel.TestCase


def test_the_room_that_a_delivery_needs_is_known() -> None:
    """In bytes, with names of four bytes a character."""
    queue = Queue(1, "q" * 250, QueueConfig(), "")
    key = FairnessKey(queue, "\N{GRINNING FACE}" * 60, queue.others)
    one = Lane(key, (tuple("\N{GRINNING FACE}" * 60 + str(n) for n in range(9)), 1000), ())
    metadata = one.frame_metadata(token_bytes=20)
    assert len(metadata) + 20 < one.overhead < 3 * len(metadata)
