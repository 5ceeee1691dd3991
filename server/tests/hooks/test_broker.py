# SPDX-License-Identifier: AGPL-3.0-only
"""Hooks in a real broker: what an operator changes, they see; what they choose, is enforced."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fila import Client, HookFailedError, InvalidArgumentError
from server.tests.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker"))
    process.start()
    yield process
    process.close()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    # A loaded machine may take any time for a call.
    with Client(broker.address, timeout=60) as client:
        yield client


def keys(client: Client, queue: str, count: int) -> list[str]:
    """Take messages for good; return their fairness keys."""
    messages = client.receive(queue, count, wait_ms=30_000)
    assert not any(client.ack_many(messages))
    return [message.fairness_key for message in messages]


def test_a_running_hook_sees_a_setting_as_soon_as_it_is_set(client: Client) -> None:
    script = """
      function on_enqueue(msg)
        return { fairness_key = "plan-" .. (fila.get("plan:" .. msg.headers.tenant) or "none") }
      end"""
    client.create_queue("plans", on_enqueue_script=script)
    for change in ("none", "gold", "silver", "none"):
        if change != "none":
            client.set_config("plan:acme", change)
        elif "plan:acme" in client.list_config("plan:"):
            client.delete_config("plan:acme")
        client.enqueue("plans", {"tenant": "acme"}, b"x")
        assert keys(client, "plans", 1) == [f"plan-{change}"]


def test_throttle_keys_that_a_hook_chooses_are_enforced_at_their_rate(client: Client) -> None:
    script = "function on_enqueue(msg) return { throttle_keys = { 'mail:' .. msg.headers.to } } end"
    client.create_queue("mail", on_enqueue_script=script)
    client.set_config("throttle.mail:slow", "0.0001,2")
    for _ in range(5):
        client.enqueue("mail", {"to": "slow"}, b"slow")
        client.enqueue("mail", {"to": "free"}, b"free")
    taken = [message.payload for message in client.receive("mail", 10, wait_ms=30_000)]
    taken += [message.payload for message in client.receive("mail", 10, wait_ms=0)]
    assert sorted(taken) == [b"free"] * 5 + [b"slow"] * 2
    # The burst is empty, and the next token hours away; another rate lets the others through.
    client.set_config("throttle.mail:slow", "1000,2")
    taken = []
    while len(taken) < 3:
        taken += [message.payload for message in client.receive("mail", 10, wait_ms=30_000)]
    assert taken == [b"slow"] * 3


def test_no_queue_may_hold_everybody_up(client: Client) -> None:
    with pytest.raises(InvalidArgumentError, match=r"hook_timeout_ms 1000 is .* 50"):
        client.create_queue("slow", hook_timeout_ms=1000)
    client.create_queue("slow", hook_timeout_ms=50)
    with pytest.raises(InvalidArgumentError, match=r"hook_timeout_ms 51 is .* 50"):
        client.update_queue("slow", hook_timeout_ms=51)


def test_a_script_that_no_longer_loads_keeps_nobody_from_starting(tmp_path: Path) -> None:
    script = """
      local weights = { a = 1 }
      local weight = weights[fila.get("mode") or "a"] + 0
      function on_enqueue(msg) return { fairness_key = "hook", weight = weight } end"""
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        with Client(broker.address, timeout=60) as client:
            client.create_queue("other")
            client.create_queue("lenient", on_enqueue_script=script)
            client.create_queue("strict", on_enqueue_script=script, on_hook_error="reject")
            client.set_config("mode", "b")
            client.enqueue("lenient", None, b"before")
        broker.terminate()
        broker.start()
        with Client(broker.address, timeout=60) as client:
            client.enqueue("other", None, b"x")
            client.enqueue("lenient", None, b"after")
            assert sorted(keys(client, "lenient", 2)) == ["default", "hook"]
            with pytest.raises(HookFailedError, match="line 3"):
                client.enqueue("strict", None, b"x")
            hooks = client.stats("strict").hooks
            assert hooks is not None and "line 3" in hooks.last_error
        log = broker.log()
        for queue in ("lenient", "strict"):
            assert log.count(f'on_enqueue of queue \\"{queue}\\" cannot be loaded (line 3)') == 1
    finally:
        broker.close()
