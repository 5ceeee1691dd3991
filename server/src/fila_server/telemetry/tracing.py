# SPDX-License-Identifier: AGPL-3.0-only
"""Spans of what the broker does for its callers: which of them are made, what they say, and where
they are sent.

A call's own trace context decides. Where it brings none the contexts of its messages do, and where
those bring none either, `telemetry.sample_ratio`. A span names queues, message ids and fairness
keys; of a message it reads trace context and nothing else.

Spans leave in a thread of OpenTelemetry's, from a queue with a bound: a collector that is slow or
dead costs spans, never calls. Handlers are in rpc/traced.py; nothing here knows them.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import NamedTuple

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import DEFAULT_ON
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace import get_current_span as span_of
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from fila_server.config import TelemetryConfig
from fila_server.errors import FilaError

log = logging.getLogger(__name__)

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_MARK = TRACEPARENT.encode()
# A context that somebody has decided not to trace. The others are left to OpenTelemetry.
_REFUSAL = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][02468ace]")
# OpenTelemetry's own default. A frame of thousands is not told message by message.
LINKS_MAX = 128
# Messages of a call or frame that are looked at; what a turn may cost is bounded.
LOOKED_AT = 512
# Longer than any version of the header that is foreseen; the one in use has 55 characters.
_TRACEPARENT_CHARS = 256
_NAME_CHARS = 255
# Encoding takes the interpreter from the broker's one busy thread: 64 spans take a millisecond or
# two. What is beyond the queue is lost.
_EXPORT_BATCH = 64
_EXPORT_QUEUE = 4096
_EXPORT_DELAY_MS = 1000
# A stop waits so long for the last spans to leave.
_CLOSE_S = 2.0
_COMPLAINT_S = 60.0

_propagator = TraceContextTextMapPropagator()

Metadata = Iterable[tuple[str, str | bytes]]


class Operation(NamedTuple):
    """What a span stands for: our word for it, and OpenTelemetry's."""

    name: str
    type: str
    kind: SpanKind


ENQUEUE = Operation("enqueue", "send", SpanKind.SERVER)
DELIVER = Operation("deliver", "receive", SpanKind.SERVER)
ACK = Operation("ack", "settle", SpanKind.SERVER)
NACK = Operation("nack", "settle", SpanKind.SERVER)
SETTLE = Operation("settle", "settle", SpanKind.SERVER)


class Subject(NamedTuple):
    """A message that a call is about, as far as it is known."""

    queue: str
    message_id: str = ""
    fairness_key: str = ""
    headers: Mapping[str, str] = {}  # nobody writes to it
    leased_ns: int = 0  # when a delivery began


