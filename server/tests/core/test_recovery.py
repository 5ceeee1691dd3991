# SPDX-License-Identifier: AGPL-3.0-only
"""What a restart brings back, whatever the wall clock did meanwhile."""

from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila.v1.service_pb2 import NackRequest
from fila_server.core.broker import Broker
from fila_server.core.commands import Nack
from fila_server.errors import LeaseExpired
from fila_server.storage.api import Column
from server.tests.core.harness import Harness, check_consistent

DAY_S = 86_400


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create("q")
    return harness


def restart_after(h: Harness, seconds: float, wall_step: float = 0) -> None:
    """The process is down for a while, and the machine's monotonic clock starts anew."""
    h.clock.advance(seconds)
    h.clock.jump(wall_step)
    h.clock.mono_ns = 10**9
    h.restart()


def lease(h: Harness, **fields: Any) -> tuple[str, str]:
    message_id = h.enqueue("q", **fields)
    (message,) = h.receive("q")
    return message_id, message.metadata.lease_token


def test_an_empty_store_starts_empty() -> None:
    h = Harness()
    h.restart()
    assert h.admin(pb.ListQueuesRequest()).queues == []


def test_recovery_tells_what_it_found(h: Harness) -> None:
    for _ in range(5):
        h.enqueue("q")
    h.receive("q", 2)
    broker = Broker(h.config, h.storage, h.compile_hooks, nonce=1)
    found, writes = broker.recover(h.clock.now())
    assert found == (2, 5, 2)
    assert writes == []


def test_order_and_content_come_back(h: Harness) -> None:
    made = [
        h.enqueue("q", bytes([n]), fairness_key="ab"[n % 2], headers={"n": str(n)})
        for n in range(10)
    ]
    restart_after(h, 5)
    messages = h.receive("q", 10)
    for key in "ab":
        mine = [message for message in messages if message.metadata.fairness_key == key]
        assert [message.id for message in mine] == made["ab".index(key) :: 2]
    assert all(dict(message.headers) == {"n": str(message.payload[0])} for message in messages)


def test_a_lease_goes_on_where_it_was(h: Harness) -> None:
    message_id, token = lease(h)
    restart_after(h, 10)
    h.clock.advance(19.9)
    assert h.receive("q") == []
    h.clock.advance(0.1)
    (message,) = h.receive("q")
    assert (message.id, message.metadata.attempt_count) == (message_id, 1)
    assert isinstance(h.ack("q", message_id, token), LeaseExpired)


def test_a_lease_that_ended_meanwhile_is_reclaimed_at_once(h: Harness) -> None:
    message_id, _ = lease(h)
    restart_after(h, 31)
    (message,) = h.receive("q")
    assert (message.id, message.metadata.attempt_count) == (message_id, 1)


@pytest.mark.parametrize("step", [-3600, -DAY_S * 365 * 50])
def test_a_wall_clock_that_stepped_back_prolongs_no_lease(h: Harness, step: float) -> None:
    message_id, _ = lease(h)
    restart_after(h, 1, step)
    h.clock.advance(29.9)
    assert h.receive("q") == []
    h.clock.advance(0.1)
    assert [message.id for message in h.receive("q")] == [message_id]


@pytest.mark.parametrize("step", [60, DAY_S * 365])
def test_a_wall_clock_that_stepped_forward_ends_leases_early_and_loses_nothing(
    h: Harness, step: float
) -> None:
    message_id, token = lease(h)
    restart_after(h, 1, step)
    (message,) = h.receive("q")
    assert message.id == message_id and message.metadata.lease_token != token


def test_delayed_messages_survive(h: Harness) -> None:
    message_id = h.enqueue("q", delay_ms=60_000)
    restart_after(h, 30)
    assert h.stats("q").delayed == 1
    h.clock.advance(29.9)
    assert h.receive("q") == []
    h.clock.advance(0.1)
    assert [message.id for message in h.receive("q")] == [message_id]
    h.enqueue("q", delay_ms=1000)
    restart_after(h, 2)
    assert len(h.receive("q")) == 1


