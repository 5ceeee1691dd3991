# SPDX-License-Identifier: AGPL-3.0-only
"""Readings as a collector gets them: OpenTelemetry's metrics data, pushed over OTLP."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from fila_server.config import TelemetryConfig
from fila_server.telemetry.instruments import INSTRUMENTS
from fila_server.telemetry.rows import Distribution, Row

log = logging.getLogger(__name__)

# A collector that takes longer is left until the next time.
_TIMEOUT_S = 5


class Push:
    """Sends readings to a collector. Belongs to one thread at a time."""

    def __init__(self, telemetry: TelemetryConfig, exporter: MetricExporter | None = None) -> None:
        endpoint = telemetry.otlp_endpoint
        self._exporter = exporter or OTLPMetricExporter(
            endpoint=endpoint, insecure=not endpoint.startswith("https://"), timeout=_TIMEOUT_S
        )
        self._resource = Resource.create(
            {"service.name": telemetry.service_name, "service.version": version("fila-server")}
        )
        self._began_ns = time.time_ns()
        self._is_failing = False

    def send(self, rows: Iterable[Row]) -> None:
        """Send one reading. A collector that does not take it is a line in the log, once."""
        data = metrics_data(rows, self._resource, self._began_ns, time.time_ns())
        is_sent = self._exporter.export(data) is MetricExportResult.SUCCESS
        if self._is_failing == is_sent:
            self._is_failing = not is_sent
            if is_sent:
                log.info("the collector takes metrics again")
            else:
                log.warning("the collector does not take metrics; they are sent again and again")

    def close(self) -> None:
        self._exporter.shutdown()


def metrics_data(
    rows: Iterable[Row], resource: Resource, began_ns: int, now_ns: int
) -> MetricsData:
    """Return rows in OpenTelemetry's shape."""
    points: dict[str, list[NumberDataPoint | HistogramDataPoint]] = {}
    for name, labels, value in rows:
        point = _point(dict(labels), value, began_ns, now_ns)
        points.setdefault(name, []).append(point)
    metrics = [_metric(name, found) for name, found in points.items()]
    scope = InstrumentationScope("fila-server", version("fila-server"))
    scoped = ScopeMetrics(scope=scope, metrics=metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource, [scoped], schema_url="")])


def _point(
    attributes: dict[str, str], value: float | Distribution, began_ns: int, now_ns: int
) -> NumberDataPoint | HistogramDataPoint:
    if isinstance(value, Distribution):
        return HistogramDataPoint(
            attributes=attributes,
            start_time_unix_nano=began_ns,
            time_unix_nano=now_ns,
            count=sum(value.counts),
            sum=value.sum,
            bucket_counts=value.counts,
            explicit_bounds=value.bounds,
            min=0,
            max=0,
        )
    return NumberDataPoint(attributes, began_ns, now_ns, value)


def _metric(name: str, points: list[NumberDataPoint | HistogramDataPoint]) -> Metric:
    kind, unit, _, about = INSTRUMENTS[name]
    cumulative = AggregationTemporality.CUMULATIVE
    data: Sum | Gauge | Histogram
    if kind == "counter":
        data = Sum(points, cumulative, is_monotonic=True)  # type: ignore[arg-type]
    elif kind == "gauge":
        data = Gauge(points)  # type: ignore[arg-type]
    else:
        data = Histogram(points, cumulative)  # type: ignore[arg-type]
    return Metric(name=name, description=about, unit=unit, data=data)
