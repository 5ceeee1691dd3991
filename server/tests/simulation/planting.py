# SPDX-License-Identifier: AGPL-3.0-only
"""How a bug is planted: a context manager under which the broker is wrong in one way.

What a plant replaces must exist, so one that no longer fits its place fails loudly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType
from typing import Any

from fila_server.core.broker import Broker
from fila_server.core.clock import Now

Plant = Callable[[], AbstractContextManager[None]]

PLANTS: dict[str, Plant] = {}


class Misplanted(BaseException):
    """A plant no longer fits its place: it fails by itself, and what it shows is nothing."""


def plant(body: Callable[[], Iterator[None]]) -> Plant:
    """Register a planted bug under its function's name."""
    made = contextmanager(body)
    PLANTS[body.__name__] = made
    return made


@contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    """Put something else in the place of an attribute that exists, for a while."""
    was = getattr(owner, name)
    setattr(owner, name, _fitting(new) if isinstance(new, FunctionType) else new)
    try:
        yield
    finally:
        setattr(owner, name, was)


def _fitting(new: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function fail loudly when it is called in a way that it was not made for."""

    def called(*values: Any, **named: Any) -> Any:
        try:
            return new(*values, **named)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is None:
                raise Misplanted(repr(error)) from error  # it never began
            raise

    return called


@contextmanager
def effects_changed(change: Callable[[Sequence[Any], Any], None]) -> Iterator[None]:
    """Let every group's effects be changed before the engine sees them."""
    handle = Broker.handle

    def changed(self: Broker, commands: Sequence[Any], now: Now, **how: Any) -> Any:
        effects = handle(self, commands, now, **how)
        try:
            change(commands, effects)
        except Exception as error:  # else the seed would take it for what it looks for
            raise Misplanted(repr(error)) from error
        return effects

    with replaced(Broker, "handle", changed):
        yield
