# SPDX-License-Identifier: AGPL-3.0-only
"""What an on_failure script is given, and what becomes of what it returns."""

import pytest

from fila_server.errors import InvalidScript
from fila_server.hooks.decision import FailureDecision
from fila_server.hooks.hook import QueueHooks
from fila_server.limits import MAX_RETRY_DELAY_MS


def hooks(script: str) -> QueueHooks:
    return QueueHooks("orders", on_failure_script=script)


def decide(queue: QueueHooks, error: str = "boom", attempts: int = 1) -> FailureDecision | None:
    return queue.on_failure(
        {"tenant": "acme"}, "id-1", attempts, error, "nack", 0, 12, "acme", ("eu", "smtp")
    )


def body(text: str) -> QueueHooks:
    return hooks(f"function on_failure(msg, err, attempts) {text} end")


def test_the_message_and_the_arguments_say_the_same() -> None:
    queue = body(
        """assert(msg.headers.tenant == "acme" and msg.id == "id-1" and msg.queue == "orders")
           assert(msg.attempts == 4 and attempts == 4 and msg.error == "boom" and err == "boom")
           assert(msg.reason == "nack" and msg.payload_size == 12 and msg.fairness_key == "acme")
           assert(#msg.throttle_keys == 2 and table.concat(msg.throttle_keys, " ") == "eu smtp")
           return { action = "dlq" }"""
    )
    assert decide(queue, attempts=4) == ("dlq", 0)
    assert queue.stats().last_error == ""


def test_an_expired_lease_is_told_from_a_nack() -> None:
    queue = body("return { action = msg.reason == 'expired' and 'dlq' or 'retry' }")
    assert queue.on_failure({}, "id", 1, "lease expired", "expired", 0, 0, "k", ()) == ("dlq", 0)
    assert queue.on_failure({}, "id", 1, "boom", "nack", 0, 0, "k", ()) == ("retry", 0)


@pytest.mark.parametrize(
    ("lua", "delay_ms"),
    [("nil", 0), ("1500", 1500), ("0", 0), ("-1", 0), ("1.5", 2), ("0/0", 0),
     ("1e300", MAX_RETRY_DELAY_MS), ("1/0", MAX_RETRY_DELAY_MS), ("math.mininteger", 0),
     ("'250'", 250)],
)  # fmt: skip
def test_delays_are_rounded_and_brought_into_range(lua: str, delay_ms: int) -> None:
    queue = body(f"return {{ action = 'retry', delay_ms = {lua} }}")
    assert decide(queue) == ("retry", delay_ms)


def test_nothing_returned_leaves_it_to_the_queue() -> None:
    queue = body("return nil")
    assert decide(queue) is None
    assert queue.stats() == (1, 0, 0, False, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("return {}", 'action must be "retry" or "dlq"'),
        ("return { action = 'drop' }", 'action must be "retry" or "dlq"'),
        ("return { action = 'retry', delay_ms = 'soon' }", "delay_ms must be a number"),
        ("return 'retry'", "on_failure must return a table, got string"),
        ("return setmetatable({ action = 'dlq' }, {})", "without metatable"),
        ("msg.headers.a = 'b'", "msg.headers is read-only"),
        ("error('lost')", "line 1: lost"),
    ],
)
def test_a_failure_leaves_it_to_the_queue_and_is_counted(text: str, said: str) -> None:
    queue = body(text)
    assert decide(queue) is None
    calls, failures, _, _, last_error = queue.stats()
    assert (calls, failures) == (0, 1)
    assert said in last_error


def test_a_long_nack_text_is_cut() -> None:
    queue = body("return { action = 'retry', delay_ms = #err }")
    assert decide(queue, error="é" * 10_000) == ("retry", 4096)


def test_a_nack_text_that_is_no_text_does_no_harm() -> None:
    queue = body("return { action = 'retry', delay_ms = #err }")
    assert decide(queue, error="a\ud800b\0c") == ("retry", 5)


def test_a_script_without_the_function_is_refused() -> None:
    with pytest.raises(InvalidScript, match="no function on_failure is defined"):
        hooks("function on_enqueue() end")


def test_the_policy_for_enqueues_does_not_concern_failures() -> None:
    queue = QueueHooks(
        "orders", on_failure_script="function on_failure() error('x') end", on_hook_error="reject"
    )
    assert decide(queue) is None


def test_one_text_for_both_hooks_is_one_state() -> None:
    script = """
      local seen = 0
      function on_enqueue() seen = seen + 1 end
      function on_failure() return { action = "retry", delay_ms = seen } end"""
    queue = QueueHooks("orders", on_enqueue_script=script, on_failure_script=script)
    queue.on_enqueue({}, 0, 0)
    queue.on_enqueue({}, 0, 0)
    assert decide(queue) == ("retry", 2)


def test_two_texts_are_two_states() -> None:
    queue = QueueHooks(
        "orders",
        on_enqueue_script="seen = 0 function on_enqueue() seen = seen + 1 end",
        on_failure_script="function on_failure() return seen and { action = 'dlq' } end",
    )
    queue.on_enqueue({}, 0, 0)
    assert decide(queue) is None
    assert queue.stats().failures == 0


@pytest.mark.parametrize("keys", [(), ("a",), ("", "\0", "é" * 128), tuple("abcdefghijklmnop")])
def test_throttle_keys_arrive_as_they_are(keys: tuple[str, ...]) -> None:
    queue = body(
        """local out = ""
           for _, key in ipairs(msg.throttle_keys) do out = out .. #key .. ":" .. key end
           error(out)"""
    )
    assert queue.on_failure({}, "id", 1, "", "nack", 0, 0, "k", keys) is None
    said = "".join(f"{len(key.encode())}:{key}" for key in keys)
    assert queue.stats().last_error == f"line 3: {said}"[:200]


def test_as_many_throttle_keys_as_the_limits_allow_at_all() -> None:
    queue = body("return { action = 'retry', delay_ms = #msg.throttle_keys }")
    keys = tuple(f"{number:04}" * 1024 for number in range(256))
    for _ in range(3):
        decision = queue.on_failure({"a": "b"}, "id", 1, "", "nack", 0, 0, "k" * 4096, keys)
        assert decision == ("retry", 256), queue.stats().last_error
