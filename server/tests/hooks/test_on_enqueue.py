# SPDX-License-Identifier: AGPL-3.0-only
"""What an on_enqueue script is given, and what becomes of what it returns."""

import pytest

from fila_server.errors import HookFailed, InvalidScript
from fila_server.hooks.decision import EnqueueDecision
from fila_server.hooks.hook import QueueHooks


def hooks(script: str, **settings: object) -> QueueHooks:
    return QueueHooks("orders", on_enqueue_script=script, on_hook_error="reject", **settings)  # type: ignore[arg-type]


def decide(body: str, headers: dict[str, str] | None = None, size: int = 0) -> EnqueueDecision:
    decision = hooks(f"function on_enqueue(msg) {body} end").on_enqueue(headers or {}, size, 0)
    assert decision is not None
    return decision


def refusal(body: str, headers: dict[str, str] | None = None) -> str:
    with pytest.raises(HookFailed) as refused:
        decide(body, headers)
    return refused.value.message


def test_the_message_has_headers_payload_size_and_queue() -> None:
    body = (
        "return { fairness_key = msg.headers.a .. msg.payload_size .. msg.queue .. type(msg.id) }"
    )
    assert decide(body, {"a": "x"}, 12).fairness_key == "x12ordersnil"


def test_all_fields_are_taken_over() -> None:
    body = """return { fairness_key = msg.headers.tenant, weight = 3, throttle_cost = 5,
                       throttle_keys = { "b", "a" } }"""
    assert decide(body, {"tenant": "acme"}) == ("acme", 3, ("a", "b"), 5)


@pytest.mark.parametrize("body", ["return {}", "return nil", "", "return"])
def test_nothing_returned_means_all_defaults(body: str) -> None:
    assert decide(body) == ("default", 1, (), 1)


@pytest.mark.parametrize(
    ("lua", "weight"),
    [
        ("nil", 1), ("1", 1), ("1000", 1000), ("0", 1), ("-5", 1), ("1001", 1000), ("1e300", 1000),
        ("0/0", 1), ("-(0/0)", 1), ("1/0", 1000), ("-1/0", 1), ("2.4", 2), ("2.5", 3), ("0.2", 1),
        ("999.9", 1000), ("math.maxinteger", 1000), ("math.mininteger", 1), ("'7'", 7),
        ("'0x10'", 16), ("'1e9'", 1000),
    ],
)  # fmt: skip
def test_weights_are_rounded_and_brought_into_range(lua: str, weight: int) -> None:
    assert decide(f"return {{ weight = {lua} }}").weight == weight


@pytest.mark.parametrize(
    ("lua", "cost"),
    [("nil", 1), ("0", 1), ("4", 4), ("1e9", 1_000_000), ("0/0", 1), ("-3", 1), ("'2'", 2)],
)
def test_costs_are_rounded_and_brought_into_range(lua: str, cost: int) -> None:
    assert decide(f"return {{ throttle_cost = {lua} }}").throttle_cost == cost


@pytest.mark.parametrize(
    ("lua", "key"),
    [("'acme'", "acme"), ("42", "42"), ("1.5", "1.5"), ("nil", "default"), ("'é'", "é"),
     ("'a\\0b'", "a\0b"), ("('k'):rep(256)", "k" * 256)],
)  # fmt: skip
def test_fairness_keys(lua: str, key: str) -> None:
    assert decide(f"return {{ fairness_key = {lua} }}").fairness_key == key


@pytest.mark.parametrize(
    ("lua", "keys"),
    [
        ("{}", ()),
        ("{ 'a' }", ("a",)),
        ("{ 'b', 'a', 'b' }", ("a", "b")),
        ("{ msg.headers.missing }", ()),
        ("{ nil, 'b' }", ("b",)),
        ("{ nil, 'b', nil }", ("b",)),
        ("{ 'a', nil, nil, 'd' }", ("a", "d")),
        ("{ false, 'b', msg.headers.missing == 'x' }", ("b",)),
        ("{ '', 'b' }", ("b",)),
        ("{ '' }", ()),
        ("{ 7, 1.5, '7' }", ("1.5", "7")),
        ("{ 'ü', 'z' }", ("z", "ü")),
    ],
)
def test_throttle_keys_are_sorted_without_duplicates_and_holes(
    lua: str, keys: tuple[str, ...]
) -> None:
    assert decide(f"return {{ throttle_keys = {lua} }}").throttle_keys == keys


def test_sixteen_throttle_keys_are_allowed_duplicates_aside() -> None:
    body = "local t = {} for i = 1, 32 do t[i] = 'k' .. i % 16 end return { throttle_keys = t }"
    assert len(decide(body).throttle_keys) == 16


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 7", "must return a table, got number"),
        ("return { fairness_key = true }", "fairness_key must be a string, got boolean"),
        ("return { fairness_key = '' }", "fairness_key must have 1 to 256 bytes, got 0"),
        ("return { fairness_key = ('k'):rep(257) }", "1 to 256 bytes, got 257"),
        ("return { fairness_key = '\\xff' }", "not valid UTF-8"),
        ("return { weight = 'heavy' }", "weight must be a number"),
        ("return { throttle_cost = {} }", "throttle_cost must be a number"),
        ("return { throttle_keys = 'stripe' }", "throttle_keys must be a list, got string"),
        ("return { throttle_keys = { x = 'stripe' } }", "throttle_keys must be a list"),
        ("return { throttle_keys = { true } }", "a throttle key must be a string, got boolean"),
        ("return { throttle_keys = { ('k'):rep(257) } }", "a throttle key must have 1 to 256"),
        ("return { throttle_keys = { 'a', '\\xff' } }", "not valid UTF-8"),
        ("return msg.headers.tenant.x.y", "line 1: attempt to index a nil value"),
        ("\n\nerror('no tenant')", "line 3: no tenant"),
        ("error('no tenant', 0)", ": no tenant"),
        ("msg.headers.x = 'y'", "msg.headers is read-only"),
        ("msg.headers.tenant = 'y'", "msg.headers is read-only"),
    ],
)
def test_what_is_refused_and_how_it_is_said(body: str, said: str) -> None:
    message = refusal(body, {"tenant": "acme"})
    assert message.startswith('on_enqueue of queue "orders" failed: ')
    assert said in message


