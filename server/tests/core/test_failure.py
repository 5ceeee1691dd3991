# SPDX-License-Identifier: AGPL-3.0-only
"""What failures leave behind: the last five with their causes, over restarts, death and redrive;
and how long hooks may hold a turn."""

from __future__ import annotations

from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila.v1.messages_pb2 import (
    FAILURE_CAUSE_EXPIRED,
    FAILURE_CAUSE_HOOK,
    FAILURE_CAUSE_MAX_ATTEMPTS,
    FAILURE_CAUSE_NACK,
    Message,
)
from fila.v1.service_pb2 import EnqueueRequest, GrantNack, NackRequest
from fila_server.config import LuaConfig
from fila_server.core.commands import Admin, Enqueue, FrameTaken, Nack
from fila_server.core.turn import HOOK_NS
from fila_server.core.wire.answers import Settled
from fila_server.core.wire.records_pb2 import Retry
from fila_server.errors import DiskFull, InvalidArgument
from fila_server.runtime.hooks import compile_hooks
from fila_server.storage.api import Column
from server.tests.core.harness import Harness, S, check_consistent

GIVES_UP = """
function on_failure(msg, error, attempts)
    if error == "give up" then return { action = "dlq" } end
    return { action = "retry", delay_ms = 0 }
end
"""
KEY_BY_SETTING = """
function on_enqueue(msg)
    return { fairness_key = fila.get("key") or "none" }
end
"""


@pytest.fixture
def h() -> Harness:
    harness = Harness(compile_hooks=compile_hooks(LuaConfig()))
    harness.create("q")
    return harness


def take(h: Harness, queue: str = "q") -> Message:
    (message,) = h.receive(queue)
    return message


def fail(h: Harness, error: str, queue: str = "q") -> None:
    h.clock.advance(1)
    assert h.nack(queue, take(h, queue).id, error=error) is None


def past(failures: Any) -> list[tuple[int, str]]:
    return [(failure.cause, failure.error) for failure in failures]


def peeked(h: Harness, queue: str = "q") -> Message:
    (row,) = h.admin(pb.PeekRequest(queue=queue)).messages
    return row.message  # type: ignore[no-any-return]


# --- The history ----------------------------------------------------------------------------------


def test_a_message_that_never_failed_has_no_past(h: Harness) -> None:
    h.enqueue("q")
    assert not peeked(h).metadata.failures
    assert not take(h).metadata.failures


def test_the_last_five_failures_are_kept_oldest_first(h: Harness) -> None:
    message_id = h.enqueue("q")
    times = []
    for number in range(7):
        fail(h, f"error {number}")
        times.append(h.clock.wall_ns)
    expected = [(FAILURE_CAUSE_NACK, f"error {number}") for number in range(2, 7)]
    explained = h.admin(pb.ExplainRequest(queue="q", message_id=message_id)).failures
    message = take(h)
    for failures in (message.metadata.failures, explained):
        assert past(failures) == expected
        assert [it.failed_at.ToNanoseconds() for it in failures] == times[2:]
    assert message.metadata.attempt_count == 7
    check_consistent(h)


def test_an_error_of_the_past_is_cut_at_256_bytes_and_the_last_one_later(h: Harness) -> None:
    h.enqueue("q")
    fail(h, "€" * 2000)
    metadata = take(h).metadata
    assert metadata.last_error == "€" * 1365
    assert past(metadata.failures) == [(FAILURE_CAUSE_NACK, "€" * 85)]


def test_every_cause_is_told(h: Harness) -> None:
    h.create("strict", max_attempts=3)
    h.enqueue("strict")
    fail(h, "no", "strict")
    take(h, "strict")
    h.clock.advance(30)
    h.tick()
    fail(h, "no more", "strict")
    assert past(take(h, "strict.dlq").metadata.failures) == [
        (FAILURE_CAUSE_NACK, "no"),
        (FAILURE_CAUSE_EXPIRED, "lease expired"),
        (FAILURE_CAUSE_MAX_ATTEMPTS, "no more"),
    ]


def test_a_hook_that_gives_up_is_a_cause(h: Harness) -> None:
    h.create("hooked", on_failure_script=GIVES_UP)
    h.enqueue("hooked")
    fail(h, "no", "hooked")
    fail(h, "give up", "hooked")
    assert past(take(h, "hooked.dlq").metadata.failures) == [
        (FAILURE_CAUSE_NACK, "no"),
        (FAILURE_CAUSE_HOOK, "give up"),
    ]


