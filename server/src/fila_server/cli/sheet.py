# SPDX-License-Identifier: AGPL-3.0-only
"""What is drawn on a terminal: lines with styles, and tables whose columns line up.

An answer is printed once, and loading rich takes longer than most answers do, so these draw
themselves. What moves (`fila top`, the demo) is rich's, which takes them as they are.
"""

import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import combining, east_asian_width

from fila_server.cli.words import one_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

_WEIGHTS = {"bold": "1", "dim": "2"}
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_GAP = "  "
_ELLIPSIS = "…"
_KEPT_CHARS = 6


def width_of(text: str) -> int:
    """How many cells of a terminal the text takes up."""
    if text.isascii():
        return len(text)
    wide = sum(east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(combining(char) > 0 for char in text)


def _cut(text: str, width: int) -> str:
    """The text, or as much of its beginning as fits with an ellipsis."""
    if width_of(text) <= width:
        return text
    while text and width_of(text) >= width:
        text = text[:-1]
    return text + _ELLIPSIS


class Line:
    """One line of text in parts, each with a style: bold, dim, a colour, or none."""

    __slots__ = ("parts",)

    def __init__(self, *parts: str | tuple[str, str]) -> None:
        self.parts = [(part, "") if isinstance(part, str) else part for part in parts]

    def __str__(self) -> str:
        return "".join(text for text, _ in self.parts)

    def fitted(self, width: int, is_right: bool) -> "Line":
        """The line in a cell of so many characters."""
        text = str(self)
        if width_of(text) > width:
            return Line((_cut(text, width), self.parts[0][1]))
        blanks = " " * (width - width_of(text))
        return Line(blanks, *self.parts) if is_right else Line(*self.parts, blanks)

    def lines(self, width: int | None) -> "Iterator[Line]":
        """The line, in several at a narrow terminal; one of many parts is the terminal's to cut."""
        if width is None or len(self.parts) > 1 or width_of(str(self)) <= width:
            yield self
            return
        for text, style in self.parts:
            for piece in textwrap.wrap(text, width):
                yield Line((piece, style))

    def encoded(self, *, has_styles: bool) -> str:
        """The line as it is written."""
        if not has_styles:
            return str(self).rstrip()
        return "".join(_styled(text, style) for text, style in self.parts).rstrip()

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Text]":
        from rich.text import Text

        yield Text.assemble(*self.parts)


def _styled(text: str, style: str) -> str:
    code = _WEIGHTS.get(style) or ("" if os.environ.get("NO_COLOR") else _COLOURS.get(style))
    return f"\x1b[{code}m{text}\x1b[0m" if code and text.strip() else text


class Column(NamedTuple):
    """A column; numbers stand at the right, and `keep` means that the text is never shortened."""

    title: str
    number: bool = False
    keep: bool = False


class Table:
    """Rows under titles, without lines between them; what does not fit ends in an ellipsis."""

    def __init__(
        self, columns: Sequence[Column], rows: Iterable[Sequence[object]], *, header: bool = True
    ) -> None:
        self._columns = columns
        self._rows = [[_cell(value) for value in row] for row in rows]
        if header:
            self._rows.insert(0, [Line((column.title, "bold")) for column in columns])

    def lines(self, width: int | None) -> Iterator[Line]:
        """The table within so many characters, as far as that is possible."""
        widths = self._widths(width)
        last = len(self._columns) - 1
        for row in self._rows:
            parts: list[tuple[str, str]] = []
            for at, (cell, column, room) in enumerate(zip(row, self._columns, widths, strict=True)):
                parts += cell.fitted(room, column.number).parts
                if at < last:
                    parts.append((_GAP, ""))
            yield Line(*parts)

    def _widths(self, width: int | None) -> list[int]:
        cells = zip_longest(*self._rows, fillvalue=Line())
        widths = [max((width_of(str(cell)) for cell in column), default=0) for column in cells]
        widths = widths or [0] * len(self._columns)
        if width is None:
            return widths
        room = width - len(_GAP) * (len(widths) - 1)
        least = [
            taken if column.keep or column.number else _least(column)
            for taken, column in zip(widths, self._columns, strict=True)
        ]
        _shrink(widths, least, room)
        _shrink(widths, [1] * len(widths), room)  # better than a line that the terminal breaks
        return widths

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Text]":
        from rich.text import Text

        for line in self.lines(options.max_width):
            yield Text.assemble(*line.parts, no_wrap=True, overflow="ellipsis")


def _least(column: Column) -> int:
    """What is left at least of a column that may be shortened."""
    return max(1, min(width_of(column.title), _KEPT_CHARS))


def _shrink(widths: list[int], least: list[int], room: int) -> None:
    """Takes from the widest columns until all fit, or none can give more."""
    while sum(widths) > room:
        spare = [at for at, taken in enumerate(widths) if taken > least[at]]
        if not spare:
            return
        widths[max(spare, key=widths.__getitem__)] -= 1


def _cell(value: object) -> Line:
    if isinstance(value, Line):
        return value
    if isinstance(value, bool):
        return Line("yes" if value else "no")
    if isinstance(value, int):
        return Line(f"{value:,}")
    if isinstance(value, float):
        return Line(f"{value:,.1f}".removesuffix(".0"))
    return Line(one_line(str(value)))


# A piece of an answer: a blank or plain line, a line with styles, or a table.
Part = str | Line | Table


def drawn(parts: Iterable[Part], width: int | None) -> Iterator[Line]:
    """The lines of an answer within so many characters; None is as wide as it takes."""
    for part in parts:
        yield from (Line(part) if isinstance(part, str) else part).lines(width)
