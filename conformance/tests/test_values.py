# SPDX-License-Identifier: AGPL-3.0-only
"""Variables, payload notations and computed values."""

import base64
import time
from typing import Any

import pytest
from fila_conformance.values import PAYLOAD_BYTES_MAX, UnknownVariable, resolve

VARIABLES: dict[str, Any] = {
    "queue": "orders",
    "got": {"messages": [{"id": "m1", "n": 1}, {"id": "m2", "n": 2}]},
}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("$queue", "orders"),
        ("${queue}.dlq", "orders.dlq"),
        ("$got.messages.1.id", "m2"),
        ("$got.messages.*.n", [1, 2]),
        ({"a": ["$queue", 1]}, {"a": ["orders", 1]}),
        ({"${queue}.colour": "blue", "$each": 1}, {"orders.colour": "blue", "$each": 1}),
        ("costs $5", "costs $5"),
        ({"$concat": ["$got.messages.*.id", ["x"]]}, ["m1", "m2", "x"]),
        ({"$repeat": {"count": 2, "item": {"k": "n${i}"}}}, [{"k": "n0"}, {"k": "n1"}]),
        ({"$repeat": {"count": "$got.messages.1.n", "item": "x"}}, ["x", "x"]),
        ({"$entries": {"count": 2, "key": "k${i}", "value": "v"}}, {"k0": "v", "k1": "v"}),
        ({"$at_least": "$got.messages.0.n"}, {"$at_least": 1}),
    ],
)
def test_what_is_written_is_what_is_meant(written: Any, meant: Any) -> None:
    assert resolve(written, VARIABLES) == meant


@pytest.mark.parametrize(
    ("notation", "data"),
    [
        ({"utf8": "☺"}, "☺".encode()),
        (
            {"json": {"then": "fail", "ms": 5, "queue": "$queue"}},
            b'{"then": "fail", "ms": 5, "queue": "orders"}',
        ),
        ({"utf8": "${queue}!"}, b"orders!"),
        ({"hex": "00 ff"}, b"\x00\xff"),
        ({"fill": "61", "size": 3}, b"aaa"),
        ({"fill": "00", "size_relative_to_limit": 1}, bytes(PAYLOAD_BYTES_MAX + 1)),
    ],
)
def test_payload_notations_are_bytes(notation: Any, data: bytes) -> None:
    resolved = resolve({"payload": notation}, VARIABLES)
    assert base64.b64decode(resolved["payload"]) == data


def test_a_mapping_that_looks_like_a_payload_elsewhere_is_a_mapping() -> None:
    assert resolve({"headers": {"utf8": "x"}}, {}) == {"headers": {"utf8": "x"}}


def test_now_is_a_time_in_milliseconds() -> None:
    assert abs(resolve({"$now_plus_ms": 1000}, {}) - (time.time() * 1000 + 1000)) < 10_000


@pytest.mark.parametrize("written", ["$nobody", "${nobody}", "$got.messages.7.id", "$got.colour"])
def test_an_unknown_variable_is_an_error(written: str) -> None:
    with pytest.raises(UnknownVariable):
        resolve(written, VARIABLES)
