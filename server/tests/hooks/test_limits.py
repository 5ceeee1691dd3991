# SPDX-License-Identifier: AGPL-3.0-only
"""Time and memory are limited, the limits are the script's alone, and a state can be lost."""

import time

import pytest

from fila_server.errors import HookFailed, InvalidArgument, InvalidScript
from fila_server.hooks import sandbox as sandbox_module
from fila_server.hooks.hook import QueueHooks
from fila_server.hooks.sandbox import ON_ENQUEUE, Sandbox
from fila_server.hooks.state import RESERVE_BYTES, ScriptFailed

MIB = 1024 * 1024


def sandbox(body: str, config: dict[str, str] | None = None, **limits: int) -> Sandbox:
    script = body if "on_enqueue" in body else f"function on_enqueue(msg) {body} end"
    return Sandbox(script, name="on_enqueue", config=config or {}, **limits)


def key(box: Sandbox, headers: dict[str, str] | None = None) -> str:
    answer = box.call(ON_ENQUEUE, (0,), headers or {})
    text: bytes = answer[1]
    return text.decode()


def failure(box: Sandbox, headers: dict[str, str] | None = None) -> str:
    with pytest.raises(ScriptFailed) as failed:
        box.call(ON_ENQUEUE, (0,), headers or {})
    return failed.value.text


def used_bytes(box: Sandbox) -> int:
    assert box._state is not None
    return box._state.used(True)


@pytest.mark.parametrize("timeout_ms", [2, 20, 60])
def test_a_script_ends_at_its_time_limit(timeout_ms: int) -> None:
    # Steps are deterministic, so the clock is the limit only where it comes first: let it.
    box = sandbox("local s = ('a'):rep(20000) while true do s:upper() end", timeout_ms=timeout_ms)
    started = time.thread_time()
    assert failure(box) == "time limit exceeded"
    taken_ms = (time.thread_time() - started) * 1000
    assert timeout_ms * 0.8 < taken_ms < timeout_ms * 3 + 20


def test_a_script_within_the_limit_is_left_alone() -> None:
    assert key(sandbox("for i = 1, 100000 do end return { fairness_key = 'done' }")) == "done"


def test_one_limit_does_not_leak_into_the_next_call() -> None:
    """The hook may strike between the script's end and ours; that must not hit anybody else."""
    box = sandbox(
        "if msg.headers.loop then while true do end end return { fairness_key = 'fine' }",
        timeout_ms=1,
    )
    for i in range(400):
        assert failure(box, {"loop": "x" * (i % 7)}) == "time limit exceeded"
        assert key(box, {"a": "b"}) == "fine"


