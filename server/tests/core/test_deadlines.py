# SPDX-License-Identifier: AGPL-3.0-only
"""Deadlines come in order, skip what has vanished, and do not keep it in memory."""

from fila_server.core.deadlines import Deadlines


class Thing:
    def __init__(self) -> None:
        self.is_live = True


def deadlines() -> Deadlines[Thing]:
    return Deadlines(lambda thing: thing.is_live)


def test_things_come_in_the_order_of_their_times() -> None:
    heap = deadlines()
    things = [Thing() for _ in range(5)]
    for order, at in enumerate([30, 10, 20, 10, 40]):
        heap.push(at, order, things[order])
    assert heap.next_ns() == 10
    assert not heap.is_due(9) and heap.is_due(10)
    assert list(heap.due(20)) == [things[1], things[3], things[2]]
    assert heap.next_ns() == 30
    assert list(heap.due(20)) == []
    assert list(heap.due(100)) == [things[0], things[4]]
    assert heap.next_ns() is None
    assert not heap.is_due(100)


def test_vanished_things_never_come() -> None:
    heap = deadlines()
    things = [Thing() for _ in range(3)]
    for order, thing in enumerate(things):
        heap.push(order, order, thing)
    things[0].is_live = things[1].is_live = False
    heap.vanished(2)
    assert heap.next_ns() == 2
    assert list(heap.due(10)) == [things[2]]


def test_vanished_things_do_not_stay_in_memory() -> None:
    heap = deadlines()
    kept = [Thing() for _ in range(100)]
    for order, thing in enumerate(kept):
        heap.push(10**9 + order, order, thing)
    for order in range(10_000):
        thing = Thing()
        heap.push(10**12, order, thing)
        thing.is_live = False
        heap.vanished()
    assert len(heap) < 3000
    assert list(heap.due(10**13)) == kept


def test_things_may_vanish_while_others_come_due() -> None:
    heap = deadlines()
    things = [Thing() for _ in range(5000)]
    for order, thing in enumerate(things):
        heap.push(order, order, thing)
    seen = []
    for thing in heap.due(10_000):
        seen.append(thing)
        thing.is_live = False
        heap.vanished()
    assert seen == things
    assert heap.next_ns() is None
