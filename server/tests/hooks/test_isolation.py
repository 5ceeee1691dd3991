# SPDX-License-Identifier: AGPL-3.0-only
"""What a script does to its own state, no other script can see."""

import gc

import pytest
from lupa import lua54

from fila_server.hooks.hook import QueueHooks

VANDAL = """
  string.rep, string.format, table.concat, math.floor = nil, nil, nil, nil
  string.sub = function() return "stolen" end
  shared = "stolen"
  fila.get = function() return "stolen" end
  function on_enqueue(msg)
    shared = "stolen"
    string.upper = function() return "stolen" end
    return { fairness_key = "vandal" }
  end"""
VICTIM = """
  function on_enqueue(msg)
    local text = ("abc"):sub(1, 2):upper():rep(2) .. string.format("%d", math.floor(2.5))
    return { fairness_key = text .. tostring(shared) .. fila.get("k") }
  end"""


def test_queues_do_not_see_each_other() -> None:
    before = QueueHooks("before", on_enqueue_script=VICTIM, config={"k": "v"})
    vandal = QueueHooks("vandal", on_enqueue_script=VANDAL, config={"k": "v"})
    after = QueueHooks("after", on_enqueue_script=VICTIM, config={"k": "v"})
    for _ in range(3):
        assert vandal.on_enqueue({}, 0, 0) == ("vandal", 1, (), 1)
        for victim in (before, after):
            assert victim.on_enqueue({}, 0, 0) == ("ABAB2nilv", 1, (), 1)


def test_the_same_script_on_two_queues_has_two_states() -> None:
    script = """
      local seen = 0
      function on_enqueue(msg)
        seen = seen + 1
        return { fairness_key = msg.queue .. seen }
      end"""
    one, two = (QueueHooks(name, on_enqueue_script=script) for name in ("one", "two"))
    one.on_enqueue({}, 0, 0)
    assert one.on_enqueue({}, 0, 0) == ("one2", 1, (), 1)
    assert two.on_enqueue({}, 0, 0) == ("two1", 1, (), 1)


def test_config_of_one_queue_is_not_the_others() -> None:
    script = "function on_enqueue() return { fairness_key = fila.get('k') } end"
    one, two = (QueueHooks(name, on_enqueue_script=script) for name in ("one", "two"))
    one.set_config("k", "v")
    assert one.on_enqueue({}, 0, 0) == ("v", 1, (), 1)
    assert two.on_enqueue({}, 0, 0) == ("default", 1, (), 1)


def test_nothing_but_bytes_and_numbers_crosses_the_border(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Python object inside Lua is a way to the host; a Lua object outside runs without limits."""
    queue = QueueHooks(
        "orders",
        on_enqueue_script="""
          function on_enqueue(msg)
            for _, place in ipairs { _G, string, table, math, utf8, fila, msg } do
              for _, v in pairs(place) do
                local kind = type(v)
                if kind == "userdata" or kind == "thread" then error("found " .. tostring(v)) end
              end
            end
            return { fairness_key = function() end }
          end""",
        on_failure_script="""
          function on_failure(msg) return { action = "retry", delay_ms = {} } end""",
    )
    gc.collect()
    functions = type(lua54.LuaRuntime().eval("function() end"))
    tables = type(lua54.LuaRuntime().eval("{}"))

    def count() -> int:
        gc.collect()
        return sum(isinstance(o, functions | tables) for o in gc.get_objects())

    queue.on_enqueue({"a": "b"}, 0, 0)
    queue.on_failure({"a": "b"}, "id", 1, "x", "nack", 0, 0, "k", ("a",))
    before = count()
    for _ in range(10):
        queue.on_enqueue({"a": "b"}, 0, 0)
        queue.on_failure({"a": "b"}, "id", 1, "x", "nack", 0, 0, "k", ("a",))
    assert count() == before
    assert "fairness_key must be a string, got function" not in queue.stats().last_error
    assert "delay_ms must be a number" in queue.stats().last_error
