# SPDX-License-Identifier: AGPL-3.0-only
"""A turn moves a bounded number of bytes, however large the messages are: what it reads from the
store, writes to it and sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from fila.v1 import admin_pb2 as pb
from fila.v1.service_pb2 import NackRequest
from fila_server.config import LuaConfig
from fila_server.core.commands import Admin, Command, Nack, OpenConsumer
from fila_server.errors import DiskFull
from fila_server.runtime.hooks import compile_hooks
from fila_server.storage.api import Column
from fila_server.storage.memory import MemoryStorage
from server.tests.core.harness import Harness, check_consistent

MIB = 1 << 20
COUNT = 90  # messages of a mebibyte each
# What a turn may write, with the message that passes it; what it may read and send beside that.
MOST_WRITTEN = 6 * MIB
MOST_MOVED = 80 * MIB


class CountingStorage(MemoryStorage):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    def get_many(self, column: Column, keys: Sequence[bytes]) -> list[bytes | None]:
        found = super().get_many(column, keys)
        self.read_bytes += sum(len(value) for value in found if value is not None)
        return found

    def scan(self, column: Column, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in super().scan(column, start, end):
            self.read_bytes += len(value)
            yield key, value


def large(**config: object) -> tuple[Harness, list[str]]:
    """Return a broker with a queue of large messages, all cold, and their ids."""
    h = Harness(CountingStorage(), compile_hooks=compile_hooks(LuaConfig()), hot_bytes=0)
    h.create("q", **config)
    return h, [h.enqueue("q", payload=bytes(MIB)) for _ in range(COUNT)]


def lease_all(h: Harness) -> list[str]:
    """Lease every message to one who will not come back; return the ids."""
    ids: list[str] = []
    while messages := h.receive("q", COUNT):
        ids += [message.id for message in messages]
    assert len(ids) == COUNT
    return ids


def kill_all(h: Harness) -> None:
    """Make a dead letter of every message."""
    nacks = [NackRequest(queue="q", message_id=message_id) for message_id in lease_all(h)]
    h.run(Nack(0, nacks))
    assert h.stats("q.dlq").depth == COUNT


def assert_bounded(h: Harness, *commands: Command) -> None:
    storage: CountingStorage = h.storage
    most_written = most_moved = 0
    group = commands
    while True:
        storage.read_bytes = 0
        effects = h.turn(*group)
        group = ()
        written = sum(len(value) for _, _, value in effects.writes if isinstance(value, bytes))
        sent = sum(len(frame) for _, _, frame in effects.frames)
        most_written = max(most_written, written)
        most_moved = max(most_moved, written + sent + storage.read_bytes)
        if not effects.more:
            break
    assert most_written <= MOST_WRITTEN
    assert most_moved <= MOST_MOVED
    check_consistent(h)


def test_a_batch_of_nacks_that_end_as_dead_letters() -> None:
    h, _ = large(max_attempts=1)
    nacks = [NackRequest(queue="q", message_id=message_id) for message_id in lease_all(h)]
    assert_bounded(h, Nack(0, nacks))
    assert h.stats("q.dlq").depth == COUNT


def test_nacks_of_many_callers_that_end_as_dead_letters() -> None:
    h, _ = large(max_attempts=1)
    nacks = [NackRequest(queue="q", message_id=message_id) for message_id in lease_all(h)]
    assert_bounded(h, *(Nack(at, [nack]) for at, nack in enumerate(nacks)))
    assert h.stats("q.dlq").depth == COUNT


def test_nacks_that_a_hook_is_asked_about() -> None:
    h, _ = large(on_failure_script="function on_failure(msg) return {action='retry'} end")
    nacks = [NackRequest(queue="q", message_id=message_id) for message_id in lease_all(h)]
    assert_bounded(h, Nack(0, nacks))
    assert h.stats("q").depth == COUNT


def test_leases_that_expire_and_end_as_dead_letters() -> None:
    h, _ = large(max_attempts=1, visibility_timeout_ms=1000)
    lease_all(h)
    h.clock.advance(2)
    assert_bounded(h)
    assert h.stats("q.dlq").depth == COUNT


@pytest.mark.parametrize("wanted", ["", "nothing says this"])
def test_a_redrive(wanted: str) -> None:
    h, _ = large(max_attempts=1)
    kill_all(h)
    assert_bounded(h, Admin(0, pb.RedriveRequest(dlq_queue="q.dlq", error_contains=wanted)))
    assert h.stats("q").depth == (0 if wanted else COUNT)


def test_a_redrive_by_ids() -> None:
    h, ids = large(max_attempts=1)
    kill_all(h)
    assert_bounded(h, Admin(0, pb.RedriveRequest(dlq_queue="q.dlq", message_ids=ids)))
    assert h.stats("q").depth == COUNT


def test_deliveries_to_many_consumers() -> None:
    h, _ = large()
    streams = [OpenConsumer(at, 900 + at, "q", 1, 1, 0, False) for at in range(COUNT)]
    assert_bounded(h, *streams)
    assert h.stats("q").in_flight == COUNT


def test_a_redrive_stops_where_the_disk_fills_up() -> None:
    h, _ = large(max_attempts=1)
    kill_all(h)
    h.turn(Admin(0, pb.RedriveRequest(dlq_queue="q.dlq")))
    for _ in range(5):
        assert h.turn().more
    h.disk_full = DiskFull("no room")
    answers: list[object] = []
    while h.last.more and not answers:
        answers = [answer for _, answer in h.turn().durable_answers]
    (answer,) = answers
    assert isinstance(answer, pb.RedriveResponse)
    assert 0 < answer.redriven == h.stats("q").depth < COUNT
    check_consistent(h)