@pytest.mark.parametrize("is_whole", [False, True], ids=["nack", "grant"])
def test_what_its_consumer_calls_hopeless_is_dead_at_once(h: Harness, is_whole: bool) -> None:
    h.create("hooked", on_failure_script=GIVES_UP, max_attempts=100, retry_delay_ms=5_000)
    h.enqueue("hooked")
    fail(h, "no", "hooked")
    h.clock.advance(5)
    message = take(h, "hooked")
    if is_whole:
        nack = GrantNack(error="bad address", dead_letter=True)
        assert h.settle("hooked", message.metadata.lease_token, nack=nack) == Settled(1)
    else:
        assert h.nack("hooked", message.id, error="bad address", dead_letter=True) is None
    letter = take(h, "hooked.dlq")
    assert past(letter.metadata.failures) == [
        (FAILURE_CAUSE_NACK, "no"),
        (FAILURE_CAUSE_NACK, "bad address"),
    ]
    # There is nowhere further to go: a dead letter is retried where it is.
    assert h.nack("hooked.dlq", letter.id, error="still bad", dead_letter=True) is None
    assert take(h, "hooked.dlq").metadata.last_error == "still bad"
    check_consistent(h)


def test_hopeless_and_later_exclude_each_other(h: Harness) -> None:
    h.enqueue("q")
    message = take(h)
    error = h.nack("q", message.id, retry_after_ms=5, dead_letter=True)
    assert isinstance(error, InvalidArgument)
    assert str(error) == "dead_letter and retry_after_ms exclude each other; give one of them"
    assert h.ack("q", message.id) is None


def test_backpressure_is_no_failure(h: Harness) -> None:
    h.enqueue("q")
    fail(h, "no")
    assert h.nack("q", take(h).id, error="busy", retry_after_ms=1000) is None
    h.clock.advance(1)
    metadata = take(h).metadata
    assert (metadata.attempt_count, metadata.last_error) == (1, "busy")
    assert past(metadata.failures) == [(FAILURE_CAUSE_NACK, "no")]


@pytest.mark.parametrize("restarts", [False, True])
def test_the_past_survives_death_and_redrive(h: Harness, restarts: bool) -> None:
    h.create("strict", max_attempts=2)
    message_id = h.enqueue("strict", fairness_key="a")
    fail(h, "one", "strict")
    fail(h, "two", "strict")
    expected = [(FAILURE_CAUSE_NACK, "one"), (FAILURE_CAUSE_MAX_ATTEMPTS, "two")]
    if restarts:
        h.restart()
    assert past(peeked(h, "strict.dlq").metadata.failures) == expected
    assert h.admin(pb.RedriveRequest(dlq_queue="strict.dlq")).redriven == 1
    if restarts:
        h.restart()
    metadata = take(h, "strict").metadata
    assert (metadata.attempt_count, metadata.last_error) == (0, "two")
    assert past(metadata.failures) == expected
    assert h.nack("strict", message_id, error="three") is None
    expected.append((FAILURE_CAUSE_NACK, "three"))
    assert past(peeked(h, "strict").metadata.failures) == expected
    check_consistent(h)


def test_a_message_that_fails_and_is_taken_again_in_one_turn(h: Harness) -> None:
    """Its past is in the turn's own batch only."""
    message_id = h.enqueue("q")
    consumer = h.open("q")
    for number in range(3):
        error = f"error {number}"
        nack = Nack(0, [NackRequest(queue="q", message_id=message_id, error=error)])
        h.turn(FrameTaken(consumer), nack)
        h.frames, ((_, _, (message,)),) = [], h.frames[-1:]
        assert past(message.metadata.failures)[-1] == (FAILURE_CAUSE_NACK, error)
        assert message.metadata.attempt_count == number + 1


