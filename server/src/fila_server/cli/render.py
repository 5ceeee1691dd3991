# SPDX-License-Identifier: AGPL-3.0-only
"""How answers reach the terminal: tables for people, JSON for programs.

Nothing here knows what a queue is. Text from a broker goes through `one_line` before it is shown,
and rich's markup is off, so no payload or key can style, move or fake what a person reads. rich is
imported when something is drawn: that takes longer than most answers.
"""

import base64
import dataclasses
import enum
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from fila_server.cli.words import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

# Wide enough that a table in a pipe is never cut, unless COLUMNS says how wide it may be.
_PIPE_WIDTH = 1_000
_LINE_END_BLANKS = re.compile(r" +$", re.MULTILINE)


def console(*, stderr: bool = False) -> "Console":
    """A console for stdout or stderr; without colours and without a width when it is a pipe."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    is_wide = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(
        file=stream,
        width=_PIPE_WIDTH if is_wide else None,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=False,
    )


def is_terminal() -> bool:
    """Whether standard output is a terminal that a view can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Column(NamedTuple):
    """A column; numbers stand at the right, and `keep` means that the text is never shortened."""

    title: str
    number: bool = False
    keep: bool = False


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[object]], *, header: bool = True
) -> "Table":
    """An aligned table without lines; cells that do not fit end in an ellipsis."""
    from rich.table import Table

    result = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=header
    )
    cells = [[_cell(value) for value in row] for row in rows]
    for index, column in enumerate(columns):
        widest = max((len(row[index]) for row in cells), default=0)
        keep = column.keep or column.number
        result.add_column(
            column.title,
            justify="right" if column.number else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=max(widest, len(column.title)) if keep else min(len(column.title), 6),
        )
    for row in cells:
        result.add_row(*row)
    return result


def _cell(value: object) -> "Text":
    from rich.text import Text

    if isinstance(value, Text):
        return value
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, int):
        return Text(f"{value:,}")
    if isinstance(value, float):
        return Text(f"{value:,.1f}".removesuffix(".0"))
    return Text(one_line(str(value)))


def show(*parts: object) -> None:
    """Prints tables and lines of text, without the blanks that rich leaves at the ends of lines."""
    out = console()
    with out.capture() as captured:
        for part in parts:
            out.print(part)
    sys.stdout.write(_LINE_END_BLANKS.sub("", captured.get()))
    sys.stdout.flush()


def say(text: str) -> None:
    """Prints one sentence, never wrapped."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Prints one sentence that is not part of the answer, on stderr."""
    sys.stderr.write(f"{text}\n")


def print_document(value: object) -> None:
    """Prints one JSON document."""
    say(json.dumps(plain(value), indent=2))


def print_json_line(value: object) -> None:
    """Prints one JSON document on one line, at once."""
    say(json.dumps(plain(value)))


def plain(value: object) -> Any:
    """The value in JSON's own types: dataclasses by field, times in ISO 8601, bytes in base64."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {
            field.name: plain(getattr(value, field.name))
            for field in fields
            if not field.name.startswith("_")
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value