@pytest.mark.parametrize("limit_bytes", [64 * 1024, MIB, 8 * MIB])
def test_a_script_may_use_its_memory_and_no_more(limit_bytes: int) -> None:
    box = sandbox(
        """local size = tonumber(msg.headers.kib) * 1024
           local piece, t = ("x"):rep(1023), {}
           for i = 1, size // 1024 do t[i] = piece .. i end
           return { fairness_key = "fits" }""",
        memory_limit_bytes=limit_bytes,
        timeout_ms=2000,
    )
    kib = limit_bytes // 1024
    assert key(box, {"kib": str(kib * 8 // 10)}) == "fits"
    assert failure(box, {"kib": str(kib * 15 // 10 + 300)}) == "memory limit exceeded"
    assert key(box, {"kib": "1"}) == "fits"


def test_what_a_script_keeps_is_limited_and_then_lost() -> None:
    box = sandbox(
        """count = (count or 0) + 1
           kept = kept or {}
           kept[count] = ("x"):rep(100000) .. count
           return { fairness_key = tostring(count) }"""
    )
    counts = []
    for _ in range(30):
        try:
            counts.append(int(key(box)))
        except ScriptFailed as failed:
            assert "memory limit exceeded" in failed.text
            counts.append(0)
    assert max(counts) in range(8, 12)
    assert counts.count(0) == 2
    assert counts[counts.index(0) + 1] == 1


def test_every_call_starts_with_the_reserve_free() -> None:
    box = sandbox(
        """kept = kept or {}
           for i = 1, 200 do kept[#kept + 1] = ("x"):rep(50) .. #kept end"""
    )
    for _ in range(300):
        try:
            box.call(ON_ENQUEUE, (0,), {"a": "b"})
        except ScriptFailed:
            continue
        state = box._state
        if state is not None:
            free = state._runtime.get_max_memory(True) - state.used(True)
            assert free >= RESERVE_BYTES


def test_a_large_config_costs_the_script_nothing() -> None:
    config = {f"limit:tenant-{i}": f"value {i} " + "x" * 40 for i in range(10_000)}
    box = sandbox(
        """kept = kept or { ("x"):rep(200000), ("y"):rep(200000), ("z"):rep(200000) }
           return { fairness_key = fila.get("limit:tenant-" .. msg.headers.n):sub(1, 10) }""",
        config,
    )
    assert used_bytes(box) > 1.5 * MIB
    for n in (0, 5000, 9999):
        assert key(box, {"n": str(n)}) == f"value {n} xxxxxxxxx"[:10]
    for i in range(10_000):
        box.set_config(f"more:{i}", "x" * 50)
    assert key(box, {"n": "7"}) == "value 7 xx"
    for i in range(10_000):
        box.set_config(f"more:{i}", None)
        box.set_config(f"limit:tenant-{i}", "short value")
    assert key(box, {"n": "7"}) == "short valu"


def test_changing_the_config_gives_a_script_no_more_memory() -> None:
    box = sandbox(
        """fila.get("k")
           kept = kept or {}
           for i = 1, 1000 do kept[#kept + 1] = ("x"):rep(50) .. #kept end
           return { fairness_key = tostring(#kept) }""",
        timeout_ms=1000,  # with the heap full, each step may collect all of it
    )
    most = 0
    for i in range(200):
        for n in range(10):
            box.set_config(f"k{n}", f"v{i}" * 100)
            box.set_config(f"k{n}", None)
        try:
            most = max(most, int(key(box)))
        except ScriptFailed as failed:
            assert "memory limit exceeded" in failed.text
    assert 5_000 < most < 14_000


def test_config_survives_the_loss_of_the_state() -> None:
    box = sandbox(
        """if msg.headers.hoard then
             kept = {}
             for i = 1, 9 do kept[i] = ("x"):rep(120000) end
           end
           return { fairness_key = fila.get("k") or "none" }""",
        {"k": "first"},
    )
    box.set_config("k", "second")
    assert "keeps too much" in failure(box, {"hoard": "1"})
    assert box._state is None
    box.set_config("k", "third")
    assert key(box) == "third"


def test_a_script_without_config_has_no_mirror() -> None:
    box = sandbox("return {}", {f"k{i}": "x" * 1000 for i in range(1000)})
    box.set_config("k", "x" * 1000)
    assert used_bytes(box) < 200_000


def test_a_state_that_cannot_be_built_again_fails_the_call_and_is_tried_again() -> None:
    box = sandbox(
        """if fila.get("broken") then error("cannot load") end
           function on_enqueue(msg)
             if msg.headers.hoard then
               kept = {}
               for i = 1, 9 do kept[i] = ("x"):rep(120000) end
             end
             return { fairness_key = "fine" }
           end"""
    )
    assert "keeps too much" in failure(box, {"hoard": "1"})
    box.set_config("broken", "yes")
    assert failure(box) == "cannot load"
    assert failure(box) == "cannot load"
    box.set_config("broken", None)
    assert key(box) == "fine"


@pytest.mark.parametrize("kept", ["", "kept = kept or ('x'):rep(250000) .. ('y'):rep(250000) "])
@pytest.mark.parametrize(("count", "size"), [(1, 130_000), (1, MIB), (16, 60_000), (5000, 100)])
def test_large_headers_arrive_whole(kept: str, count: int, size: int) -> None:
    box = sandbox(
        kept
        + """local n = 0
             for k, v in pairs(msg.headers) do n = n + #v end
             return { fairness_key = tostring(n) }"""
    )
    headers = {f"h{i}": "x" * size for i in range(count)}
    for _ in range(5):
        assert key(box, headers) == str(count * size)
        assert key(box, {"a": "bc"}) == "2"


def test_headers_beyond_all_bounds_are_not_the_scripts_fault() -> None:
    box = sandbox("return {}")
    with pytest.raises(ScriptFailed) as failed:
        box.call(ON_ENQUEUE, (0,), {"a": "x" * sandbox_module.HEADERS_BYTES_MAX})
    assert not failed.value.is_scripts_fault
    assert "too large" in failed.value.text


@pytest.mark.parametrize(
    "limits",
    [
        {"timeout_ms": 0},
        {"timeout_ms": 10_001},
        {"memory_limit_bytes": 1024},
        {"memory_limit_bytes": 2 * 1024**3},
    ],
)
def test_senseless_limits_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        sandbox("return {}", **limits)


def test_a_script_that_takes_too_long_to_load_is_refused() -> None:
    with pytest.raises(InvalidScript, match="on_enqueue script: time limit exceeded"):
        sandbox("function on_enqueue() end while true do end")


def test_a_script_that_keeps_too_much_when_loaded_is_refused() -> None:
    script = "function on_enqueue() return #kept end kept = ('x'):rep(10000):rep(1)"
    sandbox(script, memory_limit_bytes=64 * 1024)
    script = script.replace("('x')", "{} for i = 1, 30 do kept[i] = ('x')")
    with pytest.raises(InvalidScript, match="memory limit exceeded"):
        sandbox(script + " end", memory_limit_bytes=64 * 1024)


def test_state_outlives_a_failed_call() -> None:
    queue = QueueHooks(
        "orders",
        on_enqueue_script="""
          function on_enqueue(msg)
            count = (count or 0) + 1
            if msg.headers.fail then error("x") end
            return { fairness_key = tostring(count) }
          end""",
        on_hook_error="reject",
    )
    queue.on_enqueue({}, 0, 0)
    with pytest.raises(HookFailed):
        queue.on_enqueue({"fail": "1"}, 0, 0)
    assert queue.on_enqueue({}, 0, 0) == ("3", 1, (), 1)
