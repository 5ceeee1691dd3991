# SPDX-License-Identifier: AGPL-3.0-only
"""A lane's FIFO against a plain list, with chunks so small that every end of one is met."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fila.v1.admin_pb2 import QueueConfig
from fila_server.core import check
from fila_server.core.schedule import fifo as module
from fila_server.core.schedule.fifo import CHUNK, Fifo, Kept, Pick, Waiting
from fila_server.core.schedule.lane import FairnessKey, Lane
from fila_server.core.schedule.message import Message, Origin
from fila_server.core.schedule.queue import Queue
from fila_server.core.wire.records import PLAIN

KINDS = ("cold", "hot", "message")
STEP = 97  # so that a few rules fill a chunk


def lane() -> Lane:
    queue = Queue(1, "q", QueueConfig(), "")
    return Lane(FairnessKey(queue, "a", queue.others), PLAIN, ())


class FifoModel(RuleBasedStateMachine):
    """A list of what is to come out, with what was put in."""

    def __init__(self) -> None:
        super().__init__()
        self.lane = lane()
        self.fifo = Fifo()
        self.model: list[tuple[int, Kept, Origin | None]] = []
        self.next = 0
        self.gone: list[int] = []

    @rule(kind=st.sampled_from(KINDS), count=st.integers(1, STEP), gap=st.integers(1, 3))
    def append(self, kind: str, count: int, gap: int) -> None:
        origin = Origin(b"y" + bytes(8), b"\n$" + b"0" * 24)
        for _ in range(count):
            self.next += gap
            kept: Kept = None
            if kind == "hot":
                kept = b"%d" % self.next
            elif kind == "message":
                kept = Message(self.next + 1_000_000, None, self.lane, origin)
                kept.details().order = self.next
            shared = origin if kind == "hot" else None
            self.fifo.append(self.next, kept, shared)
            self.model.append((self.next, kept, shared))

    def check_came(self, came: Waiting, expected: tuple[int, Kept, Origin | None]) -> None:
        order, kept, origin = expected
        self.gone.append(order)
        if isinstance(kept, bytes):
            assert isinstance(came, Message)
            assert (came.number, came.order, came.content) == (order, order, kept)
            assert came.origin is origin and came.lane is self.lane
        elif kept is None:
            assert came == order
        else:
            assert came is kept

    @precondition(lambda self: self.model)
    @rule(part=st.floats(0, 1))
    def take(self, part: float) -> None:
        count = max(1, int(part * len(self.model)))
        picked: list[Pick] = []
        self.fifo.take(self.lane, count, picked)
        for one, expected in zip(picked, self.model[:count], strict=True):
            if isinstance(one, tuple):
                assert one[0] is self.lane
                self.check_came(one[1], expected)
            else:
                self.check_came(one, expected)
        del self.model[:count]

    @precondition(lambda self: self.model)
    @rule(count=st.integers(1, 40))
    def pop(self, count: int) -> None:
        for _ in range(min(count, len(self.model))):
            self.check_came(self.fifo.pop(self.lane), self.model.pop(0))

    @precondition(lambda self: self.model)
    @rule(start=st.floats(0, 1), count=st.integers(1, STEP))
    def discard(self, start: float, count: int) -> None:
        """Neighbours, at the front and at the end too."""
        at = int(start * (len(self.model) - 1))
        for order, kept, origin in self.model[at : at + count]:
            found = self.fifo.discard(order, self.lane)
            assert found is not None
            self.check_came(found, (order, kept, origin))
        del self.model[at : at + count]

    @invariant()
    def is_what_the_list_is(self) -> None:
        fifo = self.fifo
        assert not list(check._of_fifo(fifo))
        assert list(fifo) == [(order, kept) for order, kept, _ in self.model]
        assert fifo.size == len(self.model)
        if self.model:
            order, kept, _ = self.model[0]
            assert fifo.first_order() == order
            assert fifo.first() == (kept if isinstance(kept, Message) else order)
        for at in range(0, len(self.model), 13):
            assert fifo.before(self.model[at][0]) == at
            assert self.model[at][0] in fifo
        for order in self.gone[-20:]:
            assert order not in fifo
            assert fifo.discard(order, self.lane) is None
        assert fifo.before(self.next + 1) == len(self.model)


FifoModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestFifo = FifoModel.TestCase


def filled(count: int) -> Fifo:
    fifo = Fifo()
    for order in range(count):
        fifo.append(order, None, None)
    return fifo


def test_what_was_taken_out_is_let_go_of() -> None:
    """A lane that never runs empty must not grow for ever, nor keep what it gave away."""
    fifo, of = Fifo(), lane()
    origin = Origin(b"y" + bytes(8), b"\n$" + b"0" * 24)
    sizes = set()
    for order in range(10 * CHUNK):
        fifo.append(order, b"x", origin)
        if order >= 3:
            fifo.take(of, 1, [])
        sizes.add(sum(len(chunk.orders) for chunk in fifo.chunks))
    assert fifo.size == 3
    assert max(sizes) < 50


def test_a_cold_lane_keeps_numbers_only() -> None:
    fifo = filled(3 * CHUNK)
    assert all(chunk.kept is None and chunk.origins is None for chunk in fifo.chunks)


def test_taking_out_of_the_middle_costs_the_same_beside_what_was_taken_out() -> None:
    fifo, of = filled(20_000), lane()
    for order in range(1, 20_000):
        assert fifo.discard(order, of) == order
    assert (fifo.size, fifo.first(), fifo.before(20_000)) == (1, 0, 1)
    assert len(fifo.chunks) == 1
    fifo.append(20_000, None, None)
    assert (fifo.pop(of), fifo.pop(of), fifo.size) == (0, 20_000, 0)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many chunks a search looks at."""
    looked: list[int] = []

    def last_order(chunk: module.Chunk) -> int:
        looked.append(1)
        return chunk.orders[-1] if chunk.orders else -1

    if module.__file__.endswith(".py"):
        monkeypatch.setattr(module, "_last_order", last_order)
    yield looked


def test_a_search_looks_at_few_chunks(counted: list[int]) -> None:
    fifo = filled(200 * CHUNK)
    assert 150 * CHUNK + 7 in fifo
    assert fifo.discard(77 * CHUNK, lane()) == 77 * CHUNK
    assert len(counted) <= 20
