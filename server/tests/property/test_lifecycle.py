# SPDX-License-Identifier: AGPL-3.0-only
"""The core against a simple model of a broker: every rule of the lifecycle, under crashes and
clock steps.

The model knows nothing of lanes, grants or records: a message is a row with a place. After every
step memory must equal what a restart would rebuild.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fila.v1 import admin_pb2 as pb
from fila.v1.messages_pb2 import Message
from fila_server.core.commands import CloseConsumer, FrameTaken
from fila_server.core.wire.answers import Settled
from fila_server.errors import (
    FilaError,
    LeaseExpired,
    MessageLeased,
    MessageNotFound,
    ParentQueueNotFound,
    QueueNotFound,
)
from server.tests.core.harness import MS, Harness, S, check_consistent
from server.tests.property.rows import Model, Row

VISIBILITY_S = 30
QUEUES = ("plain", "strict")  # strict: two attempts, delayed retries
RETRY_DELAY_S = 5
SETTLEMENTS: dict[str, dict[str, Any]] = {  # of grants
    "ack": {"ack": {}},
    "nack": {"nack": {"error": "boom"}},
    "release": {"nack": {"retry_after_ms": 0}},
    "extend": {"extend": {"extend_ms": 50_000}},
}


class Lifecycle(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.h = Harness(hot_bytes=600)  # small: half of the messages are born cold
        self.model = Model()
        self.consumer: int | None = None
        self.consumes = ""  # the queue that it takes from
        self.stale: list[
            tuple[str, str, str]
        ] = []  # (queue, id, token) that must not work any more
        self.idempotent: dict[str, tuple[str, int]] = {}
        self.paused: set[str] = set()
        self.seen: set[int] = set()  # grants whose frames were looked at
        self.serial = 0

    @initialize()
    def create(self) -> None:
        self.h.create("plain", idempotency_window_ms=60_000)
        self.h.create("strict", max_attempts=2, retry_delay_ms=RETRY_DELAY_S * 1000)

    # --- What time does, in the order in which the broker does it ---------------------------------

    def pass_time(self) -> None:
        now = self.h.clock.mono_ns
        for row in sorted(self.model.at("leased"), key=lambda row: row.deadline_ns):
            if row.deadline_ns <= now:
                self.failed(row)
        for row in [*self.model.at("pending"), *self.model.at("delayed")]:
            if row.expires_ns and row.expires_ns <= now:
                row.place = "gone"
        for row in self.model.at("delayed"):
            if row.due_ns <= now:
                row.place = "pending"

    def failed(self, row: Row) -> None:
        now = self.h.clock.mono_ns
        self.stale.append((row.queue, row.id, row.token))
        row.token = ""
        if row.expires_ns and row.expires_ns <= now:
            row.place = "gone"
            return
        row.attempts += 1
        row.place = "pending"
        row.was_moved = True
        if row.queue == "strict":
            if row.attempts >= 2:
                row.queue = "strict.dlq"
                row.expires_ns = 0
            else:
                row.place = "delayed"
                row.due_ns = now + RETRY_DELAY_S * S

    # --- Producers --------------------------------------------------------------------------------

    @rule(
        queue=st.sampled_from(QUEUES),
        key=st.sampled_from(["", "a", "b"]),
        delay=st.sampled_from([0, 0, 0, 2000, 40_000]),
        ttl=st.sampled_from([0, 0, 0, 3000, 60_000]),
    )
    def enqueue(self, queue: str, key: str, delay: int, ttl: int) -> None:
        self.pass_time()
        self.serial += 1
        payload = b"p%d" % self.serial * 20
        message_id = self.h.enqueue(
            queue, payload, fairness_key=key, delay_ms=delay, ttl_ms=ttl, headers={"k": key}
        )
        assert message_id not in self.model.rows
        now = self.h.clock.mono_ns
        row = Row(message_id, queue, key or "default", payload, self.serial)
        if delay:
            row.place, row.due_ns, row.was_moved = "delayed", now + delay * MS, True
        if ttl:
            row.expires_ns = now + ttl * MS
        self.model.rows[message_id] = row
        self.collect()

    @rule(name=st.sampled_from(["i1", "i2"]))
    def enqueue_once(self, name: str) -> None:
        self.pass_time()
        known = self.idempotent.get(name)
        message_id = self.h.enqueue("plain", b"once", idempotency_key=name)
        if known is not None and known[1] > self.h.clock.wall_ns:
            assert message_id == known[0]
        else:
            self.serial += 1
            assert message_id not in self.model.rows
            self.idempotent[name] = (message_id, self.h.clock.wall_ns + 60 * S)
            self.model.rows[message_id] = Row(message_id, "plain", "default", b"once", self.serial)
        self.collect()

    # --- Consumers --------------------------------------------------------------------------------

    def delivered(self, queue: str, message: Message) -> None:
        row = self.model.rows[message.id]
        assert row.place == "pending", f"{row.place} message delivered"
        assert row.queue == queue
        assert queue not in self.paused and row.key not in self.paused
        assert message.payload == row.payload
        assert message.metadata.attempt_count == row.attempts
        assert message.metadata.fairness_key == row.key
        assert message.metadata.lease_token not in {token for _, _, token in self.stale}
        if not row.was_moved:
            earlier = [
                other
                for other in self.model.at("pending", queue)
                if other.key == row.key and not other.was_moved and other.number < row.number
            ]
            assert not earlier, "FIFO within a lane"
        row.place = "leased"
        row.was_moved = True
        row.was_extended = False
        row.token = message.metadata.lease_token
        row.deadline_ns = self.h.clock.mono_ns + VISIBILITY_S * S

    def collect(self) -> None:
        """Look at what the open stream was sent."""
        for consumer, grant, messages in self.h.frames:
            if consumer == self.consumer and grant not in self.seen:
                self.seen.add(grant)
                for message in messages:
                    self.delivered(self.consumes, message)

    @rule(queue=st.sampled_from([*QUEUES, "strict.dlq"]), count=st.integers(1, 4))
    def receive(self, queue: str, count: int) -> None:
        self.pass_time()
        waiting = len([r for r in self.model.at("pending", queue) if r.key not in self.paused])
        messages = self.h.receive(queue, count)
        self.collect()
        for message in messages:
            self.delivered(queue, message)
        if self.consumer is None:
            assert len(messages) == (0 if queue in self.paused else min(count, waiting))

    @precondition(lambda self: self.consumer is None)
    @rule(queue=st.sampled_from(QUEUES), credit=st.integers(1, 5))
    def open_stream(self, queue: str, credit: int) -> None:
        self.pass_time()
        self.consumes = queue
        self.consumer = self.h.open(queue, credit, batch=2)
        self.collect()

    @precondition(lambda self: self.consumer is not None)
    @rule()
    def take_frames(self) -> None:
        self.pass_time()
        self.collect()
        taken, self.h.frames = self.h.frames, []
        self.h.run(*(FrameTaken(consumer) for consumer, _, _ in taken))
        self.collect()

    @precondition(lambda self: self.consumer is not None)
    @rule()
    def disconnect(self) -> None:
        """Frames that were not taken go back at once, with no attempt counted."""
        self.pass_time()
        self.collect()
        unsent = [grant for _, grant, _ in self.h.frames]
        tokens = {message.metadata.lease_token for _, _, sent in self.h.frames for message in sent}
        for token in tokens:
            for row in self.model.at("leased"):
                if row.token == token and not row.was_extended:
                    self.stale.append((row.queue, row.id, row.token))
                    has_ended = 0 < row.expires_ns <= self.h.clock.mono_ns
                    row.place, row.token = "gone" if has_ended else "pending", ""
        self.h.frames = []
        assert self.consumer is not None
        self.h.run(CloseConsumer(self.consumer, unsent))
        self.consumer = None

    # --- Settling ---------------------------------------------------------------------------------

    @precondition(lambda self: self.model.at("leased"))
    @rule(data=st.data(), with_token=st.booleans())
    def ack(self, data: st.DataObject, with_token: bool) -> None:
        self.pass_time()
        row = self.some_leased(data)
        if row is None:
            return
        assert self.h.ack(row.queue, row.id, row.token if with_token else "") is None
        self.stale.append((row.queue, row.id, row.token))
        row.place, row.token = "gone", ""
        self.collect()

    @precondition(lambda self: self.model.at("leased"))
    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        self.pass_time()
        row = self.some_leased(data)
        if row is None:
            return
        assert self.h.nack(row.queue, row.id, row.token, error="boom") is None
        self.failed(row)
        self.collect()

    @precondition(lambda self: self.model.at("leased"))
    @rule(data=st.data(), ms=st.sampled_from([0, 4000]))
    def back_off(self, data: st.DataObject, ms: int) -> None:
        """A nack with retry_after counts no attempt."""
        self.pass_time()
        row = self.some_leased(data)
        if row is None:
            return
        assert self.h.nack(row.queue, row.id, row.token, retry_after_ms=ms) is None
        self.stale.append((row.queue, row.id, row.token))
        row.token = ""
        now = self.h.clock.mono_ns
        row.place, row.due_ns = ("delayed", now + ms * MS) if ms else ("pending", 0)
        if 0 < row.expires_ns <= now:
            row.place = "gone"
        self.collect()

    @precondition(lambda self: self.model.at("leased"))
    @rule(data=st.data(), seconds=st.sampled_from([1, 50]))
    def extend(self, data: st.DataObject, seconds: int) -> None:
        self.pass_time()
        row = self.some_leased(data)
        if row is None:
            return
        result = self.h.extend(row.queue, row.id, row.token, seconds * 1000)
        assert result == self.h.clock.wall_ns + seconds * S
        row.deadline_ns = self.h.clock.mono_ns + seconds * S
        row.was_extended = True
        self.collect()

    @precondition(lambda self: self.model.at("leased"))
    @rule(
        data=st.data(),
        how=st.sampled_from(sorted(SETTLEMENTS)),
        is_counted=st.booleans(),
    )
    def settle_grant(self, data: st.DataObject, how: str, is_counted: bool) -> None:
        """One token settles what is left of a frame, or all but one message of it."""
        self.pass_time()
        row = self.some_leased(data)
        if row is None:
            return
        token, queue = row.token, row.queue
        rows = [it for it in self.model.at("leased") if it.token == token]
        kept = data.draw(st.sampled_from([None, *rows]))
        rows = [it for it in rows if it is not kept]
        result = self.h.settle(
            queue,
            token,
            except_message_ids=[] if kept is None else [kept.id],
            expected_messages=len(rows) if is_counted else 0,
            **SETTLEMENTS[how],
        )
        assert isinstance(result, Settled) and result.messages == len(rows)
        now = self.h.clock.mono_ns
        for row in rows:
            if how == "extend":
                row.deadline_ns, row.was_extended = now + 50 * S, True
            elif how == "nack":
                self.failed(row)
            else:
                self.stale.append((queue, row.id, token))
                is_gone = how == "ack" or 0 < row.expires_ns <= now
                row.place, row.token = "gone" if is_gone else "pending", ""
        self.collect()

    def some_leased(self, data: st.DataObject) -> Row | None:
        self.h.tick()
        self.collect()
        rows = self.model.at("leased")
        return data.draw(st.sampled_from(rows)) if rows else None

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), how=st.sampled_from(["ack", "nack", "extend"]))
    def use_stale_token(self, data: st.DataObject, how: str) -> None:
        self.pass_time()
        queue, message_id, token = data.draw(st.sampled_from(self.stale))
        result = getattr(self.h, how)(queue, message_id, token)
        assert isinstance(result, LeaseExpired | MessageNotFound)
        if self.model.rows[message_id].place == "gone":
            assert isinstance(result, MessageNotFound)
        elif self.model.rows[message_id].queue == queue:
            assert isinstance(result, LeaseExpired)
        self.collect()

    # --- Operators --------------------------------------------------------------------------------

    @rule(count=st.integers(0, 3))
    def redrive(self, count: int) -> None:
        self.pass_time()
        waiting = len(self.model.at("pending", "strict.dlq"))
        response = self.h.admin(pb.RedriveRequest(dlq_queue="strict.dlq", count=count))
        assert response.redriven == (min(count, waiting) if count else waiting)
        queue = self.h.broker.state.queues["strict"]
        home = set(queue.leases) | set(queue.delayed) | self.pending_ids("strict")
        for row in self.model.at("pending", "strict.dlq"):
            if row.id in home or row.id not in self.pending_ids("strict.dlq"):
                row.queue, row.attempts = "strict", 0
        self.collect()

    def pending_ids(self, queue: str) -> set[str]:
        response = self.h.admin(pb.PeekRequest(queue=queue, limit=1000))
        return {
            found.message.id
            for found in response.messages
            if found.state == pb.MESSAGE_STATE_PENDING
        }

    @rule(queue=st.sampled_from(QUEUES), key=st.sampled_from(["", "a"]))
    def purge(self, queue: str, key: str) -> None:
        self.pass_time()
        rows = [
            row
            for row in [*self.model.at("pending", queue), *self.model.at("delayed", queue)]
            if not key or row.key == key
        ]
        purged = self.h.admin(pb.PurgeRequest(queue=queue, fairness_key=key)).purged
        assert purged == len(rows)
        for row in rows:
            row.place = "gone"
        self.collect()

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.pass_time()
        self.h.tick()
        self.collect()
        row = data.draw(st.sampled_from(sorted(self.model.rows.values(), key=lambda r: r.number)))
        request = pb.CancelMessageRequest(queue=row.queue, message_id=row.id)
        try:
            self.h.admin(request)
            assert row.place in ("pending", "delayed")
            row.place = "gone"
        except MessageLeased:
            assert row.place == "leased"
        except MessageNotFound:
            assert row.place == "gone"
        self.collect()

    @rule(what=st.sampled_from(["plain", "b"]))
    def pause_or_resume(self, what: str) -> None:
        self.pass_time()
        key = what if what == "b" else ""
        for queue in QUEUES if key else ("plain",):
            kind = pb.ResumeRequest if what in self.paused else pb.PauseRequest
            self.h.tick()
            self.collect()
            self.h.admin(kind(queue=queue, fairness_key=key))
        self.paused ^= {what}
        self.collect()

    @rule(keep=st.booleans())
    def delete_and_recreate(self, keep: bool) -> None:
        """Nothing of a deleted queue ever comes back."""
        self.pass_time()
        self.h.tick()
        self.collect()
        gone = ["strict"] if keep else ["strict", "strict.dlq"]
        self.h.admin(pb.DeleteQueueRequest(queue="strict", keep_dead_letters=keep))
        for row in self.model.rows.values():
            if row.queue in gone:
                row.place = "gone"
        if self.consumer is not None and self.consumes == "strict":
            self.h.run(CloseConsumer(self.consumer, [g for _, g, _ in self.h.frames]))
            self.h.frames = []
            self.consumer = None
        with pytest.raises(ParentQueueNotFound if keep else QueueNotFound):
            self.h.admin(pb.RedriveRequest(dlq_queue="strict.dlq"))
        self.h.create("strict", max_attempts=2, retry_delay_ms=RETRY_DELAY_S * 1000)
        if "b" in self.paused:
            self.h.admin(pb.PauseRequest(queue="strict", fairness_key="b"))

    # --- Faults -----------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.001, 1, 4, 29.999, 31, 70]))
    def wait(self, seconds: float) -> None:
        self.h.clock.advance(seconds)
        self.pass_time()
        self.h.tick()
        self.collect()

    @rule()
    def kill(self) -> None:
        """kill -9 loses nothing: leases, delays and counts come back as they were."""
        self.pass_time()
        self.h.tick()
        self.collect()
        self.h.restart()
        self.consumer = None

    # --- What always holds ------------------------------------------------------------------------

    @invariant()
    def memory_equals_disk(self) -> None:
        check_consistent(self.h)

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        state = self.h.broker.state
        for name in (*QUEUES, "strict.dlq"):
            if name not in state.queues:
                continue
            queue = state.queues[name]
            self.pass_time_is_due()
            assert len(queue.leases) == len(self.model.at("leased", name))
            assert len(queue.delayed) == len(self.model.at("delayed", name))
            assert queue.pending == len(self.model.at("pending", name))

    def pass_time_is_due(self) -> None:
        """The model may be ahead: let the broker look at the clock too."""
        self.h.tick()
        self.collect()

    def teardown(self) -> None:
        """Faults off and time passing, everything that is left is delivered."""
        if not self.h.broker.state.queues:
            return
        self.disconnect() if self.consumer is not None else None
        for request in (
            pb.ResumeRequest(queue="plain"),
            pb.ResumeRequest(queue="plain", fairness_key="b"),
            pb.ResumeRequest(queue="strict", fairness_key="b"),
        ):
            self.h.admin(request)
        self.paused.clear()
        for _ in range(4):
            self.h.clock.advance(100)
            self.pass_time()
            for name in (*QUEUES, "strict.dlq"):
                for message in self.h.receive(name, 1000):
                    self.delivered(name, message)
                    assert self.h.ack(name, message.id) is None
                    self.model.rows[message.id].place = "gone"
        left = [row for row in self.model.rows.values() if row.place != "gone"]
        assert not left, "messages were lost"


def test_errors_are_of_the_tree() -> None:
    assert issubclass(LeaseExpired, FilaError)


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
