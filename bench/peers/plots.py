# SPDX-License-Identifier: AGPL-3.0-only
"""Pictures of a result, as SVG files: rates as bars, latencies as curves over percentiles."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.peers.report import latencies, middle

COLOURS = {
    "fila": "#d1495b",
    "redis": "#edae49",
    "rabbitmq": "#66a182",
    "nats": "#2e4057",
    "nats-sync": "#8d96a3",
    "beanstalkd": "#00798c",
}
NINES = ("50", "90", "99", "99.9")


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write one file per kind of case that the result has; returns them."""
    import matplotlib as mpl

    mpl.use("svg")
    # Text stays text, and the same figures make the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "fila", "font.size": 9})
    folder.mkdir(parents=True, exist_ok=True)
    by_kind: dict[str, list[Any]] = {}
    for case in result["cases"]:
        by_kind.setdefault(case["kind"], []).append(case)
    written = []
    for kind, name, picture in (
        ("lifecycle", "throughput.svg", _bars),
        ("latency", "latency.svg", _curves),
        ("quiet", "quiet.svg", _waits),
    ):
        if kind in by_kind:
            figure = picture(by_kind[kind])
            figure.savefig(folder / name, metadata={"Date": None})
            written.append(folder / name)
    return written


def _panels(cases: list[Any], height: float) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height * len(cases)), layout="constrained")
    axes = figure.subplots(len(cases), 1, squeeze=False)
    return figure, [row[0] for row in axes]


def _bars(cases: list[Any]) -> Any:
    figure, panels = _panels(cases, 1.9)
    for case, axis in zip(cases, panels, strict=True):
        entries = case["entries"][::-1]
        rates = [middle(entry, "lifecycles_per_s") for entry in entries]
        colours = [COLOURS[entry["peer"]] for entry in entries]
        bars = axis.barh([entry["label"] for entry in entries], rates, color=colours)
        axis.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=3)
        axis.set_title(f"{case['title']}: lifecycles/s", loc="left", fontsize=9)
        axis.margins(x=0.12)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _curves(cases: list[Any]) -> Any:
    figure, panels = _panels(cases, 3)
    for case, axis in zip(cases, panels, strict=True):
        for entry in case["entries"]:
            found = latencies(entry, "delivered")
            values = [found.at(float(part)) / 1000 for part in NINES]
            label, colour = entry["label"], COLOURS[entry["peer"]]
            axis.plot(NINES, values, marker="o", label=label, color=colour)
        axis.set_yscale("log")
        axis.set_title(f"{case['title']}: ms until delivered", loc="left", fontsize=9)
        axis.set_xlabel("percentile")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _waits(cases: list[Any]) -> Any:
    figure, panels = _panels(cases, 3)
    for case, axis in zip(cases, panels, strict=True):
        entries = case["entries"][::-1]
        waits = [middle(entry, "wait_s") * 1000 for entry in entries]
        colours = [COLOURS[entry["peer"]] for entry in entries]
        bars = axis.barh([entry["label"] for entry in entries], waits, color=colours)
        axis.bar_label(bars, [f"{wait:,.0f}" for wait in waits], padding=3)
        axis.set_xscale("log")
        axis.set_xlim(1, max(waits) * 2)  # a bar that begins elsewhere says nothing
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_title(f"{case['title']}: its wait in ms", loc="left", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    return figure
