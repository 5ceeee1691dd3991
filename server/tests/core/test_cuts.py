# SPDX-License-Identifier: AGPL-3.0-only
"""Batches in pieces: nothing is lost, reordered or done twice, whatever is refused on the way."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest
from google.protobuf.message import DecodeError

from fila.v1.service_pb2 import EnqueueBatchRequest, EnqueueRequest
from fila_server.config import LimitsConfig
from fila_server.core.commands import Enqueue
from fila_server.core.turn import BRIEF, BYTES_PER_UNIT, FULL, SLICE
from fila_server.core.wire.cuts import BLOCK_BYTES, BLOCK_ITEMS, DraftBatch, count_fields
from fila_server.core.wire.intake import PIECE_BYTES, PIECE_ITEMS, Intake
from fila_server.errors import DiskFull, FilaError, PermissionDenied
from server.tests.core.harness import Harness, check_consistent

UNKNOWN = b"\x7a\x03abc"  # field 15


def encoded(sizes: Sequence[int], queues: int = 3) -> bytes:
    items = [
        EnqueueRequest(queue=f"q{n % queues}", payload=bytes(size)) for n, size in enumerate(sizes)
    ]
    return EnqueueBatchRequest(messages=items).SerializeToString()


def read(raw: bytes) -> DraftBatch:
    batch = DraftBatch(Intake(LimitsConfig()))
    parts = list(batch.read(raw))
    assert sum(len(part.messages) for part in parts) == len(batch)
    assert not batch.has_more
    return batch


@pytest.mark.parametrize("seed", range(20))
def test_the_pieces_of_a_batch_are_the_batch(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice((0, 1, 10, PIECE_ITEMS, PIECE_ITEMS + 1, 1000))
    largest = rng.choice((0, 100, 200, 20_000, PIECE_BYTES, 3 * PIECE_BYTES))
    count = min(count, 40_000_000 // (largest + 1))
    raw = encoded([rng.randint(0, largest) for _ in range(count)])
    batch = read(raw)
    assert b"".join(batch.blocks) == raw and len(batch) == count and batch.size == len(raw)
    for block in batch.blocks:
        items = len(EnqueueBatchRequest.FromString(block).messages)
        assert len(block) <= BLOCK_BYTES or items == 1
    pieces = list(batch)
    drafts = [draft for piece, _ in pieces for draft in piece]
    assert drafts == Intake(LimitsConfig()).drafts(raw) and len(drafts) == count
    for piece, size in pieces:
        assert 0 < len(piece) <= PIECE_ITEMS
        assert size <= PIECE_BYTES + len(piece[-1][1]) + 32  # the last one may stand out


def test_a_large_batch_is_parsed_block_by_block() -> None:
    batch = DraftBatch(Intake(LimitsConfig()))
    parts = batch.read(encoded([1000] * 2000))
    assert 450 < len(next(parts).messages) < 550
    assert batch.has_more and len(batch.blocks) == 1


def test_far_too_many_items_are_not_walked_through_at_once() -> None:
    """Sixteen megabytes of empty items held the loop for four seconds before they were refused."""
    batch = DraftBatch(Intake(LimitsConfig()))
    parts = batch.read(b"\x0a\x00" * BLOCK_BYTES)
    assert len(next(parts).messages) == len(batch) == BLOCK_ITEMS
    assert batch.has_more


def test_a_length_without_end_is_refused_at_once() -> None:
    """Its bytes were added up, to a number of megabytes: a minute for the first of them."""
    began = time.process_time()
    with pytest.raises(DecodeError):
        read(encoded([10]) + b"\x0a" + b"\xff" * 2 * BLOCK_BYTES)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("payload", [10, 3000])
def test_fields_of_a_newer_contract_between_the_items_are_left_out(payload: int) -> None:
    one = encoded([payload])
    count = PIECE_ITEMS + 10
    batch = read((one + UNKNOWN) * count)
    assert len(batch) == count
    drafts = [draft for piece, _ in batch for draft in piece]
    assert drafts == Intake(LimitsConfig()).drafts(one * count)


@pytest.mark.parametrize("raw", [b"\x0a\x05abc", b"\xff", b"\x0a\x03\x0a\x01\xff" * 1000])
@pytest.mark.parametrize("before", [0, 1000])
def test_bytes_that_are_no_batch(raw: bytes, before: int) -> None:
    with pytest.raises(DecodeError):
        read(encoded([500] * before) + raw)


@pytest.mark.parametrize(
    ("raw", "fields"),
    [
        (b"", 0),
        (b"\x0a\x00" * 30, 30),
        (b"\x0a\x00" * 31, 31),
        (b"\x0a\x00" * 100_000, 31),  # it stops
        (b"\x10\x01" + b"\x0a\x00" * 9, 10),
        (b"\x11" + bytes(8) + b"\x15" + bytes(4) + b"\x0a\x00", 3),
        (b"\x1b\x1c" + b"\x0a\x00", 31),  # a group
        (b"\x8a\x80\x00\x80\x00", 1),  # padded
    ],
)
def test_fields_are_counted_before_protobuf_sees_them(raw: bytes, fields: int) -> None:
    assert count_fields(raw, 30) == fields


@pytest.mark.parametrize("seed", range(5))
def test_what_protobuf_accepts_is_counted_in_full(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(400):
        raw = bytearray(encoded([rng.randint(0, 300) for _ in range(rng.randint(0, 6))]))
        raw += UNKNOWN * rng.randint(0, 2)
        for _ in range(rng.randint(0, 2)):
            raw[rng.randrange(len(raw) or 1) : 0] = bytes([rng.randrange(256)])
        try:
            count = len(EnqueueBatchRequest.FromString(bytes(raw)).messages)
        except DecodeError:
            continue
        assert count_fields(bytes(raw), 10_000) >= count


# --- In the core ----------------------------------------------------------------------------------


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    for name in ("q0", "q1", "q2"):
        harness.create(name)
    return harness


def test_results_come_in_order_and_bytes_count_as_work(h: Harness) -> None:
    count, size = 100, 50 * 1024
    h.units.clear()
    (results,) = h.run(Enqueue(0, read(encoded([size] * count))))
    stored = [h.receive(f"q{n}", 100) for n in range(3)]
    assert results == [stored[n % 3][n // 3].id for n in range(count)]
    assert sum(h.units) >= count * size // BYTES_PER_UNIT
    assert max(h.units) <= FULL.chores + 2 * SLICE
    check_consistent(h)


def test_what_was_not_stored_when_the_disk_filled_up_shares_the_refusal(h: Harness) -> None:
    h.turn(Enqueue(7, read(encoded([10] * 4 * PIECE_ITEMS))))
    h.disk_full = DiskFull("no room")
    answers = dict(h.last.durable_answers)
    while not answers:
        h.turn()
        answers = dict(h.last.durable_answers)
    results = answers[7]
    done = [result for result in results if isinstance(result, str)]
    assert len(results) == 4 * PIECE_ITEMS and len(done) == PIECE_ITEMS
    assert results[: len(done)] == done
    assert all(isinstance(result, DiskFull) for result in results[len(done) :])
    assert sum(h.stats(f"q{n}").depth for n in range(3)) == len(done)
    check_consistent(h)


def test_a_full_disk_refuses_a_batch_as_a_whole(h: Harness) -> None:
    h.disk_full = DiskFull("no room")
    for items in (read(encoded([10] * 4 * PIECE_ITEMS)), h.drafts(EnqueueRequest(queue="q0"))):
        assert h.turn(Enqueue(7, items)).answers == [(7, h.disk_full)]
    assert not any(h.stats(f"q{n}").depth for n in range(3))


def test_what_is_denied_is_refused_in_its_place_whether_it_exists_or_not(h: Harness) -> None:
    denied: dict[str, FilaError] = {
        "q1": PermissionDenied("not yours"),
        "q3": PermissionDenied("nor this, which nobody has made"),
    }
    (results,) = h.run(Enqueue(0, read(encoded([10] * 1200, queues=4)), denied))
    for n, result in enumerate(results):
        queue = f"q{n % 4}"
        assert (result is denied[queue]) if queue in denied else isinstance(result, str)
    assert [h.stats(f"q{n}").depth for n in range(3)] == [300, 0, 300]


def test_a_brief_turn_leaves_work_under_way_alone(h: Harness) -> None:
    h.turn(Enqueue(7, read(encoded([10] * 4 * PIECE_ITEMS))))
    small = Enqueue(8, h.drafts(EnqueueRequest(queue="q0")))
    effects = h.broker.handle([small], h.clock.now(), room=BRIEF)
    assert [ticket for ticket, _ in effects.durable_answers] == [8]
    assert effects.units < PIECE_ITEMS and effects.more


class SlowHooks:
    """Hooks that take so long that a turn has time for two calls."""

    has_on_enqueue, has_on_failure = True, False
    spent_ns = 0

    def on_enqueue(self, *_: object) -> None:
        self.spent_ns += 10_000_000


def test_a_disk_that_fills_up_while_hooks_are_waited_for_takes_no_more() -> None:
    h = Harness(compile_hooks=lambda *_: SlowHooks())
    h.create("q0", on_enqueue_script="slow")
    effects = h.turn(Enqueue(7, read(encoded([10] * 20, queues=1))))
    h.disk_full = DiskFull("no room")
    while effects.more:
        effects = h.turn()
    ((ticket, results),) = effects.durable_answers
    assert ticket == 7 and len(results) == 20
    assert results[2:] == [h.disk_full] * 18
    assert h.broker.state.queues["q0"].pending == 2
    check_consistent(h)
