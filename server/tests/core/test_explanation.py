# SPDX-License-Identifier: AGPL-3.0-only
"""Explain names the reason that decides, and its numbers come true."""

from __future__ import annotations

from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila_server.errors import InvalidArgument, MessageNotFound, QueueNotFound
from server.tests.core.harness import Harness, S

QUEUE = "work"


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create(QUEUE)
    return harness


def explain(h: Harness, key: str = "", message: str = "") -> pb.ExplainResponse:
    request = pb.ExplainRequest(queue=QUEUE, fairness_key=key, message_id=message)
    return h.admin(request)  # type: ignore[no-any-return]


def kinds(response: pb.ExplainResponse) -> list[str]:
    return [pb.WaitKind.Name(reason.kind).removeprefix("WAIT_KIND_") for reason in response.reasons]


def limit(h: Harness, key: str, value: str) -> None:
    h.admin(pb.SetConfigRequest(key=key, value=value))


def wall_s(h: Harness, timestamp: Any) -> float:
    return float(timestamp.ToNanoseconds() - h.clock.wall_ns) / S


def test_nobody_consumes(h: Harness) -> None:
    message = h.enqueue(QUEUE, fairness_key="acme")
    found = explain(h, message=message)
    assert kinds(found) == ["NO_CREDIT"]
    assert found.summary == f'message {message} waits: nobody consumes queue "work"'
    assert (found.fairness_key, found.pending_count, found.state) == ("acme", 1, 1)
    assert not found.HasField("estimated_at")


def test_every_consumer_is_busy(h: Harness) -> None:
    h.open(QUEUE, credit=1)
    h.enqueue(QUEUE, fairness_key="acme")
    h.enqueue(QUEUE, fairness_key="acme")
    found = explain(h, key="acme")
    assert kinds(found) == ["NO_CREDIT"]
    assert found.reasons[0].count == 1
    assert "as many messages in flight as it asked for" in found.summary


def test_a_wait_that_is_nearly_over_is_not_written_as_zero(h: Harness) -> None:
    limit(h, "throttle.stripe", "0.5,1")
    for _ in range(2):
        h.enqueue(QUEUE, fairness_key="acme", throttle_keys=["stripe"])
    h.open(QUEUE, credit=1)
    h.take()
    h.clock.advance(1.98)
    found = explain(h, key="acme")
    assert "is used up until a moment from now" in found.summary
    assert "0.0 s" not in found.summary


def test_throttled_until(h: Harness) -> None:
    limit(h, "throttle.stripe", "0.5,1")
    for _ in range(4):
        h.enqueue(QUEUE, fairness_key="acme", throttle_keys=["stripe"])
    h.open(QUEUE)
    h.take()
    found = explain(h, key="acme")
    assert kinds(found) == ["THROTTLED"]
    reason = found.reasons[0]
    assert (reason.throttle_key, reason.limit) == ("stripe", 1)
    assert wall_s(h, reason.until) == pytest.approx(2, abs=0.001)
    assert wall_s(h, found.estimated_at) == pytest.approx(2, abs=0.001)
    assert "2.0 s from now" in found.summary
    # And so it happens.
    h.clock.advance(2.001)
    h.tick()
    assert len(h.take()) == 1


def test_the_place_in_a_throttled_line(h: Harness) -> None:
    limit(h, "throttle.stripe", "1,1")
    for tenant in ("a", "b", "c"):
        for _ in range(3):
            last = h.enqueue(QUEUE, fairness_key=tenant, throttle_keys=["stripe"])
    h.open(QUEUE)
    h.take()
    found = explain(h, message=last)
    waited = 0
    while True:
        h.clock.advance(1)
        h.tick()
        waited += 1
        if last in [message.id for message in h.take()]:
            break
    assert found.ahead == waited - 1
    assert kinds(found) == ["THROTTLED", "TURN"]


def test_at_its_concurrency_limit(h: Harness) -> None:
    limit(h, "concurrency:gpu:limit", "1")
    h.enqueue(QUEUE, fairness_key="acme", throttle_keys=["gpu"])
    h.enqueue(QUEUE, fairness_key="acme", throttle_keys=["gpu"])
    h.open(QUEUE)
    found = explain(h, key="acme")
    assert kinds(found) == ["CONCURRENCY"]
    assert (found.reasons[0].count, found.reasons[0].limit) == (1, 1)
    assert not found.HasField("estimated_at")
    assert '1 of 1 message with throttle key "gpu" is leased' in found.summary


def test_backpressure(h: Harness) -> None:
    h.enqueue(QUEUE, fairness_key="acme", throttle_keys=["llm"])
    h.enqueue(QUEUE, fairness_key="acme", throttle_keys=["llm"])
    h.open(QUEUE, credit=1)
    (message,) = h.take()
    h.nack(QUEUE, message.id, retry_after_ms=9000, throttle_key="llm")
    found = explain(h, key="acme")
    assert kinds(found) == ["BACKPRESSURE"]
    assert wall_s(h, found.estimated_at) == pytest.approx(9)


def test_paused_queue_and_paused_key(h: Harness) -> None:
    h.enqueue(QUEUE, fairness_key="acme")
    h.admin(pb.PauseRequest(queue=QUEUE))
    h.admin(pb.PauseRequest(queue=QUEUE, fairness_key="acme"))
    h.open(QUEUE)
    assert kinds(explain(h, key="acme")) == ["PAUSED", "PAUSED"]