def test_headers_can_be_walked_measured_and_tested() -> None:
    body = """
      local n, all = 0, ""
      for k, v in pairs(msg.headers) do n, all = n + 1, all .. k .. v end
      local first = next(msg.headers)
      local aa = rawget(msg.headers, "aa")
      return { fairness_key = n .. " " .. #all .. " " .. #first .. " " .. aa }
    """
    assert decide(body, {"aa": "xx", "bb": "yy"}).fairness_key == "2 8 2 xx"


def test_no_headers_look_empty() -> None:
    assert decide("return { fairness_key = tostring(next(msg.headers)) }").fairness_key == "nil"


def test_a_header_may_hold_any_text() -> None:
    headers = {"": "empty", "a b": "\0", "Ünï": "\U0001f600" * 3, "__index": "x", "1": "one"}
    body = """return { fairness_key = msg.headers[""] .. #msg.headers["a b"] .. #msg.headers["Ünï"]
                       .. msg.headers.__index .. msg.headers["1"] .. tostring(msg.headers[1]) }"""
    assert decide(body, headers).fairness_key == "empty112xonenil"


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 18, 100, 255, 256, 2000])
def test_any_number_of_headers_arrives_whole(count: int) -> None:
    headers = {f"k{i}": f"v{i}" for i in range(count)}
    body = """local n, right = 0, 0
      for k, v in pairs(msg.headers) do
        n = n + 1
        if v == "v" .. k:sub(2) then right = right + 1 end
      end
      return { fairness_key = n .. "/" .. right }"""
    assert decide(body, headers).fairness_key == f"{count}/{count}"


def test_headers_of_one_call_are_gone_in_the_next() -> None:
    queue = hooks(
        """function on_enqueue(msg)
             kept = kept or msg.headers
             return { fairness_key = tostring(kept.a) .. tostring(kept.b) }
           end"""
    )
    assert queue.on_enqueue({"a": "1"}, 0, 0) == ("1nil", 1, (), 1)
    assert queue.on_enqueue({"b": "2"}, 0, 0) == ("nil2", 1, (), 1)


def test_config_is_read_at_the_time_of_the_call() -> None:
    queue = hooks(
        "function on_enqueue() return { fairness_key = fila.get('tier') or 'none' } end",
        config={"tier": "gold"},
    )
    keys = []
    for change in (("other", "x"), ("tier", "silver"), ("tier", None), ("tier", "ü\0")):
        decision = queue.on_enqueue({}, 0, 0)
        assert decision is not None
        keys.append(decision.fairness_key)
        queue.set_config(*change)
    assert keys == ["gold", "gold", "silver", "none"]
    assert queue.on_enqueue({}, 0, 0) == ("ü\0", 1, (), 1)


@pytest.mark.parametrize(
    "reach", ["fila.get('k')", "_G['fi' .. 'la'].get('k')", "_ENV['fi' .. 'la']['ge' .. 't']('k')"]
)
def test_config_is_there_however_it_is_reached(reach: str) -> None:
    queue = hooks(
        f"function on_enqueue() return {{ fairness_key = {reach} }} end", config={"k": "v"}
    )
    assert queue.on_enqueue({}, 0, 0) == ("v", 1, (), 1)
    queue.set_config("k", "w")
    assert queue.on_enqueue({}, 0, 0) == ("w", 1, (), 1)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("x = = 1", "on_enqueue script: line 1: unexpected symbol near '='"),
        ("\n\nfunction on_enqueue(", "on_enqueue script: line 3: "),
        ("error('at load')", "on_enqueue script: line 1: at load"),
        ("on_enqueue = 7", "on_enqueue is a number, not a function"),
        ("function on_failure() end", "no function on_enqueue is defined"),
        ("local function on_enqueue() end", "no function on_enqueue is defined"),
        ("-- nothing", "no function on_enqueue is defined"),
        ("-" * 40000, "longer than 32768 bytes"),
        ("-- \ud800", "not valid UTF-8"),
    ],
)
def test_scripts_that_are_refused(script: str, said: str) -> None:
    with pytest.raises(InvalidScript) as refused:
        hooks(script)
    assert said in refused.value.message


def test_without_a_script_there_is_no_decision() -> None:
    queue = QueueHooks("orders")
    assert not queue.has_on_enqueue
    assert queue.on_enqueue({"a": "b"}, 0, 0) is None
    assert queue.stats() == (0, 0, 0, False, "")


def test_errors_are_cut_to_200_characters() -> None:
    message = refusal("error(('x'):rep(5000), 0)")
    assert message.endswith(": " + "x" * 200)
