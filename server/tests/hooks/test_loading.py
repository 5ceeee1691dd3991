# SPDX-License-Identifier: AGPL-3.0-only
"""Scripts that cannot be loaded at a start, and queues that ask for more than the broker gives."""

import logging
from collections.abc import Callable

import pytest

from fila.v1.admin_pb2 import HOOK_ERROR_POLICY_REJECT, QueueConfig
from fila_server.config import LimitsConfig, LuaConfig
from fila_server.errors import HookFailed, InvalidArgument, InvalidScript
from fila_server.hooks.hook import QueueHooks
from fila_server.limits import MAX_SCRIPT_BYTES
from fila_server.runtime.hooks import compile_hooks

SECOND_NS = 1_000_000_000
NEEDS_MODE = """
  local modes = { a = "first" }
  local key = modes[fila.get("mode")] .. ""
  function on_enqueue(msg) return { fairness_key = key } end"""
FIRST = ("first", 1, (), 1)


def at_start(**settings: object) -> QueueHooks:
    """What a start makes of a queue whose script reads a setting that has changed."""
    config = {"mode": "secret-mode"}
    return QueueHooks("q", on_enqueue_script=NEEDS_MODE, config=config, strict=False, **settings)  # type: ignore[arg-type]


def compiled(config: QueueConfig, *, strict: bool, lua: LuaConfig | None = None) -> QueueHooks:
    hooks = compile_hooks(lua or LuaConfig())("q", config, {}, strict)
    assert hooks is not None
    return hooks


def test_messages_go_under_the_defaults_and_stats_say_why() -> None:
    hooks = at_start()
    assert hooks.has_on_enqueue
    assert hooks.stats() == (0, 0, 0, False, hooks.stats().last_error)
    assert "line 3" in hooks.stats().last_error
    assert hooks.on_enqueue({}, 0, 0) is None
    assert hooks.stats().failures == 1


def test_messages_are_refused_where_the_queue_says_so() -> None:
    hooks = at_start(on_hook_error="reject")
    with pytest.raises(HookFailed, match='on_enqueue of queue "q" failed: line 3: '):
        hooks.on_enqueue({}, 0, 0)


def test_the_log_names_the_queue_once_and_no_value(
    caplog: pytest.LogCaptureFixture, logged: Callable[[], list[logging.LogRecord]]
) -> None:
    hooks = at_start(breaker_threshold=100)
    for _ in range(5):
        hooks.on_enqueue({}, 0, 0)
    (record,) = logged()
    assert record.levelno == logging.ERROR
    assert 'on_enqueue of queue "q" cannot be loaded (line 3)' in record.getMessage()
    assert "secret-mode" not in caplog.text


def test_it_is_loaded_as_soon_as_it_can_be() -> None:
    hooks = at_start()
    assert hooks.on_enqueue({}, 0, 0) is None
    hooks.set_config("mode", "a")
    assert hooks.on_enqueue({}, 0, 0) == FIRST
    assert hooks.on_enqueue({}, 0, 0) == FIRST
    assert hooks.stats()[:3] == (2, 1, 0)


def test_it_rests_like_any_hook_that_fails() -> None:
    hooks = at_start()
    for _ in range(4):
        assert hooks.on_enqueue({}, 0, 0) is None
    assert hooks.stats()[:4] == (0, 3, 1, True)
    hooks.set_config("mode", "a")
    assert hooks.on_enqueue({}, 0, 9 * SECOND_NS) is None
    assert hooks.on_enqueue({}, 0, 10 * SECOND_NS) == FIRST


