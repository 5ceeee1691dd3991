# SPDX-License-Identifier: AGPL-3.0-only
"""docs/reference/metrics.md, made from the table of instruments: `python -m tools.metrics_page`.

A test compares the page with what this writes, so it cannot go stale.
"""

from pathlib import Path

from fila_server.telemetry.instruments import INSTRUMENTS
from fila_server.telemetry.prometheus import prometheus_name

TARGET = "docs/reference/metrics.md"
_INTRODUCTION = """\
# Metrics

<!-- Written by `python -m tools.metrics_page`. DO NOT EDIT -->

The broker counts what it does anyway; a reading copies the counters, so metrics cost messages next
to nothing. They leave in two ways: pushed over OTLP to a collector (`telemetry.otlp_endpoint`), and
as text at `/metrics` of the HTTP port (`http.listen_addr`) for Prometheus.

Counters count since the broker started. Labels are bounded: `telemetry.max_keys` fairness keys, the
busiest of all queues together, have labels of their own, and as many throttle keys; the others are
summed under `other`, and so is a key of that name. A key keeps its label after it has drained. When
another has more than twice the traffic of the idlest one with a label, that one's series ends, and
what it does from then on is in `other`; the other key begins at zero, and what it did before stays
in `other`. So no counter goes back or leaps: rates add up to what happened, sums of the counters
themselves do not. `nox -s bench -- labels` lets a million keys of each kind come and go: 2,047
series and 155 KiB of text at the end, 6 bytes of memory for each key that is gone, and nothing
lost.

`fila.messages.wait` takes the time from enqueue to first delivery apart by what the message waited
for. Of frames with more than 8 messages a sample is measured, and stands for the rest. [The
runbook](../guides/runbook.md) says what to watch.

| metric | in Prometheus | kind | unit | labels | what it says |
|---|---|---|---|---|---|
"""
_SUFFIX = {"counter": "_total", "gauge": "", "histogram": ""}


def render() -> str:
    """Return the whole page."""
    rows = []
    for name, (kind, unit, labels, about) in INSTRUMENTS.items():
        scraped = prometheus_name(name) + _SUFFIX[kind]
        shown = ", ".join(f"`{label}`" for label in labels) or "-"
        rows.append(f"| `{name}` | `{scraped}` | {kind} | {unit} | {shown} | {about} |")
    return _INTRODUCTION + "\n".join(rows) + "\n"


def main() -> None:
    Path(TARGET).write_text(render())


if __name__ == "__main__":
    main()
