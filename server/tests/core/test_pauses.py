# SPDX-License-Identifier: AGPL-3.0-only
"""Pausing and resuming: a queue, one of its fairness keys, or a throttle key everywhere."""

from dataclasses import replace

import pytest

from fila.v1 import admin_pb2 as pb
from fila_server.errors import InvalidArgument, Overloaded
from server.tests.core.harness import Harness, S, check_consistent


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create("q")
    return harness


def test_a_paused_queue_takes_messages_and_acks_but_delivers_nothing(h: Harness) -> None:
    h.open("q")
    first = h.enqueue("q")
    assert len(h.take()) == 1
    h.admin(pb.PauseRequest(queue="q"))
    second = h.enqueue("q")
    assert h.frames == [] and h.receive("q") == []
    assert h.ack("q", first) is None
    h.restart()
    assert h.stats("q").paused and h.receive("q") == []
    h.open("q")
    h.admin(pb.ResumeRequest(queue="q"))
    assert [message.id for message in h.take()] == [second]
    assert not h.stats("q").paused
    check_consistent(h)


def test_a_paused_key_leaves_the_others_alone(h: Harness) -> None:
    h.enqueue("q", fairness_key="a")
    h.admin(pb.PauseRequest(queue="q", fairness_key="a"))
    h.enqueue("q", fairness_key="a")
    free = h.enqueue("q", fairness_key="b")
    assert [message.id for message in h.receive("q", 5)] == [free]
    h.restart()
    assert h.receive("q", 5) == []
    check_consistent(h)
    h.admin(pb.ResumeRequest(queue="q", fairness_key="a"))
    assert len(h.receive("q", 5)) == 2
    with pytest.raises(InvalidArgument, match="fairness_key"):
        h.admin(pb.PauseRequest(queue="q", fairness_key="k" * 257))


def test_the_number_of_paused_keys_is_bounded() -> None:
    h = Harness()
    h.config = replace(h.config, limits=replace(h.config.limits, max_paused_keys=1))
    h.restart()
    h.create("q")
    h.admin(pb.PauseRequest(queue="q", fairness_key="a"))
    with pytest.raises(Overloaded, match="pause the queue instead"):
        h.admin(pb.PauseRequest(queue="q", fairness_key="b"))


# --- Throttle keys --------------------------------------------------------------------------------


def row(h: Harness, key: str) -> pb.PerThrottleKeyStats:
    rows: list[pb.PerThrottleKeyStats] = h.admin(pb.ListThrottlesRequest(prefix=key)).throttles
    return next(it for it in rows if it.key == key)


def test_a_throttle_key_is_held_in_all_queues_until_it_is_resumed(h: Harness) -> None:
    h.create("other")
    for queue in ("q", "other"):
        h.enqueue(queue, throttle_keys=["stripe"])
        h.open(queue)
    assert len(h.take()) == 2
    h.admin(pb.PauseRequest(throttle_key="stripe"))
    for queue in ("q", "other"):
        h.enqueue(queue, throttle_keys=["stripe"])
        h.enqueue(queue, throttle_keys=["mail"])
    assert [list(message.metadata.throttle_keys) for message in h.take()] == [["mail"], ["mail"]]
    h.clock.advance(365 * 86_400)
    h.tick()
    h.take()
    assert row(h, "stripe").paused and not row(h, "stripe").HasField("paused_until")
    h.restart()
    assert row(h, "stripe").paused
    for queue in ("q", "other"):
        h.open(queue)
    assert h.take() == []
    h.admin(pb.ResumeRequest(throttle_key="stripe"))
    assert {tuple(message.metadata.throttle_keys) for message in h.take()} == {("stripe",)}
    assert not row(h, "stripe").paused
    check_consistent(h)


