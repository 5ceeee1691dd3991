# SPDX-License-Identifier: AGPL-3.0-only
"""The generated part of docs/performance.md: everything between its two markers, and the plots."""

import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.peers import plots, report

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/performance.md"
PLOTS = ROOT / "docs/performance"
BEGIN = "<!-- peers: begin, written by `nox -s bench -- peers --page` -->"
END = "<!-- peers: end -->"
QUIET_LOAD = 0.5


def write(result: Mapping[str, Any]) -> list[Path]:
    """Put a result's tables on the page and its plots beside it; returns what was written.

    Raises ValueError if the page has lost its markers.
    """
    drawn = plots.draw(result, PLOTS)
    names = [posixpath.join(PLOTS.name, path.name) for path in drawn]
    PAGE.write_text(replaced(PAGE.read_text(), "\n".join(lines(result, names))))
    return [PAGE, *drawn]


def replaced(text: str, generated: str) -> str:
    """Return the page with what is between the markers replaced."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} needs the lines {BEGIN!r} and {END!r}, in this order")
    return f"{head}{BEGIN}\n\n{generated}\n{END}{tail}"


def lines(result: Mapping[str, Any], pictures: list[str]) -> Iterator[str]:
    machine = result["machine"]
    yield f"Measured on {result['date']} with `{result['command']}`: {machine['processor']},"
    yield f"{machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, Python"
    yield f"{machine['python']}, {machine['go']}. Rounds: {result['rounds']}, in turn; medians."
    if machine["load"] > QUIET_LOAD:
        yield ""
        yield f"**The machine was shared**: its load average was {machine['load']:.1f} before the"
        yield "first round. Compare brokers within a table, not figures with those of another run."
    yield from _participants(result)
    yield from _failures(result)
    for kind, heading in _HEADINGS.items():
        found = {**result, "cases": [case for case in result["cases"] if case["kind"] == kind]}
        if found["cases"] and heading:
            yield from ("", f"## {heading}")
        for table in report.tables(found):
            yield from ("", f"**{table.title}**", "", report.markdown(table))
    yield from ("", "## Where Fila loses", "")
    yield "A peer's median was better than Fila's here, in this run:"
    yield ""
    losses = list(report.losses(result))
    yield from (f"- {text}" for text in losses or ["nowhere"])
    yield from ("", "## Pictures", "")
    yield from (f"![{path}]({path})" for path in pictures)
    yield ""


_HEADINGS = {
    "lifecycle": "Throughput",
    "latency": "Latency",
    "quiet": "Tenants, shares and limits",
    "shares": "",
    "limit": "",
}


def _participants(result: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "| broker | version | what a confirmed message has behind it | clients |")
    yield "|---|---|---|---|"
    for peer in result["peers"].values():
        clients = f"Python: {peer['python_client']}. Go: {peer['go_client']}"
        yield f"| {peer['title']} | {peer['version']} | {peer['guarantee']} | {clients} |"
    for missing in result["missing"].values():
        yield f"| {missing['title']} | missing | {missing['why']} | `{missing['install']}` |"


def _failures(result: Mapping[str, Any]) -> Iterator[str]:
    for case in result["cases"]:
        for label, why in case["failures"].items():
            yield from ("", f"Failed: {case['title']}, {label}: {why}")
