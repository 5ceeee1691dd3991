# SPDX-License-Identifier: AGPL-3.0-only
"""What matches what, and how a difference is told."""

from typing import Any

import pytest
from fila_conformance.match import differences, shown

MATCHING: list[tuple[Any, Any]] = [
    ({}, {"a": 1}),
    ({"a": 1}, {"a": 1, "b": 2}),
    ([], []),
    ([1, {"a": 2}], [1, {"a": 2, "b": 3}]),
    (None, None),
    ({"$at_least": 3}, 3),
    ({"$at_least": 3, "$at_most": 5}, 4.5),
    ({"$one_of": ["x", {"$matches": "^y"}]}, "yes"),
    ({"$not": "x"}, "y"),
    ({"$matches": "^a.c$"}, "abc"),
    ({"$contains": "b"}, "abc"),
    ({"$contains": {"id": 1}}, [{"id": 2}, {"id": 1, "x": 0}]),
    ({"$contains": None}, [1, None]),
    ({"$excludes": "key"}, "text"),
    ({"$length": 2}, [1, 2]),
    ({"$length": {"$at_least": 1}}, {"a": 1}),
    ({"$unique": True, "$sorted": True}, ["a", "b"]),
    ({"$any_order": [{"id": 1}, {"id": 2}]}, [{"id": 2}, {"id": 1}]),
    ({"$each": {"$at_least": 1}}, [1, 2]),
    ({"$counts": {"a": 2, "b": 1, "c": 0}}, ["a", "b", "a"]),
    ({"a": {"$absent": True}}, {"b": 1}),
    ({"a": {"$absent": True}}, {"a": None}),
    ({"$present": True}, "x"),
    ({"a": 1, "$length": 2}, {"a": 1, "b": 2}),
]

DIFFERING: list[tuple[Any, Any, str]] = [
    (1, 2, "expected 1, got 2"),
    (True, 1, "expected True, got 1"),
    (0, False, "expected 0, got False"),
    ({"a": 1}, {}, "a: is missing"),
    ({"a": {"b": 1}}, {"a": {"b": 2}}, "a.b: expected 1, got 2"),
    ({"a": 1}, [1], "expected a mapping"),
    ([1], [1, 2], "expected 1 elements, got 2"),
    ([{"a": 1}], [{"a": 2}], "[0].a: expected 1, got 2"),
    ([1], "1", "expected a list"),
    ({"$at_least": 3}, 2, "at least 3"),
    ({"$at_least": 3}, None, "at least 3"),
    ({"$at_most": 3}, True, "at most 3"),
    ({"$one_of": ["x", "y"]}, "z", "one of"),
    ({"$not": "x"}, "x", "not 'x'"),
    ({"$matches": "^a"}, "b", "text like"),
    ({"$contains": {"id": 1}}, [{"id": 2}], "something with"),
    ({"$excludes": "secret"}, "a secret text", "nothing with 'secret'"),
    ({"$length": 2}, [1], "length: expected 2, got 1"),
    ({"$length": 2}, 7, "something with a length"),
    ({"$unique": True}, ["a", "a"], "no element twice"),
    ({"$sorted": True}, ["b", "a"], "sorted"),
    ({"$any_order": [1, 1]}, [1, 2], "no element like 1"),
    ({"$any_order": [1]}, [1, 2], "expected 1 elements"),
    ({"$each": 1}, [1, 2], "[1]: expected 1, got 2"),
    ({"$counts": {"a": 1}}, ["a", "a"], "count of 'a': expected 1, got 2"),
    ({"a": {"$absent": True}}, {"a": 1}, "a: expected nothing, got 1"),
    ({"a": {"$present": True}}, {"a": ""}, "a: expected something"),
    ({"a": 1, "$length": 1}, {"a": 1, "b": 2}, "length: expected 1, got 2"),
]


@pytest.mark.parametrize(("expected", "actual"), MATCHING)
def test_matching_values_have_no_differences(expected: Any, actual: Any) -> None:
    assert differences(expected, actual) == []


@pytest.mark.parametrize(("expected", "actual", "told"), DIFFERING)
def test_a_difference_says_where_and_what(expected: Any, actual: Any, told: str) -> None:
    assert any(told in line for line in differences(expected, actual))


def test_every_difference_is_told() -> None:
    assert len(differences({"a": 1, "b": 2, "c": 3}, {"a": 0, "b": 2})) == 2


def test_a_long_value_is_cut() -> None:
    assert len(shown("x" * 5000)) < 300
    assert "5002 characters" in shown("x" * 5000)
