# SPDX-License-Identifier: AGPL-3.0-only
"""One trace across a queue: producer, broker, consumer.

The client adds the trace context of the active span to the message's headers and to its calls, so
that the broker's spans are below it (see `[telemetry]` in the broker's configuration).
`fila.tracing.processing` is the consumer's span. Needs `pip install fila-client[tracing]
opentelemetry-sdk`.
"""

import os
import uuid

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import fila

trace.set_tracer_provider(TracerProvider())
tracer = trace.get_tracer("fila.examples.tracing")

with fila.Client(os.environ.get("FILA_ADDR", "127.0.0.1:5555")) as client:
    queue = f"tracing-{uuid.uuid4().hex[:8]}"
    client.create_queue(queue)

    with tracer.start_as_current_span(f"send {queue}") as sending:
        client.enqueue(queue, {}, b"hello")

    (message,) = client.receive(queue, wait_ms=2_000)
    with fila.tracing.processing(message) as processing:
        message.ack()

    sent, processed = sending.get_span_context(), processing.get_span_context()
    assert sent.trace_id == processed.trace_id, "the trace was broken"
    print(f"one trace for both sides: {sent.trace_id:032x}")
    client.delete_queue(queue)
