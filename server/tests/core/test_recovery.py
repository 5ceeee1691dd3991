# SPDX-License-Identifier: AGPL-3.0-only
"""What a restart brings back, whatever the wall clock did meanwhile."""

from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila.v1.service_pb2 import NackRequest
from fila_server.config import LuaConfig
from fila_server.core import recovery
from fila_server.core.broker import Broker
from fila_server.core.commands import Admin, Nack
from fila_server.core.wire.records import NEXT_NUMBER
from fila_server.core.wire.records_pb2 import Retry
from fila_server.errors import HookFailed, LeaseExpired
from fila_server.runtime.hooks import compile_hooks
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
    assert [write[1] for write in writes] == [NEXT_NUMBER]


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


def test_power_loss_right_after_a_start_brings_back_no_number(h: Harness) -> None:
    """The first delivery of a run syncs nothing."""
    h.create("many")
    h.enqueue_many("many", 5)
    tokens: set[str] = set()
    for _ in range(3):
        h.restart()
        (message,) = h.receive("many")
        assert message.metadata.lease_token not in tokens
        tokens.add(message.metadata.lease_token)
        h.restart(power=True)
        (message,) = h.receive("many")
        assert message.metadata.lease_token not in tokens
        tokens.add(message.metadata.lease_token)


def test_a_block_of_numbers_is_made_durable_by_itself(h: Harness) -> None:
    h.turn()
    assert not h.last.wants_sync
    h.broker.state.next_number = h.broker.state.reserved_number - 1000
    h.turn()
    assert h.last.wants_sync


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


def test_a_wall_clock_decades_behind_prolongs_nothing(h: Harness) -> None:
    """A machine without a clock of its own starts in 1970: whatever waits, waits no longer than it
    was meant to."""
    h.create("slow", retry_delay_ms=5000)
    h.set("throttle.p", "100,100")
    h.enqueue("slow", b"delayed", delay_ms=5000)
    h.enqueue("slow", b"mortal", ttl_ms=60_000, fairness_key="t")
    h.admin(pb.PauseRequest(queue="slow", fairness_key="t"))
    h.enqueue("slow", b"x", throttle_keys=["p"])
    (message,) = h.receive("slow")
    assert h.nack("slow", message.id, retry_after_ms=5000, throttle_key="p") is None
    failed = h.enqueue("slow", b"y")
    assert [message.id for message in h.receive("slow")] == [failed]
    assert h.nack("slow", failed, error="no") is None
    h.admin(pb.PauseRequest(throttle_key="other", duration_ms=5000))
    h.enqueue("slow", b"z", throttle_keys=["other"])
    restart_after(h, 1, -DAY_S * 365 * 50)
    check_consistent(h)
    assert h.stats("slow").delayed == 3
    h.clock.advance(4.9)
    assert h.receive("slow", 9) == []
    h.clock.advance(0.1)
    assert sorted(it.payload for it in h.receive("slow", 9)) == [b"delayed", b"x", b"y", b"z"]
    h.clock.advance(55)
    h.tick()
    assert h.stats("slow").counters.timed_out == 1
    assert h.broker.state.queues["slow"].pending == 0


@pytest.mark.parametrize("years", [-50, 50])
def test_a_clock_far_off_loses_nothing(h: Harness, years: int) -> None:
    ids = {h.enqueue("q"), h.enqueue("q", delay_ms=10_000), h.enqueue("q")}
    h.receive("q")
    restart_after(h, 1, years * 365 * DAY_S)
    h.clock.advance(30)
    h.tick()
    assert {message.id for message in h.receive("q", 9)} == ids


LOADS_TODAY = """
local known = { a = 1 }
local weight = known[fila.get("mode") or "a"] + 0
function on_enqueue(msg) return { fairness_key = "hook", weight = weight } end
"""


@pytest.mark.parametrize("policy", [pb.HOOK_ERROR_POLICY_UNSPECIFIED, pb.HOOK_ERROR_POLICY_REJECT])
def test_a_script_that_no_longer_loads_does_not_keep_the_broker_from_starting(policy: int) -> None:
    h = Harness(compile_hooks=compile_hooks(LuaConfig()))
    h.create("other")
    h.create("q", on_enqueue_script=LOADS_TODAY, on_hook_error=policy)
    h.enqueue("q")
    h.enqueue("other")
    h.set("mode", "b")
    h.restart()
    assert len(h.receive("other")) == 1
    if policy == pb.HOOK_ERROR_POLICY_REJECT:
        with pytest.raises(HookFailed):
            h.enqueue("q")
    else:
        h.enqueue("q")
        assert {row.key for row in h.stats("q").per_key_stats} == {"hook", "default"}
    h.set("mode", "a")
    h.clock.advance(60)
    h.enqueue("q")
    check_consistent(h)


def test_leases_are_counted_once_however_many_limits_there_are(h: Harness) -> None:
    """What recovery looks at grows with what is stored, not with limits times leases."""
    for number in range(300):
        h.set(f"throttle.c{number}", "1000,1000")
    h.set("concurrency:busy:limit", "5000")
    h.enqueue_many("q", 3000, ["a", "b"], throttle_keys=["busy", "c1"])
    h.open("q", credit=5000, batch=1000)
    h.take()
    h.restart()
    limiters = h.broker.state.throttles.limiters
    assert {name: limiter.in_flight for name, limiter in limiters.items()} == {
        "busy": 1000,
        "c1": 1000,
    }
    check_consistent(h)


def test_errors_of_dead_letters_are_not_in_memory_together(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    h.create("doomed", max_attempts=1)
    for _ in range(20):
        h.enqueue("doomed")
    items = [NackRequest(queue="doomed", message_id=it.id) for it in h.receive("doomed", 20)]
    h.run(Nack(0, items))
    alive = peak = 0

    class Watched:
        """A past that notes how long it is kept."""

        def __init__(self, value: bytes) -> None:
            nonlocal alive, peak
            self.past = Retry.FromString(value)
            alive += 1
            peak = max(peak, alive)

        FromString = classmethod(lambda cls, value: cls(value))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.past, name)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    monkeypatch.setattr(recovery, "Retry", Watched)
    h.restart()
    assert h.stats("doomed.dlq").depth == 20
    assert 1 <= peak <= 2


def test_a_crash_in_the_middle_of_a_change_of_many_rates_gives_no_free_tokens() -> None:
    """The change takes several turns; settings are stored in the first, buckets as it goes on."""
    h = Harness()
    h.create("q")
    h.set("throttle.t*", "1,4")
    for key in range(600):
        h.enqueue_many("q", 4, throttle_keys=[f"t{key}"])
    while h.receive("q", 1000):
        pass
    h.turn(Admin(0, pb.SetConfigRequest(key="throttle.t*", value="0.001,4")))
    assert h.last.more
    h.restart()
    now_ns = h.clock.mono_ns
    assert max(it.tokens(now_ns) for it in h.broker.state.throttles.limiters.values()) < 1e-6