def test_a_nearly_full_disk_gets_no_texts(h: Harness) -> None:
    h.create("strict", max_attempts=3)
    message_id = h.enqueue("strict")
    fail(h, "x" * 1000, "strict")
    h.disk_full = DiskFull("no room")
    fail(h, "y" * 1000, "strict")
    (row,) = (value for _, value in h.storage.scan(Column.RETRIES, b"", b"\xff" * 13))
    assert len(row) < 100
    retry = Retry.FromString(row)
    assert [it.cause for it in retry.failures] == [FAILURE_CAUSE_NACK] * 2
    assert take(h, "strict").metadata.attempt_count == 2
    assert h.nack("strict", message_id, error="z" * 1000) is None
    assert [it.cause for it in peeked(h, "strict.dlq").metadata.failures] == [
        FAILURE_CAUSE_NACK,
        FAILURE_CAUSE_NACK,
        FAILURE_CAUSE_MAX_ATTEMPTS,
    ]
    h.disk_full = None
    assert h.nack("strict.dlq", take(h, "strict.dlq").id, error="again") is None
    assert peeked(h, "strict.dlq").metadata.last_error == "again"
    check_consistent(h)


# --- Hooks ----------------------------------------------------------------------------------------


def test_redrive_is_a_normal_enqueue_again(h: Harness) -> None:
    """A fixed hook acts on dead letters, and the queue's time to live begins anew."""
    h.create("hooked", on_enqueue_script=KEY_BY_SETTING, max_attempts=1, default_ttl_ms=60_000)
    h.enqueue("hooked")
    fail(h, "no", "hooked")
    h.clock.advance(600)
    h.set("key", "fixed")
    assert h.admin(pb.RedriveRequest(dlq_queue="hooked.dlq")).redriven == 1
    message = peeked(h, "hooked")
    assert message.metadata.fairness_key == "fixed"
    check_consistent(h)
    assert message.timestamps.expires_at.ToNanoseconds() == h.clock.wall_ns + 60 * S
    h.clock.advance(61)
    h.tick()
    assert h.stats("hooked").counters.timed_out == 1


def test_a_hook_sees_what_the_message_is() -> None:
    seen: list[tuple[Any, ...]] = []

    class Hooks:
        has_on_enqueue, has_on_failure, spent_ns = False, True, 0

        def on_failure(self, *arguments: Any) -> None:
            seen.append(arguments)

    h = Harness(compile_hooks=lambda *_: Hooks())
    h.create("q")
    fields: dict[str, Any] = {"headers": {"a": "b"}, "throttle_keys": ["mail", "sms"]}
    message_id = h.enqueue("q", b"four", fairness_key="acme", **fields)
    fail(h, "no")
    take(h)
    h.clock.advance(30)
    h.tick()
    first, second = seen
    rest = (4, "acme", ("mail", "sms"))
    assert dict(first[0]) == {"a": "b"}
    assert first[1:5] == (message_id, 1, "no", "nack")
    assert second[1:5] == (message_id, 2, "lease expired", "expired")
    assert first[6:] == second[6:] == rest


class SlowHooks:
    """Hooks that take 10 ms a call."""

    has_on_enqueue = has_on_failure = True
    spent_ns = 0
    calls = 0

    def _call(self) -> None:
        self.spent_ns += 10_000_000
        self.calls += 1

    def on_enqueue(self, *_: Any) -> None:
        self._call()

    def on_failure(self, *_: Any) -> None:
        self._call()


@pytest.mark.parametrize("what", ["enqueue", "nack", "expiry", "redrive"])
def test_slow_hooks_do_not_hold_a_turn_for_long(what: str) -> None:
    """Each turn stops soon after the hooks' time is used up; everything is done in the end."""
    hooks = SlowHooks()
    h = Harness(compile_hooks=lambda name, *_: hooks if name == "q" else None)
    h.create("q")
    count = 40
    enqueues = Enqueue(0, h.drafts(*[EnqueueRequest(queue="q")] * count))
    if what == "enqueue":
        h.turn(enqueues)
    elif what == "redrive":
        h.enqueue_many("q.dlq", count)
        hooks.calls = 0
        h.turn(Admin(0, pb.RedriveRequest(dlq_queue="q.dlq")))
    else:
        h.run(enqueues)
        messages = h.receive("q", count)
        hooks.calls = 0
        if what == "nack":
            items = [NackRequest(queue="q", message_id=message.id) for message in messages]
            h.turn(Nack(0, items))
        else:
            h.clock.advance(30)
            h.turn()
    allowed = HOOK_NS // 10_000_000 + 1
    turns, before = 1, hooks.calls
    assert before <= allowed
    while h.last.more:
        h.turn()
        assert hooks.calls - before <= allowed
        before = hooks.calls
        turns += 1
    assert hooks.calls == count
    assert turns >= count // allowed
    assert h.broker.state.queues["q"].total == count
    check_consistent(h)
