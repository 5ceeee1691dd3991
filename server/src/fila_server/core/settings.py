# SPDX-License-Identifier: AGPL-3.0-only
"""Runtime settings: what a name means, what a value may be, and what follows for a key.

    throttle:<key>:rate      tokens per second; throttle.<key> = "rate,burst" is the same bucket
    throttle:<key>:burst     most tokens in the bucket (default: one second's worth, at least 1)
    concurrency:<key>:limit  most leased messages with that throttle key
    weight:<queue>:<key>     the share of a fairness key; wins over what enqueues say

A <key> that ends in `*` is a pattern: it holds for every key that begins so, each with a bucket of
its own. A setting for the key itself wins over patterns, a longer pattern over a shorter one. Where
both spellings of a throttle are set, the long one wins, field by field. Any other name is only for
hooks to read.

This module holds what was set. Putting it to work on what waits is admin/settings.py's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from fila_server.core.names import shown
from fila_server.core.schedule.limiter import Terms
from fila_server.errors import InvalidArgument
from fila_server.limits import (
    MAX_BURST,
    MAX_CONCURRENCY,
    MAX_RATE,
    MAX_WEIGHT,
    MIN_BURST,
    MIN_RATE,
)

T = TypeVar("T")

_NOTHING: Terms = (0.0, 0.0, 0, "")


class Setting(NamedTuple):
    """A setting's name that acts on the scheduler, taken apart."""

    field: str  # rate, burst, both, limit or weight
    key: str  # the throttle key, the fairness key, or a pattern of them
    queue: str = ""

    @property
    def prefix(self) -> str | None:
        """Return what the keys that it matches begin with; None for a single key."""
        return self.key[:-1] if self.key.endswith("*") else None


def parse(name: str) -> Setting | None:
    """Return what the name sets, or None for one that only hooks read."""
    if name.startswith("throttle."):
        return _named(name, Setting("both", name.removeprefix("throttle.")))
    if name.startswith("throttle:"):
        key, _, field = name.removeprefix("throttle:").rpartition(":")
        if field in ("rate", "burst"):
            return _named(name, Setting(field, key))
        raise InvalidArgument(f'"{shown(name)}" must end in ":rate" or ":burst"')
    if name.startswith("concurrency:"):
        key, _, field = name.removeprefix("concurrency:").rpartition(":")
        if field == "limit":
            return _named(name, Setting(field, key))
        raise InvalidArgument(f'"{shown(name)}" must end in ":limit"')
    if name.startswith("weight:"):
        queue, _, key = name.removeprefix("weight:").partition(":")
        return _named(name, Setting("weight", key, queue))
    return None


def _named(name: str, setting: Setting) -> Setting:
    if not setting.key:
        raise InvalidArgument(f'"{shown(name)}" names no key')
    return setting


def check(name: str, value: str) -> None:
    """Refuse a value that the name cannot have."""
    setting = parse(name)
    match setting.field if setting is not None else "":
        case "rate":
            _rate(name, value)
        case "burst":
            _burst(name, value)
        case "both":
            rate, comma, burst = value.partition(",")
            _rate(name, rate)
            if comma:
                _burst(name, burst)
        case "limit":
            _whole(name, value, MAX_CONCURRENCY)
        case "weight":
            _whole(name, value, MAX_WEIGHT)


def _rate(name: str, text: str) -> None:
    _number(name, text, "a rate from 1e-6 to 1e9 per second", MIN_RATE, MAX_RATE)


def _burst(name: str, text: str) -> None:
    _number(name, text, "a burst from 1 to 1e9", MIN_BURST, MAX_BURST)


def _number(name: str, text: str, what: str, low: float, high: float) -> None:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise InvalidArgument(f'"{shown(name)}" needs {what}, not "{shown(text)}"')


def _whole(name: str, text: str, high: int) -> None:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(high))
    if not (is_number and 1 <= int(text) <= high):
        raise InvalidArgument(
            f'"{shown(name)}" needs a whole number from 1 to {high}, not "{shown(text)}"'
        )


class _Table(Generic[T]):
    """Values by key or pattern."""

    __slots__ = ("_by_length", "_exact", "_patterns")

    def __init__(self) -> None:
        self._exact: dict[str, T] = {}
        self._patterns: dict[str, T] = {}  # by prefix
        self._by_length: dict[int, int] = {}  # how many patterns of each length there are

    def __bool__(self) -> bool:
        return bool(self._exact or self._patterns)

    def at(self, setting: Setting) -> T | None:
        prefix = setting.prefix
        return self._exact.get(setting.key) if prefix is None else self._patterns.get(prefix)

    def set(self, setting: Setting, value: T | None) -> None:
        prefix = setting.prefix
        table, key = (self._exact, setting.key) if prefix is None else (self._patterns, prefix)
        was_there = key in table
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
        if prefix is not None and was_there != (value is not None):
            count = self._by_length.get(len(prefix), 0) + (-1 if was_there else 1)
            self._by_length[len(prefix)] = count
            if not count:
                del self._by_length[len(prefix)]

    def matches(self, key: str) -> Iterator[tuple[str, T]]:
        """Yield what holds for a key, most specific first, with its pattern or an empty text."""
        exact = self._exact.get(key)
        if exact is not None:
            yield "", exact
        for length in sorted(self._by_length, reverse=True):
            if length <= len(key):
                found = self._patterns.get(key[:length])
                if found is not None:
                    yield key[:length] + "*", found

    def keys(self) -> Iterator[str]:
        """Yield the keys that have a value of their own."""
        return iter(self._exact)


class Weights(_Table[int]):
    """The weights that are set for the fairness keys of one queue."""

    __slots__ = ()

    def __call__(self, key: str) -> int:
        """Return the weight of a key; 0 when none is set."""
        return next((weight for _, weight in self.matches(key)), 0)


class Settings:
    """All runtime settings: `values` as they were set, and what follows from them for a key."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._throttles: _Table[dict[str, str]] = _Table()
        self.weights: dict[str, Weights] = {}  # by queue

    def put(self, name: str, value: str | None) -> Setting | None:
        """Set a value that was checked, or remove it; return what the name means."""
        if value is None:
            self.values.pop(name, None)
        else:
            self.values[name] = value
        setting = parse(name)
        if setting is None:
            return None
        if setting.field == "weight":
            table = self.weights.setdefault(setting.queue, Weights())
            table.set(setting, None if value is None else int(value))
            if not table:
                del self.weights[setting.queue]
            return setting
        fields = dict(self._throttles.at(setting) or {})
        fields.pop(setting.field, None)
        if value is not None:
            fields[setting.field] = value
        self._throttles.set(setting, fields or None)
        return setting

    def throttle(self, key: str) -> Terms:
        """Return what is set for a throttle key."""
        if not self._throttles:
            return _NOTHING
        rate = burst = limit = 0.0
        rate_by = limit_by = None
        for pattern, fields in self._throttles.matches(key):
            compact = fields.get("both", "").partition(",")
            if rate_by is None:
                burst = burst or float(fields.get("burst") or compact[2] or 0)
                rate = float(fields.get("rate") or compact[0] or 0)
                rate_by = pattern if rate else None
            if limit_by is None and "limit" in fields:
                limit, limit_by = int(fields["limit"]), pattern
        if not rate:
            return 0.0, 0.0, int(limit), limit_by or ""
        return rate, burst or max(1, math.ceil(rate)), int(limit), rate_by or ""

    def throttle_keys(self) -> Iterator[str]:
        """Yield the throttle keys that have settings of their own."""
        return self._throttles.keys()