def test_the_other_hook_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    hooks = QueueHooks(
        "q",
        on_enqueue_script="function on_enqueue() return { fairness_key = 'fine' } end",
        on_failure_script="error('at load')",
        strict=False,
    )
    assert hooks.on_enqueue({}, 0, 0) == ("fine", 1, (), 1)
    assert hooks.on_failure({}, "id", 1, "boom", "nack", 0, 0, "k", ()) is None
    assert hooks.stats() == (1, 1, 0, False, "line 1: at load")
    assert "on_failure" in caplog.text and "on_enqueue" not in caplog.text


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("if fila.get('on') then function on_enqueue() end end", "no function on_enqueue"),
        ("on_enqueue = 1", "on_enqueue is a number, not a function"),
        ("this is not Lua", "syntax error"),
        ("while true do end", "time limit exceeded"),
        (f"--{'x' * MAX_SCRIPT_BYTES}\nfunction on_enqueue() end", "longer than 32768 bytes"),
    ],
)
def test_whatever_keeps_a_script_from_loading(script: str, why: str) -> None:
    config = QueueConfig(on_enqueue_script=script)
    with pytest.raises(InvalidScript, match=why):
        compiled(config, strict=True)
    config.on_hook_error = HOOK_ERROR_POLICY_REJECT
    hooks = compiled(config, strict=False)
    for _ in range(2):
        with pytest.raises(HookFailed, match=why):
            hooks.on_enqueue({}, 0, 0)


def test_a_queue_cannot_have_more_time_than_the_broker_gives() -> None:
    """One enqueue could hold the only thread for ten seconds."""
    endless = "function on_enqueue() while true do end end"
    config = QueueConfig(on_enqueue_script=endless, hook_timeout_ms=10_000)
    said = r"hook_timeout_ms 10000 is above 50, which this broker's lua.max_timeout_ms allows"
    with pytest.raises(InvalidArgument, match=said):
        compiled(config, strict=True)
    with pytest.raises(InvalidArgument, match=said):
        compile_hooks(LuaConfig())("q", QueueConfig(hook_timeout_ms=10_000), {}, True)
    compiled(config, strict=True, lua=LuaConfig(max_timeout_ms=10_000))


def test_a_stored_time_is_brought_down_at_a_start(caplog: pytest.LogCaptureFixture) -> None:
    config = QueueConfig(
        on_enqueue_script="function on_enqueue() while true do end end", hook_timeout_ms=10_000
    )
    hooks = compiled(config, strict=False, lua=LuaConfig(max_timeout_ms=10))
    assert 'hooks of queue "q" have 10 ms, as lua.max_timeout_ms says, not 10000' in caplog.text
    assert hooks.on_enqueue({}, 0, 0) is None
    assert hooks.stats().last_error == "time limit exceeded"
    assert hooks.spent_ns < 9_000_000_000


@pytest.mark.parametrize("memory_bytes", [1, 65535, (64 << 20) + 1])
def test_memory_that_makes_no_sense(memory_bytes: int) -> None:
    script = "function on_enqueue() return { fairness_key = 'fine' } end"
    config = QueueConfig(on_enqueue_script=script, hook_memory_limit_bytes=memory_bytes)
    with pytest.raises(InvalidArgument, match=f"hook_memory_limit_bytes {memory_bytes} is not"):
        compiled(config, strict=True)
    assert compiled(config, strict=False).on_enqueue({}, 0, 0) == ("fine", 1, (), 1)


def test_keys_that_a_hook_chooses_have_the_bounds_of_those_that_clients_choose() -> None:
    limits = LimitsConfig(max_fairness_key_bytes=4, max_throttle_keys=1)
    script = """function on_enqueue(msg)
      return { fairness_key = msg.headers.key, throttle_keys = { "a", msg.headers.more } } end"""
    config = QueueConfig(on_enqueue_script=script, on_hook_error=HOOK_ERROR_POLICY_REJECT)
    hooks = compile_hooks(LuaConfig(), limits)("q", config, {}, True)
    assert hooks is not None
    assert hooks.on_enqueue({"key": "1234"}, 0, 0) == ("1234", 1, ("a",), 1)
    with pytest.raises(HookFailed, match="must have 1 to 4 bytes, got 5"):
        hooks.on_enqueue({"key": "12345"}, 0, 0)
    with pytest.raises(HookFailed, match="more than 1 throttle keys"):
        hooks.on_enqueue({"key": "1", "more": "b"}, 0, 0)
