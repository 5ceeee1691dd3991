# SPDX-License-Identifier: AGPL-3.0-only
"""A collector that takes spans and metrics in over OTLP, as a real one does, and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_stubs
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as stubs
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

DEADLINE_S = 60.0


class MetricsCollector(metrics_stubs.MetricsServiceServicer):
    """The latest of each metric, and who sent them."""

    def __init__(self) -> None:
        self.metrics: dict[str, Metric] = {}
        self.resource: dict[str, str] = {}

    def Export(self, request: metrics_pb.ExportMetricsServiceRequest, context: Any) -> Any:
        for group in request.resource_metrics:
            self.resource = {it.key: it.value.string_value for it in group.resource.attributes}
            for scope in group.scope_metrics:
                self.metrics.update({metric.name: metric for metric in scope.metrics})
        return metrics_pb.ExportMetricsServiceResponse()


class Collector(stubs.TraceServiceServicer):
    """What arrived so far."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []
        self._arrived = threading.Condition()
        self.of_metrics = MetricsCollector()

    def Export(self, request: pb.ExportTraceServiceRequest, context: Any) -> Any:
        with self._arrived:
            for group in request.resource_spans:
                about = {it.key: it.value.string_value for it in group.resource.attributes}
                self.resources.append(about)
                for scope in group.scope_spans:
                    self.spans += scope.spans
            self._arrived.notify_all()
        return pb.ExportTraceServiceResponse()

    def wait_for(self, *names: str) -> list[Span]:
        """Return the first span of each name, once all are there."""

        def found() -> list[Span]:
            by_name = {span.name: span for span in reversed(self.spans)}
            return [by_name[name] for name in names] if by_name.keys() >= set(names) else []

        with self._arrived:
            assert self._arrived.wait_for(lambda: bool(found()), DEADLINE_S), self.spans
            return found()


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """A collector, and its address as a setting."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(1))
    stubs.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    metrics_stubs.add_MetricsServiceServicer_to_server(  # type: ignore[no-untyped-call]
        collector.of_metrics, server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
