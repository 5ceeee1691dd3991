# SPDX-License-Identifier: AGPL-3.0-only
"""Tables of a result: built once, shown on a terminal or written as Markdown.

A result is what the JSON file holds; nothing here measures.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table as RichTable

from bench.peers.figures import PERCENTILES, Latencies, spread


class Table(NamedTuple):
    """A title, column heads (the first is for names, the others for figures), and rows of text."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(result: Mapping[str, Any]) -> Iterator[Table]:
    for case in result["cases"]:
        rows = [_ROWS[case["kind"]](entry) for entry in case["entries"]]
        gaps = [""] * (len(_HEADS[case["kind"]]) - 2)
        rows += [[label, "failed", *gaps] for label in case["failures"]]
        yield Table(case["title"], _HEADS[case["kind"]], rows)


def middle(entry: Mapping[str, Any], figure: str) -> float:
    """The median of a figure over an entry's rounds."""
    return spread([each[figure] for each in entry["rounds"]]).middle


def latencies(entry: Mapping[str, Any], which: str) -> Latencies:
    """All rounds of an entry in one histogram."""
    merged = Latencies()
    for each in entry["rounds"]:
        merged.merge(each[which])
    return merged


def _lifecycle(entry: Mapping[str, Any]) -> list[str]:
    rate = spread([each["lifecycles_per_s"] for each in entry["rounds"]])
    return [
        entry["label"],
        f"{rate.middle:,.0f}",
        f"{rate.least:,.0f} to {rate.most:,.0f}",
        *(f"{middle(entry, name):,.0f}" for name in ("enqueues_per_s", "consumes_per_s")),
        *(f"{middle(entry, name):,.1f}" for name in ("broker_us", "client_us")),
    ]


def _latency(entry: Mapping[str, Any]) -> list[str]:
    delivered = latencies(entry, "delivered").percentiles_us()
    confirmed = latencies(entry, "confirmed").percentiles_us()
    shown = [*delivered.values(), confirmed["p50"], confirmed["p99"]]
    return [entry["label"], *(f"{value / 1000:,.2f}" for value in shown)]


def _quiet(entry: Mapping[str, Any]) -> list[str]:
    return [
        entry["label"],
        *(f"{middle(entry, name):,.0f}" for name in ("place", "place_most")),
        *(f"{middle(entry, name) * 1000:,.0f}" for name in ("wait_s", "wait_most_s")),
        f"{middle(entry, 'calls_per_message'):.2f}",
        f"{middle(entry, 'rate'):,.0f}",
    ]


def _shares(entry: Mapping[str, Any]) -> list[str]:
    return [entry["label"], f"{middle(entry, 'share_error'):.1%}"]


def _limit(entry: Mapping[str, Any]) -> list[str]:
    return [
        entry["label"],
        f"{middle(entry, 'overshoot'):.1f}",
        f"{middle(entry, 'used'):.0%}",
        f"{middle(entry, 'free_per_s'):,.0f}",
        f"{middle(entry, 'returned_per_call'):.1f}",
    ]


_ROWS: dict[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "lifecycle": _lifecycle,
    "latency": _latency,
    "quiet": _quiet,
    "shares": _shares,
    "limit": _limit,
}
_PARTS = [f"p{part:g}" for part in PERCENTILES]
_HEADS: dict[str, list[str]] = {
    "lifecycle": [
        *("broker", "lifecycles/s", "least to most", "enqueues/s", "consumes/s"),
        *("broker µs", "client µs"),
    ],
    "latency": [
        *("broker", *(f"{part} ms" for part in _PARTS), "max ms"),
        *("confirm p50 ms", "confirm p99 ms"),
    ],
    "quiet": ["broker", "place", "worst", "wait ms", "worst ms", "calls/message", "messages/s"],
    "shares": ["broker", "largest error of a share"],
    "limit": [
        "broker",
        "calls beyond the limit",
        "limit used",
        "free messages/s",
        "given back/call",
    ],
}


class Figure(NamedTuple):
    """What brokers are compared by: how it is read, in which unit, and which is better."""

    read: Callable[[Mapping[str, Any]], float]
    unit: str
    digits: int
    is_more_better: bool


def _median(name: str, scale: float = 1) -> Callable[[Mapping[str, Any]], float]:
    return lambda entry: middle(entry, name) * scale


def _delivered(part: float) -> Callable[[Mapping[str, Any]], float]:
    return lambda entry: latencies(entry, "delivered").at(part) / 1000


_COMPARED: dict[str, list[Figure]] = {
    "lifecycle": [
        Figure(_median("lifecycles_per_s"), "lifecycles/s", 0, True),
        Figure(_median("broker_us"), "µs of the broker per message", 1, False),
    ],
    "latency": [
        Figure(_delivered(50), "ms at the median", 2, False),
        Figure(_delivered(99), "ms at p99", 2, False),
    ],
    "quiet": [
        Figure(_median("wait_s", 1000), "ms of wait", 0, False),
        Figure(_median("rate"), "messages/s", 0, True),
    ],
    "shares": [Figure(_median("share_error", 100), "% error of a share", 1, False)],
    "limit": [
        Figure(_median("overshoot"), "calls beyond the limit", 1, False),
        Figure(_median("used", 100), "% of the limit used", 0, True),
        Figure(_median("free_per_s"), "free messages/s", 0, True),
    ],
}


def losses(result: Mapping[str, Any]) -> Iterator[str]:
    """Where a peer did better than Fila in this run, in words, the best first."""
    for case in result["cases"]:
        own = [entry for entry in case["entries"] if entry["label"] == "Fila"]
        others = [entry for entry in case["entries"] if entry["peer"] != "fila"]
        for figure in _COMPARED[case["kind"]] if own else []:
            # As shown: what rounds to the same is no loss.
            mine = round(figure.read(own[0]), figure.digits)
            found = [(round(figure.read(each), figure.digits), each["label"]) for each in others]
            sign = -1 if figure.is_more_better else 1
            better = sorted(pair for pair in found if (pair[0] - mine) * sign < 0)
            if better:
                named = [f"{label} {value:,.{figure.digits}f}" for value, label in better[::sign]]
                told = f"Fila {mine:,.{figure.digits}f} {figure.unit}; {'; '.join(named)}"
                yield f"{case['title']}: {told}"


def show(result: Mapping[str, Any], console: Console) -> None:
    for table in tables(result):
        console.print(f"\n[bold]{table.title}[/bold]")
        shown = RichTable(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for number, head in enumerate(table.heads):
            shown.add_column(head, justify="right" if number else "left", no_wrap=True)
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
    console.print("\n[bold]What each guarantees[/bold]")
    for peer in result["peers"].values():
        console.print(f"{peer['title']} {peer['version']}: {peer['guarantee']}", style="dim")
    for case in result["cases"]:
        for label, why in case["failures"].items():
            console.print(f"FAILED: {case['name']}, {label}: {why}", style="red", markup=False)
    for missing in result["missing"].values():
        console.print(
            f"MISSING: {missing['title']}: {missing['why']}. To have it: {missing['install']}",
            style="red",
            markup=False,
        )


def markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    rule = line(["---", *["---:"] * (len(table.heads) - 1)])
    return "\n".join([line(table.heads), rule, *map(line, table.rows)])
