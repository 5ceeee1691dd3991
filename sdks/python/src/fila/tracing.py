# SPDX-License-Identifier: AGPL-3.0-only
"""W3C trace context of the active span, for message headers and for gRPC metadata.

OpenTelemetry is not imported until a span is active, and a span can only be active where the
application has imported the API itself. So who does not trace pays neither for an import nor for a
dependency.
"""

import sys
from collections.abc import Mapping

TRACEPARENT = "traceparent"
_NOTHING: Mapping[str, str] = {}


def current() -> Mapping[str, str]:
    """`traceparent`, and `tracestate` if there is one, of the recording span; empty without one."""
    # The attribute is missing while another thread is still importing the module.
    current_span = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    if current_span is None or not current_span().is_recording():
        return _NOTHING
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier
