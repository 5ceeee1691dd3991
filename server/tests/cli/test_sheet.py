# SPDX-License-Identifier: AGPL-3.0-only
"""Lines and tables: they line up, they fit, and rich draws the same as a printed answer."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group

from fila_server.cli.sheet import Column, Line, Table, drawn, width_of

TEXTS = st.text(st.sampled_from("abc xyz-漢字é…\u0301"), max_size=30)
COLUMNS = st.builds(Column, TEXTS, st.booleans(), st.booleans())


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Column], list[list[str]]]:
    columns = draw(st.lists(COLUMNS, min_size=1, max_size=6))
    row = st.lists(TEXTS, min_size=len(columns), max_size=len(columns))
    return columns, draw(st.lists(row, max_size=6))


def plain(table: Table, width: int | None) -> list[str]:
    return [str(line) for line in table.lines(width)]


@given(tables())
def test_columns_line_up_and_nothing_is_lost_in_a_pipe(
    made: tuple[list[Column], list[list[str]]],
) -> None:
    columns, rows = made
    shown = plain(Table(columns, rows), None)
    assert len({width_of(line) for line in shown}) == 1
    for line, row in zip(shown[1:], rows, strict=True):
        assert all(cell in line for cell in row)


@given(tables(), st.integers(1, 120))
def test_no_line_is_wider_than_the_terminal(
    made: tuple[list[Column], list[list[str]]], width: int
) -> None:
    columns, rows = made
    least = len(columns) + 2 * (len(columns) - 1)
    for line in plain(Table(columns, rows), max(width, least)):
        assert width_of(line) <= max(width, least)


def test_what_is_to_be_kept_is_shortened_last() -> None:
    columns = [Column("MESSAGE", keep=True), Column("PAYLOAD"), Column("TRIES", number=True)]
    table = Table(columns, [("0123456789abcdef", "x" * 80, 1_234_567)])
    assert plain(table, 40) == [
        "MESSAGE           PAYLOAD" + " " * 10 + "TRIES",
        "0123456789abcdef  xxxxxxxxxx…  1,234,567",
    ]


def test_a_long_line_is_broken_between_words() -> None:
    shown = list(drawn(["one two three", Line(("four five", "bold"))], 9))
    assert [str(line) for line in shown] == ["one two", "three", "four five"]
    assert shown[-1].encoded(has_styles=True) == "\x1b[1mfour five\x1b[0m"
    assert shown[-1].encoded(has_styles=False) == "four five"


def test_rich_draws_the_same() -> None:
    table = Table([Column("A"), Column("B", number=True)], [("x", 1)])
    parts = [Line(("title", "bold")), "", table]
    out = io.StringIO()
    Console(file=out, width=40).print(Group(*parts))
    drawn_by_rich = [line.rstrip() for line in out.getvalue().splitlines()]
    assert drawn_by_rich == [line.encoded(has_styles=False) for line in drawn(parts, 40)]
