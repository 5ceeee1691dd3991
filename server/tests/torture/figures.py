# SPDX-License-Identifier: AGPL-3.0-only
"""What a torture measured and which rules were broken meanwhile. Knows nothing of brokers."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Scale(NamedTuple):
    """How hard to torture."""

    is_long: bool

    def of(self, short: int, long: int) -> int:
        return long if self.is_long else short


class Figures:
    """Figures by name, in the order they were taken, and the rules that were broken."""

    def __init__(self) -> None:
        self.values: dict[str, int | float | str] = {}
        self.broken: list[str] = []

    def __setitem__(self, name: str, value: int | float | str) -> None:
        self.values[name] = value

    def hold(self, rule: str, holds: bool) -> None:
        """Note a rule as broken unless it holds."""
        if not holds:
            self.broken.append(rule)

    @contextmanager
    def scene(self, name: str) -> Iterator[None]:
        """Go on with the next scene when this one breaks a rule or ends early."""
        before = len(self.broken)
        try:
            yield
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split()) or f"line {where.lineno}: {where.line}"
            self.broken.append(f"{type(error).__name__}: {text}")
        self.broken[before:] = [f"{name}: {rule}" for rule in self.broken[before:]]

    def judged(self) -> "Figures":
        """Return the figures. Raises Broken if a rule was broken."""
        if self.broken:
            raise Broken(self)
        return self

    def __str__(self) -> str:
        return ", ".join(f"{name} {shown(value)}" for name, value in self.values.items())


class Broken(Exception):
    """A rule was broken; the figures say how far it went."""

    def __init__(self, figures: Figures) -> None:
        super().__init__("; ".join(figures.broken))
        self.figures = figures


def shown(value: int | float | str) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else value
