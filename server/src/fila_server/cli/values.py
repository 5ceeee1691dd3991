# SPDX-License-Identifier: AGPL-3.0-only
"""How typed words become values: durations, pairs, permissions, and text that a file may hold."""

import math
import re
import sys
from typing import Any

import click

from fila_server.cli import failures
from fila_server.limits import GRPC_MESSAGE_BYTES

_UNIT_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PERMISSIONS = ("produce", "consume", "admin")
_DURATION = re.compile(r"([0-9]+)(ms|s|m|h|d|)")


class Duration(click.ParamType[int]):
    """Milliseconds; 30s, 5m, 2h and 7d are understood too."""

    name = "MS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _DURATION.fullmatch(value)
        if found is None:
            self.fail(failures.bad_duration(value), param, ctx)
        return int(found[1]) * _UNIT_MS[found[2]]


class Whole(click.IntRange):
    """A whole number in a range."""

    # What click's text calls the type: "'x' is not a valid ...".
    name = "whole number"


class Finite(click.FloatRange):
    """A number in a range; neither infinity nor "not a number", which no range keeps out."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(failures.bad_number(str(value)), param, ctx)
        return number


class Pair(click.ParamType[tuple[str, str]]):
    """`K=V`; the value may be empty and may hold further equals signs."""

    name = "K=V"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, rest = value.partition("=")
        if not equals or not key:
            self.fail(failures.bad_pair(value), param, ctx)
        return key, rest


class Permit(click.ParamType[tuple[str, str]]):
    """`PERMISSION:PATTERN`; the broker judges the pattern."""

    name = "PERMISSION:PATTERN"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        permission, colon, pattern = value.partition(":")
        if permission not in _PERMISSIONS or not colon or not pattern:
            self.fail(failures.bad_permission(value), param, ctx)
        return permission, pattern


class Script(click.ParamType[str]):
    """Lua source, or `@FILE` with it."""

    name = "LUA|@FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value.startswith("@"):
            return str(value)
        try:
            return read_file(value[1:]).decode()
        except UnicodeDecodeError:
            self.fail(failures.not_utf8(value[1:]), param, ctx)


DURATION = Duration()
PAIR = Pair()
PERMIT = Permit()
SCRIPT = Script()


def read_file(path: str, limit: int = -1) -> bytes:
    """The file's bytes, no more than the limit; a usage error names a file that is unreadable."""
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError as error:
        raise click.UsageError(failures.unreadable_file(path, error)) from error


def read_payload(source: str | None) -> bytes:
    """The payload that TEXT, @FILE or - (standard input) names.

    Without a source it is what is piped in, byte for byte; nothing at a terminal.
    """
    if source is None and not is_piped():
        return b""
    if source is None or source == "-":
        return _whole(sys.stdin.buffer.read(GRPC_MESSAGE_BYTES), "standard input")
    if source.startswith("@"):
        return _whole(read_file(source[1:], GRPC_MESSAGE_BYTES), source[1:])
    return source.encode(errors="surrogateescape")


def is_piped() -> bool:
    """Whether somebody else than a person writes to standard input."""
    return sys.stdin is not None and not sys.stdin.closed and not sys.stdin.isatty()


def _whole(payload: bytes, source: str) -> bytes:
    # `limits.max_payload_bytes` is below this at every broker, so what fills it is refused anyway.
    if len(payload) >= GRPC_MESSAGE_BYTES:
        raise click.UsageError(failures.payload_too_large(source, GRPC_MESSAGE_BYTES))
    return payload