class Tracing:
    """Makes spans. `close` sends what is left."""

    def __init__(self, config: TelemetryConfig, processor: SpanProcessor) -> None:
        self._ratio = config.sample_ratio
        self._provider = TracerProvider(
            sampler=DEFAULT_ON,  # the ratio is drawn before there is anything to sample
            resource=resource(config),
            span_limits=SpanLimits(max_links=LINKS_MAX, max_attribute_length=_NAME_CHARS),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("fila_server", version("fila-server"))

    def close(self) -> None:
        """Send the spans that are left, for a moment."""
        self._provider.shutdown()

    def begin(
        self,
        operation: Operation,
        caller: Context,
        encoded: bytes,
        look: Callable[[], tuple[Sequence[Subject], int]],
    ) -> Span | None:
        """Begin a span about messages; None when it is not traced.

        The caller's context is its parent. Without one, that of its messages if they share a trace.
        `look` returns some of the messages, and how many there are. It is not called where the
        messages, as `encoded`, hold no context and are not drawn.
        """
        own = span_of(caller).get_span_context()
        is_drawn = own.trace_flags.sampled if own.is_valid else random.random() < self._ratio
        if not is_drawn and (own.is_valid or _MARK not in encoded):
            return None
        shown, count = look()
        found = _Found(shown)
        if not own.is_valid:
            if not found.links and (found.has_refusal or not is_drawn):
                return None
            caller = found.parent()
        links = found.links
        if operation is ENQUEUE:  # the span that sends a message is its parent already
            parent = _identity(span_of(caller).get_span_context())
            links = [link for link in links if _identity(link.context) != parent]
        span = self._tracer.start_span(
            _name(operation, shown),
            caller,
            operation.kind,
            _attributes(operation, shown, count),
            links,
            (shown[0].leased_ns if shown else 0) or None,
        )
        return span if span.is_recording() else None


class _Found:
    """The trace contexts that messages carry, each once."""

    def __init__(self, shown: Sequence[Subject]) -> None:
        self.links: list[Link] = []
        self.has_refusal = False  # somebody has decided against a trace
        self._contexts: list[Context] = []
        self._traces: set[int] = set()
        seen: set[str] = set()
        for subject in shown:
            text = subject.headers.get(TRACEPARENT)
            if not text or text in seen or len(text) > _TRACEPARENT_CHARS:
                continue
            seen.add(text)
            if _REFUSAL.fullmatch(text):
                self.has_refusal = True
                continue
            context = extracted(subject.headers)
            found = span_of(context).get_span_context()
            if not found.is_valid:
                continue
            if not found.trace_flags.sampled:
                self.has_refusal = True
                continue
            self._add(context, found, subject)
            if len(self.links) == LINKS_MAX:
                return

    def _add(self, context: Context, found: SpanContext, subject: Subject) -> None:
        about = {"messaging.message.id": subject.message_id, "fairness_key": subject.fairness_key}
        self.links.append(Link(found, {name: text for name, text in about.items() if text}))
        self._contexts.append(context)
        self._traces.add(found.trace_id)

    def parent(self) -> Context:
        """Return the context that all of them belong to; an empty one if there is none."""
        return self._contexts[0] if len(self._traces) == 1 else Context()


def extracted(carrier: Mapping[str, str]) -> Context:
    """Return the trace context of a message's headers; empty when there is none, or a bad one."""
    return _propagator.extract(
        {name: carrier[name] for name in (TRACEPARENT, TRACESTATE) if name in carrier}, Context()
    )


def caller_context(metadata: Metadata | None) -> Context:
    """Return the trace context of a call's metadata; empty when there is none, or a bad one."""
    return extracted(
        {
            name: value
            for name, value in metadata or ()
            if name in (TRACEPARENT, TRACESTATE) and isinstance(value, str)
        }
    )


def _identity(context: SpanContext) -> tuple[int, int]:
    return context.trace_id, context.span_id


def _the_one(values: Iterable[str]) -> str:
    """Return the value that is everywhere, or nothing."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else ""


def _name(operation: Operation, shown: Sequence[Subject]) -> str:
    queue = _the_one(subject.queue for subject in shown)[:_NAME_CHARS]
    return f"{operation.name} {queue}" if queue else operation.name


def _attributes(
    operation: Operation, shown: Sequence[Subject], count: int
) -> dict[str, AttributeValue]:
    queue = _the_one(subject.queue for subject in shown)
    message_id = shown[0].message_id if count == 1 and shown else ""
    texts = {
        "messaging.system": "fila",
        "messaging.operation.name": operation.name,
        "messaging.operation.type": operation.type,
        "messaging.destination.name": queue,
        "messaging.message.id": message_id,
        "queue_id": queue,
        "msg_id": message_id,
        "fairness_key": _the_one(subject.fairness_key for subject in shown),
    }
    found: dict[str, AttributeValue] = {name: text for name, text in texts.items() if text}
    if count != 1:
        found["messaging.batch.message_count"] = count
    return found


@contextmanager
def ending(span: Span) -> Iterator[None]:
    """End a span with what it stands for, and say by which reason that failed."""
    try:
        yield
    except FilaError as error:
        failed(span, error.reason)
        raise
    except Exception as error:
        failed(span, type(error).__name__)
        raise
    finally:
        span.end()


def named(span: Span, message_id: str) -> None:
    """Say which message it was that was stored."""
    span.set_attributes({"messaging.message.id": message_id, "msg_id": message_id})


def answered(span: Span, reasons: Sequence[str | None]) -> None:
    """Say how many items of a batch were refused, and why the first of them was."""
    refused = [reason for reason in reasons if reason is not None]
    if refused:
        span.set_attribute("fila.refused_count", len(refused))
        failed(span, refused[0], is_whole=len(refused) == len(reasons))


def failed(span: Span, reason: str, is_whole: bool = True) -> None:
    span.set_attribute("error.type", reason)
    if is_whole:
        span.set_status(Status(StatusCode.ERROR, reason))


# --- The way to the collector ---------------------------------------------------------------------


def resource(config: TelemetryConfig) -> Resource:
    """Return what the collector learns about this process."""
    return Resource.create(
        {"service.name": config.service_name, "service.version": version("fila-server")}
    )


def start(config: TelemetryConfig) -> Tracing:
    """Return tracing to the collector of the configuration; nobody waits for it."""
    # Its loggers tell of every attempt, and of every bad header that a stranger sends.
    logging.getLogger("opentelemetry").propagate = False
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    exporter = OTLPSpanExporter(endpoint=config.otlp_endpoint)
    return Tracing(config, _Sending(_Complaining(exporter, config.otlp_endpoint)))


class _Sending(BatchSpanProcessor):
    """Sends spans in batches, and stops in time when nobody takes them."""

    def __init__(self, exporter: SpanExporter) -> None:
        super().__init__(
            exporter,
            max_queue_size=_EXPORT_QUEUE,
            schedule_delay_millis=_EXPORT_DELAY_MS,
            max_export_batch_size=_EXPORT_BATCH,
        )
        self._exporter = exporter

    def shutdown(self) -> None:
        closing = threading.Thread(target=super().shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            self._exporter.shutdown()


class _Complaining(SpanExporter):
    """Says now and then that spans are lost, and once when they no longer are."""

    def __init__(
        self,
        exporter: SpanExporter,
        endpoint: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._clock = clock
        self._lost = 0
        self._silent_until_s = 0.0
        self._is_lost = False
        self._is_closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            if self._is_lost:
                self._is_lost = False
                log.info("spans reach %s again", self._endpoint)
            return result
        self._is_lost = True
        self._lost += len(spans)
        now_s = self._clock()
        if now_s >= self._silent_until_s:
            self._silent_until_s = now_s + _COMPLAINT_S
            log.warning(
                "%d spans could not be sent to %s (telemetry.otlp_endpoint); the broker goes on"
                " without them",
                self._lost,
                self._endpoint,
            )
            self._lost = 0
        return result

    def shutdown(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
