# SPDX-License-Identifier: AGPL-3.0-only
"""W3C trace context of the active span, for message headers and gRPC metadata, and the way back:
from a message to the context that sent it, and to a span around its handling.

OpenTelemetry is not imported until the application has imported its API: nobody else can have a
span or want one. So who does not trace pays neither for an import nor for a dependency.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from fila.message import Message

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
_NOTHING: Mapping[str, str] = {}


def current() -> Mapping[str, str]:
    """`traceparent`, and `tracestate` if there is one, of the recording span; empty without one."""
    api = _api()
    if api is None or not api.get_current_span().is_recording():
        return _NOTHING
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier


def extract(message: "Message") -> "Context":
    """The current context with the span that sent the message in it, for use with OpenTelemetry.

    It is the current context as it is if the message carries none. Needs `opentelemetry-api`.
    """
    from opentelemetry.context import get_current

    return _extracted(message, get_current())


def _extracted(message: "Message", into: "Context") -> "Context":
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers = message.headers
    carrier = {name: headers[name] for name in (TRACEPARENT, TRACESTATE) if name in headers}
    return TraceContextTextMapPropagator().extract(carrier, into)


@contextmanager
def processing(message: "Message") -> Iterator[Optional["Span"]]:
    """Handle a message inside a consumer's span, which is active meanwhile.

    It is linked to the span that sent the message, and is its child unless a span is active
    already. An exception ends it as failed and is raised. Without OpenTelemetry it is None.
    """
    api = _api()
    if api is None:
        yield None
        return
    from opentelemetry.context import Context

    sender = api.get_current_span(_extracted(message, Context())).get_span_context()
    has_active = api.get_current_span().get_span_context().is_valid
    with api.get_tracer("fila").start_as_current_span(
        f"process {message.queue}",
        context=None if has_active else extract(message),
        kind=api.SpanKind.CONSUMER,
        attributes=_attributes(message),
        links=[api.Link(sender)] if sender.is_valid else (),
    ) as span:
        try:
            yield span
        except Exception as error:
            span.set_attribute("error.type", type(error).__qualname__)
            raise


@contextmanager
def processing_all(messages: "Sequence[Message]") -> Iterator[Optional["Span"]]:
    """As `processing`; for a batch one span that is linked to all of its senders."""
    if len(messages) == 1:
        with processing(messages[0]) as span:
            yield span
        return
    api = _api()
    if api is None:
        yield None
        return
    from opentelemetry.context import Context

    contexts = (_extracted(message, Context()) for message in messages)
    senders = [api.get_current_span(it).get_span_context() for it in contexts]
    shared = {
        name: value
        for name, value in _attributes(messages[0]).items()
        if name not in ("messaging.message.id", "fairness_key")
    }
    with api.get_tracer("fila").start_as_current_span(
        f"process {messages[0].queue}",
        kind=api.SpanKind.CONSUMER,
        attributes={**shared, "messaging.batch.message_count": len(messages)},
        links=[api.Link(sender) for sender in senders if sender.is_valid],
    ) as span:
        try:
            yield span
        except Exception as error:
            span.set_attribute("error.type", type(error).__qualname__)
            raise


def _api() -> Any:
    """OpenTelemetry's API if the application has imported it."""
    api = sys.modules.get("opentelemetry.trace")
    # An attribute is missing while another thread is still importing the module.
    return api if hasattr(api, "use_span") else None


def _attributes(message: "Message") -> dict[str, str]:
    return {
        "messaging.system": "fila",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": message.queue,
        "messaging.message.id": message.id,
        "fairness_key": message.fairness_key,
    }