def test_delayed_message_and_key(h: Harness) -> None:
    message = h.enqueue(QUEUE, fairness_key="acme", delay_ms=60_000)
    for found in (explain(h, message=message), explain(h, key="acme")):
        assert kinds(found) == ["DELAYED"]
        assert wall_s(h, found.estimated_at) == pytest.approx(60)


def test_leased_message_does_not_wait(h: Harness) -> None:
    message = h.enqueue(QUEUE)
    h.receive(QUEUE, 1, visibility_ms=5000)
    found = explain(h, message=message)
    assert kinds(found) == ["LEASED"]
    assert "does not wait" in found.summary


def test_nothing_waits(h: Harness) -> None:
    assert explain(h, key="nobody").summary == 'nothing of key "nobody" waits in queue "work"'


@pytest.mark.parametrize("weights", [{"a": 1, "b": 1}, {"a": 3, "b": 1, "c": 5}])
@pytest.mark.parametrize("delivered", [0, 1, 7])
def test_deliveries_ahead_come_true(h: Harness, weights: dict[str, int], delivered: int) -> None:
    h.admin(pb.PauseRequest(queue=QUEUE))
    last = {}
    for key, weight in weights.items():
        for _ in range(20):
            last[key] = h.enqueue(QUEUE, fairness_key=key, weight=weight)
    h.admin(pb.ResumeRequest(queue=QUEUE))
    if delivered:
        h.receive(QUEUE, delivered)
    expected = {key: explain(h, message=message).ahead for key, message in last.items()}
    order = [message.id for message in h.receive(QUEUE, 1000)]
    for key, message in last.items():
        assert abs(order.index(message) - expected[key]) <= max(weights.values())


def test_an_estimate_follows_the_pace_of_deliveries(h: Harness) -> None:
    for _ in range(1000):
        message = h.enqueue(QUEUE, fairness_key="acme")
    for _ in range(50):  # ten a tenth of a second
        for taken in h.receive(QUEUE, 10):
            h.ack(QUEUE, taken.id)
        h.clock.advance(0.1)
    h.open(QUEUE, credit=1)
    found = explain(h, message=message)
    assert found.ahead == 498
    assert not found.HasField("estimated_at")  # no credit, so nobody can know
    h.create("second")
    other = pb.ExplainRequest(queue=QUEUE, fairness_key="acme")
    assert h.admin(other).reasons[0].kind == pb.WAIT_KIND_NO_CREDIT


def test_a_bypassed_hook_is_named() -> None:
    class Failing:
        has_on_enqueue, has_on_failure = True, False
        spent_ns = 0

        def on_enqueue(self, *_: Any) -> None:
            return None

        def stats(self) -> Any:
            return pb.HookStats(circuit_open=True)

    h = Harness(compile_hooks=lambda *_: Failing())
    h.create(QUEUE)
    h.enqueue(QUEUE, fairness_key="acme")
    found = explain(h, key="default")
    assert kinds(found) == ["NO_CREDIT", "HOOK_BYPASSED"]


def test_what_does_not_exist_is_named(h: Harness) -> None:
    with pytest.raises(MessageNotFound, match="nope"):
        explain(h, message="nope")
    with pytest.raises(InvalidArgument, match="fairness_key or a message_id"):
        explain(h)
    with pytest.raises(QueueNotFound):
        h.admin(pb.ExplainRequest(queue="nowhere", fairness_key="x"))


def test_a_hundred_thousand_keys_are_not_all_looked_at(h: Harness) -> None:
    for number in range(12_000):
        h.enqueue(QUEUE, fairness_key=f"k{number}")
    message = h.enqueue(QUEUE, fairness_key="last")
    assert explain(h, message=message).ahead == pytest.approx(12_000, rel=0.01)


def test_limits_that_hold_a_part_of_a_key_back_are_told_too(h: Harness) -> None:
    """Its next delivery is free, and most of its messages are not."""
    h.set("throttle:mail:rate", "0.001")
    h.set("concurrency:warehouse:limit", "1")
    for limit in ("mail", "warehouse"):
        h.enqueue_many(QUEUE, 4, ["a"], throttle_keys=[limit])
    h.enqueue_many(QUEUE, 2, ["a"])
    assert len(h.receive(QUEUE, 3)) == 3
    found = h.admin(pb.ExplainRequest(queue=QUEUE, fairness_key="a"))
    rows = {row.throttle_key: row for row in found.reasons if row.throttle_key}
    assert rows["mail"].kind == pb.WAIT_KIND_THROTTLED
    assert rows["mail"].detail.startswith('for 3 others: throttle key "mail" (0.001 per second)')
    assert rows["warehouse"].detail == (
        'for 3 others: 1 of 1 message with throttle key "warehouse" is leased'
    )
    assert "mail" not in found.summary


def test_a_delay_is_told_as_long_as_it_lasts_whatever_the_wall_clock_says() -> None:
    h = Harness()
    h.create("q")
    delayed = h.enqueue("q", fairness_key="a", delay_ms=600_000)
    for step_s in (3600, -7200):
        h.clock.jump(step_s)
        for question in ({"message_id": delayed}, {"fairness_key": "a"}):
            answer = h.admin(pb.ExplainRequest(queue="q", **question))
            assert "delayed until 10 min from now" in answer.summary
            until_ns = answer.reasons[0].until.ToNanoseconds()
            assert until_ns - h.clock.wall_ns == 600 * 1_000_000_000
