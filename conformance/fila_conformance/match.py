# SPDX-License-Identifier: AGPL-3.0-only
"""Compares what came back with what a case expects. Knows nothing of drivers, brokers or files.

A mapping matches when every key that it names matches; other keys may be there. A list matches
element by element and in length. Keys that start with `$` are operators, and all of them must hold.
The answer is a list of differences; none means that it matches.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Long enough to recognise a value, short enough for a terminal.
_SHOWN_CHARACTERS_MAX = 200

Operator = Callable[[Any, Any, str], list[str]]


def differences(expected: Any, actual: Any, path: str = "") -> list[str]:
    """Everything in `actual` that is not as expected, one line each."""
    if isinstance(expected, Mapping):
        operators = {name: value for name, value in expected.items() if name in OPERATORS}
        rest = {name: value for name, value in expected.items() if name not in OPERATORS}
        lines = [
            line
            for name, argument in operators.items()
            for line in OPERATORS[name](argument, actual, path)
        ]
        return lines + _mapping(rest, actual, path) if rest or not operators else lines
    if isinstance(expected, list):
        return _list(expected, actual, path)
    # In Python True equals 1, in a reply it does not.
    if expected == actual and isinstance(expected, bool) == isinstance(actual, bool):
        return []
    return [f"{_at(path)}expected {shown(expected)}, got {shown(actual)}"]


def shown(value: Any) -> str:
    """A value as a failure shows it."""
    text = repr(value)
    if len(text) <= _SHOWN_CHARACTERS_MAX:
        return text
    return f"{text[:_SHOWN_CHARACTERS_MAX]}... ({len(text)} characters)"


def _at(path: str) -> str:
    return f"{path}: " if path else ""


def _mapping(expected: Mapping[str, Any], actual: Any, path: str) -> list[str]:
    if not isinstance(actual, Mapping):
        return [f"{_at(path)}expected a mapping, got {shown(actual)}"]
    lines: list[str] = []
    for name, wanted in expected.items():
        here = f"{path}.{name}" if path else name
        if name in actual:
            lines += differences(wanted, actual[name], here)
        elif not (isinstance(wanted, Mapping) and wanted.get("$absent")):
            lines.append(f"{here}: is missing")
    return lines


def _list(expected: Sequence[Any], actual: Any, path: str) -> list[str]:
    if not isinstance(actual, list):
        return [f"{_at(path)}expected a list, got {shown(actual)}"]
    if len(expected) != len(actual):
        return [f"{_at(path)}expected {len(expected)} elements, got {len(actual)}: {shown(actual)}"]
    pairs = enumerate(zip(expected, actual, strict=True))
    return [line for i, (e, a) in pairs for line in differences(e, a, f"{path}[{i}]")]


# --- Operators ---------------------------------------------------------------------------------


def _verdict(is_met: bool, wanted: str, actual: Any, path: str) -> list[str]:
    return [] if is_met else [f"{_at(path)}expected {wanted}, got {shown(actual)}"]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _at_least(limit: Any, actual: Any, path: str) -> list[str]:
    return _verdict(_is_number(actual) and actual >= limit, f"at least {limit}", actual, path)


def _at_most(limit: Any, actual: Any, path: str) -> list[str]:
    return _verdict(_is_number(actual) and actual <= limit, f"at most {limit}", actual, path)


def _one_of(choices: Any, actual: Any, path: str) -> list[str]:
    is_met = any(not differences(choice, actual) for choice in choices)
    return _verdict(is_met, f"one of {shown(choices)}", actual, path)


def _not(unwanted: Any, actual: Any, path: str) -> list[str]:
    return _verdict(bool(differences(unwanted, actual)), f"not {shown(unwanted)}", actual, path)


def _matches(pattern: Any, actual: Any, path: str) -> list[str]:
    is_met = isinstance(actual, str) and re.search(pattern, actual) is not None
    return _verdict(is_met, f"text like /{pattern}/", actual, path)


def _contains(wanted: Any, actual: Any, path: str) -> list[str]:
    return _verdict(_holds(wanted, actual), f"something with {shown(wanted)}", actual, path)


def _excludes(unwanted: Any, actual: Any, path: str) -> list[str]:
    return _verdict(not _holds(unwanted, actual), f"nothing with {shown(unwanted)}", actual, path)


def _holds(wanted: Any, actual: Any) -> bool:
    if isinstance(actual, str):
        return isinstance(wanted, str) and wanted in actual
    if isinstance(actual, list):
        return any(not differences(wanted, element) for element in actual)
    return isinstance(actual, Mapping) and wanted in actual


def _length(wanted: Any, actual: Any, path: str) -> list[str]:
    if not isinstance(actual, str | list | Mapping):
        return [f"{_at(path)}expected something with a length, got {shown(actual)}"]
    return differences(wanted, len(actual), f"{path} length" if path else "length")


def _unique(is_wanted: Any, actual: Any, path: str) -> list[str]:
    counted = Counter(repr(element) for element in actual)
    twice = [text for text, count in counted.items() if count > 1]
    return _verdict((not twice) == is_wanted, "no element twice", twice or actual, path)


def _sorted(is_wanted: Any, actual: Any, path: str) -> list[str]:
    return _verdict((actual == sorted(actual)) == is_wanted, "sorted elements", actual, path)


def _any_order(expected: Any, actual: Any, path: str) -> list[str]:
    if not isinstance(actual, list) or len(actual) != len(expected):
        return [f"{_at(path)}expected {len(expected)} elements, got {shown(actual)}"]
    left = list(actual)
    lines: list[str] = []
    for wanted in expected:
        found = next((i for i, a in enumerate(left) if not differences(wanted, a)), None)
        if found is None:
            lines.append(f"{_at(path)}no element like {shown(wanted)} in {shown(actual)}")
        else:
            left.pop(found)
    return lines


def _each(wanted: Any, actual: Any, path: str) -> list[str]:
    if not isinstance(actual, list):
        return [f"{_at(path)}expected a list, got {shown(actual)}"]
    return [line for i, a in enumerate(actual) for line in differences(wanted, a, f"{path}[{i}]")]


def _counts(wanted: Any, actual: Any, path: str) -> list[str]:
    """How often each value occurs in a list; a value that is not there occurs 0 times."""
    counted = Counter(str(element) for element in actual)
    lines: list[str] = []
    for value, count in wanted.items():
        lines += differences(count, counted[value], f"{path} count of {value!r}".strip())
    return lines


def _absent(is_wanted: Any, actual: Any, path: str) -> list[str]:
    # A key that is there reaches this point; one that is not has been accepted before.
    return _verdict((actual is None) == is_wanted, "nothing", actual, path)


def _present(is_wanted: Any, actual: Any, path: str) -> list[str]:
    is_there = actual is not None and actual != ""
    return _verdict(is_there == is_wanted, "something", actual, path)


OPERATORS: Mapping[str, Operator] = {
    "$absent": _absent,
    "$any_order": _any_order,
    "$at_least": _at_least,
    "$at_most": _at_most,
    "$contains": _contains,
    "$counts": _counts,
    "$each": _each,
    "$excludes": _excludes,
    "$length": _length,
    "$matches": _matches,
    "$not": _not,
    "$one_of": _one_of,
    "$present": _present,
    "$sorted": _sorted,
    "$unique": _unique,
}