def test_a_pause_of_a_throttle_key_may_have_an_end(h: Harness) -> None:
    h.enqueue("q", throttle_keys=["stripe"])
    h.admin(pb.PauseRequest(throttle_key="stripe", duration_ms=10_000))
    h.open("q")
    assert h.frames == []
    until = row(h, "stripe").paused_until.ToNanoseconds()
    assert until == h.clock.wall_ns + 10 * S
    h.clock.advance(4)
    h.restart()
    assert row(h, "stripe").paused_until.ToNanoseconds() == until
    h.open("q")
    h.clock.advance(5.9)
    h.tick()
    assert h.frames == []
    h.clock.advance(0.1)
    h.tick()
    assert len(h.take()) == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_a_pause_of_a_key_that_nobody_uses_yet_is_remembered(h: Harness, restarts: bool) -> None:
    h.admin(pb.PauseRequest(throttle_key="stripe"))
    if restarts:
        h.restart()
    h.clock.advance(3600)
    h.tick()
    h.enqueue("q", throttle_keys=["stripe"])
    assert h.receive("q") == []
    h.admin(pb.ResumeRequest(throttle_key="stripe"))
    assert len(h.receive("q")) == 1
    h.admin(pb.ResumeRequest(throttle_key="never paused"))


def test_a_pause_with_an_end_replaces_one_without_and_the_other_way_round(h: Harness) -> None:
    h.enqueue("q", throttle_keys=["stripe"])
    h.admin(pb.PauseRequest(throttle_key="stripe"))
    h.admin(pb.PauseRequest(throttle_key="stripe", duration_ms=1000))
    h.clock.advance(1)
    assert len(h.receive("q")) == 1
    h.admin(pb.PauseRequest(throttle_key="stripe", duration_ms=1000))
    h.admin(pb.PauseRequest(throttle_key="stripe"))
    h.enqueue("q", throttle_keys=["stripe"])
    h.clock.advance(60)
    assert h.receive("q") == []


def test_the_backpressure_of_one_consumer_is_capped_and_an_operator_can_lift_it(h: Harness) -> None:
    """A key with rights on its own queue only can stop a provider for all: not for a year."""
    h.create("payments")
    h.set("throttle.stripe", "100,100")
    year_ms = 365 * 86_400 * 1000
    for lift in (False, True):
        message_id = h.enqueue("q", throttle_keys=["stripe"])
        h.receive("q")
        said = h.nack("q", message_id, retry_after_ms=year_ms, throttle_key="stripe")
        assert said is None
        h.enqueue("payments", throttle_keys=["stripe"])
        assert h.receive("payments") == []
        if lift:
            h.admin(pb.ResumeRequest(throttle_key="stripe"))
        else:
            h.clock.advance(h.config.limits.max_backpressure_ms / 1000 - 1)
            assert h.receive("payments") == []
            h.clock.advance(1)
        assert len(h.receive("payments")) == 1
    assert h.stats("q").delayed == 2  # the messages themselves wait as long as was asked


def test_what_a_pause_names_is_one_thing(h: Harness) -> None:
    for request in (
        pb.PauseRequest(queue="q", throttle_key="k"),
        pb.PauseRequest(fairness_key="a", throttle_key="k"),
        pb.ResumeRequest(queue="q", throttle_key="k"),
        pb.PauseRequest(queue="q", duration_ms=5),
        pb.PauseRequest(throttle_key="k" * 300),
        pb.PauseRequest(throttle_key="k", duration_ms=1 << 60),
    ):
        with pytest.raises(InvalidArgument):
            h.admin(request)
    with pytest.raises(InvalidArgument, match="queue must not be empty"):
        h.admin(pb.PauseRequest())


def test_an_operators_pause_that_is_over_leaves_no_mark_on_backpressure(h: Harness) -> None:
    for _ in range(3):
        h.enqueue("q", throttle_keys=["mail"])
    h.admin(pb.PauseRequest(throttle_key="mail", duration_ms=5000))
    h.clock.advance(6)
    (message,) = h.receive("q")
    h.nack("q", message.id, retry_after_ms=60_000, throttle_key="mail")
    (row,) = h.admin(pb.ListThrottlesRequest()).throttles
    assert not row.paused and row.HasField("paused_until")  # a consumer asked for this one
    check_consistent(h)
    h.set("throttle.mail", "100,100")  # whoever sets a limit anew knows better
    assert len(h.receive("q")) == 1
