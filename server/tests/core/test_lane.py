# SPDX-License-Identifier: AGPL-3.0-only
"""A lane stays sorted wherever messages are put back."""

import hypothesis.strategies as st
from hypothesis import given

from fila.v1.admin_pb2 import QueueConfig
from fila_server.core.lane import PLAIN, FairnessKey, Lane, lane_key_of, order_of
from fila_server.core.message import Message
from fila_server.core.queue import Queue
from fila_server.core.records import message_key
from fila_server.core.records_pb2 import Head


def lane() -> Lane:
    return Lane(FairnessKey(Queue(1, "q", QueueConfig(), ""), "a"), PLAIN)


def message(of: Lane, order: int) -> Message:
    return Message(message_key(1, order), f"m{order}", None, of, b"", order)


def place(order: int, shift: int) -> int:
    return (order - shift) * 2 + 1001


@given(
    st.sets(st.integers(0, 200), max_size=60),
    st.lists(st.integers(201, 400), min_size=1, max_size=20, unique=True),
    st.sets(st.integers(0, 200)),
    st.integers(0, 400),
)
def test_whatever_is_put_back_finds_its_place(
    waiting: set[int], batch: list[int], cold: set[int], shift: int
) -> None:
    """`shift` moves the batch to the front, into the middle or behind what waits."""
    line = lane()
    for order in sorted(waiting):
        at = order * 2 + 1000
        line.messages.append(at if order in cold else message(line, at))
    line.insert([message(line, place(order, shift)) for order in batch])
    orders = [order_of(it) for it in line.messages]
    moved = [place(order, shift) for order in batch]
    assert orders == sorted([*(order * 2 + 1000 for order in waiting), *moved])


def test_the_lane_of_a_head() -> None:
    assert lane_key_of(Head(fairness_key="a", weight=3)) == PLAIN
    assert lane_key_of(Head(throttle_keys=["x", "y"])) == (("x", "y"), 1)
    assert lane_key_of(Head(throttle_keys=["x"], throttle_cost=4)) == (("x",), 4)
    assert lane_key_of(Head(throttle_cost=4)) == PLAIN