def test_a_time_to_live_goes_on(h: Harness) -> None:
    h.enqueue("q", ttl_ms=60_000)
    kept = h.enqueue("q", ttl_ms=600_000)
    restart_after(h, 30)
    assert h.stats("q").depth == 2
    h.clock.advance(30)
    h.tick()
    assert [message.id for message in h.receive("q", 5)] == [kept]
    restart_after(h, 600)
    h.clock.advance(30)
    h.tick()
    stats = h.stats("q")
    assert (stats.depth, stats.in_flight) == (0, 0)
    check_consistent(h)


def test_a_retried_message_keeps_its_place_behind_the_others(h: Harness) -> None:
    failed, _ = lease(h)
    made = [h.enqueue("q") for _ in range(3)]
    assert h.nack("q", failed, error="boom") is None
    late = h.enqueue("q")
    restart_after(h, 1)
    assert [message.id for message in h.receive("q", 9)] == [*made, failed, late]


def test_numbers_are_never_used_again(h: Harness) -> None:
    """Neither a message's nor a token's, although all rows that held them are gone."""
    seen: set[int] = set()
    for _ in range(4):
        message_id, token = lease(h)
        numbers = {int(message_id[24:], 16), int(token, 16)}
        assert min(numbers) > max(seen, default=0)
        seen |= numbers
        assert h.ack("q", message_id, token) is None
        h.restart()


def test_power_loss_brings_back_no_number_that_a_consumer_has_seen(h: Harness) -> None:
    """Leases are not synced, so the last ones may be unknown to the disk."""
    state = h.broker.state
    end = state.reserved_number
    state.next_number = end - 1000  # as after a million messages
    h.enqueue("q")
    state.next_number = end - 3
    tokens = []
    for _ in range(9):
        (message,) = h.receive("q")
        tokens.append(int(message.metadata.lease_token, 16))
        h.run(
            Nack(0, [NackRequest(queue="q", message_id=message.id, retry_after_ms=0)]), sync=False
        )
    h.restart(power=True)
    (message,) = h.receive("q")
    assert int(message.metadata.lease_token, 16) > max(tokens)


def test_leases_of_no_use_are_cleared_away(h: Harness) -> None:
    """A lease whose messages are all settled is removed with the first start that sees it."""
    lease(h)
    leases = list(h.storage.scan(Column.LEASES, b"", b"\xff" * 13))
    rows = h.storage.scan(Column.MESSAGES, b"", b"\xff" * 13)
    messages = [(Column.MESSAGES, key, None) for key, _ in rows]
    stranger = (Column.LEASES, b"\x00\x00\xff\xff" + leases[0][0][4:], leases[0][1])
    h.storage.write([*messages, stranger])
    h.restart()
    assert list(h.storage.scan(Column.LEASES, b"", b"\xff" * 13)) == []
    assert h.receive("q") == []


def test_the_highest_grant_decides_which_lease_holds(h: Harness) -> None:
    message_id, token = lease(h)
    old = list(h.storage.scan(Column.LEASES, b"", b"\xff" * 13))
    assert isinstance(h.extend("q", message_id, token, 120_000), int)
    h.storage.write([(Column.LEASES, key, value) for key, value in old])
    h.restart()
    h.clock.advance(119)
    assert h.receive("q") == []
    assert h.ack("q", message_id, token) is None


@pytest.mark.parametrize("step", [-DAY_S, 0, DAY_S])
def test_everything_at_once_comes_back(h: Harness, step: float) -> None:
    h.admin(pb.SetConfigRequest(key="weight:q:a", value="3"))
    h.admin(pb.SetConfigRequest(key="concurrency:mail:limit", value="2"))
    for n in range(30):
        h.enqueue(
            "q",
            fairness_key="abc"[n % 3],
            delay_ms=(n % 5 == 0) * 3_000_000,
            throttle_keys=["mail"] if n % 2 else [],
        )
    for message in h.receive("q", 9)[:4]:
        assert h.nack("q", message.id, error="boom") is None
    check_consistent(h)
    h.clock.jump(step)
    h.restart()
    check_consistent(h)
    stats = h.stats("q")
    assert stats.depth + stats.in_flight + stats.delayed == 30
    if step <= 0:
        assert (stats.in_flight, stats.delayed) == (5, 6)
