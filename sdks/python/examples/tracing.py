# SPDX-License-Identifier: AGPL-3.0-only
"""One trace across a queue: the consumer's span is a child of the producer's.

The client adds the trace context of the active span to the message's headers. The consumer reads it
with OpenTelemetry's own propagator. Needs `pip install fila-client[tracing] opentelemetry-sdk`.
"""

import os
import uuid

from opentelemetry.propagate import extract
from opentelemetry.sdk.trace import TracerProvider

import fila

tracer = TracerProvider().get_tracer("fila.examples.tracing")

with fila.Client(os.environ.get("FILA_ADDR", "127.0.0.1:5555")) as client:
    queue = f"tracing-{uuid.uuid4().hex[:8]}"
    client.create_queue(queue)

    with tracer.start_as_current_span(f"send {queue}") as sending:
        client.enqueue(queue, {}, b"hello")

    (message,) = client.receive(queue, wait_ms=2_000)
    parent = extract(message.headers)
    with tracer.start_as_current_span(f"process {queue}", context=parent) as processing:
        message.ack()

    sent, processed = sending.get_span_context(), processing.get_span_context()
    assert sent.trace_id == processed.trace_id, "the trace was broken"
    print(f"one trace for both sides: {sent.trace_id:032x}")
    client.delete_queue(queue)
