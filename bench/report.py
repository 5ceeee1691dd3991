# SPDX-License-Identifier: AGPL-3.0-only
"""How figures are shown: one table for people, or one JSON object for programs."""

import json
import os
import platform
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table


class Row(NamedTuple):
    """One figure: what was measured, the value as people read it, and what to compare it with."""

    what: str
    value: str
    bar: str = ""


class Report:
    """Collects figures and prints them when the measurement is over."""

    def __init__(
        self, title: str, is_json: bool, columns: Sequence[str] = ("measured", "value", "bar")
    ) -> None:
        self._title = title
        self._is_json = is_json
        self._columns = columns
        self._rows: list[Row] = []
        self._figures: dict[str, object] = {"machine": machine()}
        # A pipe has no width; a table that breaks its lines there is no help to anybody.
        width = None if sys.stdout.isatty() else 120
        self._console = Console(stderr=is_json, highlight=False, width=width)
        self._console.print(f"[bold]{title}[/bold]  {machine()}")

    def progress(self, text: str) -> None:
        self._console.print(f"  {text} ...", style="dim")

    def add(self, what: str, value: str, bar: str = "", **figures: Any) -> None:
        self._rows.append(Row(what, value, bar))
        self._figures.update(figures)

    def note(self, text: str) -> None:
        self._rows.append(Row("", text))

    def show(self) -> None:
        if self._is_json:
            print(json.dumps(self._figures))
            return
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        what, value, bar = self._columns
        table.add_column(what)
        table.add_column(value, justify="right")
        table.add_column(bar, style="dim")
        for row in self._rows:
            if row.what:
                table.add_row(*row)
        self._console.print(table)
        for row in self._rows:
            if not row.what:
                self._console.print(row.value, style="dim")


def machine() -> str:
    return f"{os.cpu_count()} cores, Python {platform.python_version()}"


def percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
