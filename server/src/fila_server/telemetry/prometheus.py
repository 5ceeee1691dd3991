# SPDX-License-Identifier: AGPL-3.0-only
"""Readings as Prometheus scrapes them. Names follow OpenTelemetry's rules for Prometheus: dots
become underscores, counters end in `_total`, units are spelled out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from fila_server.telemetry.instruments import INSTRUMENTS
from fila_server.telemetry.rows import Distribution, Row

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_UNITS = {"s": "_seconds", "By": "_bytes", "1": "", "us": ""}


def prometheus_name(name: str) -> str:
    """Return what Prometheus calls a metric, without the suffixes that its kind adds."""
    unit = _UNITS.get(INSTRUMENTS[name].unit, "")
    plain = name.replace(".", "_")
    return plain if unit.strip("_") in plain.split("_") else plain + unit


class _Scrape(Collector):
    """One reading, in the shape that the library renders."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = rows

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for name, labels, value in self._rows:
            family = families.get(name)
            if family is None:
                family = families[name] = _family(name)
            values = [text for _, text in labels]
            if isinstance(value, Distribution):
                family.add_metric(values, _buckets(value), value.sum)  # type: ignore[attr-defined]
            else:
                family.add_metric(values, value)  # type: ignore[attr-defined]
        yield from families.values()


def _family(name: str) -> Metric:
    kind, _, labels, about = INSTRUMENTS[name]
    families: dict[str, type[Any]] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    family: Metric = families[kind](prometheus_name(name), about, labels=labels)
    return family


def _buckets(value: Distribution) -> list[tuple[str, float]]:
    """Return cumulative counts by upper bound."""
    total = 0
    found = []
    for bound, count in zip(value.bounds, value.counts, strict=False):
        total += count
        found.append((f"{bound:g}", float(total)))
    found.append(("+Inf", float(total + value.counts[-1])))
    return found


def render(rows: Iterable[Row]) -> bytes:
    """Return the text of one scrape. Takes a while: call it on another thread."""
    registry = CollectorRegistry()
    registry.register(_Scrape(rows))
    return generate_latest(registry)
