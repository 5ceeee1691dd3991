# SPDX-License-Identifier: AGPL-3.0-only
"""The active span travels with the message and with the call; nobody's own context is replaced."""

import subprocess
import sys

import pytest
from opentelemetry.sdk import trace
from opentelemetry.sdk.trace import sampling
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import fila
from fila import _wire
from fila.v1 import service_pb2

OWN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def tracer():
    return trace.TracerProvider().get_tracer("test")


def parent_of(span):
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def headers_sent(broker):
    return [
        dict(message.headers)
        for call in broker.calls("EnqueueBatch")
        for message in call.request.messages
    ]


def test_the_active_span_is_in_headers_and_metadata(broker, client, tracer):
    with tracer.start_as_current_span("produce") as span:
        client.enqueue("orders", {"a": "b"}, b"x")
        client.enqueue_many([fila.EnqueueMessage("orders")] * 2)
        client.ack("orders", "m-1")
    expected = parent_of(span)
    assert headers_sent(broker) == [
        {"a": "b", "traceparent": expected},
        {"traceparent": expected},
        {"traceparent": expected},
    ]
    assert {call.metadata["traceparent"] for call in broker.seen} == {expected}


@pytest.mark.asyncio
async def test_the_active_span_is_in_headers_and_metadata_of_async_calls(broker, tracer, wire):
    broker.script("Consume", lambda request, context: iter([wire.frame("a")]))
    async with fila.AsyncClient(broker.target, api_key="k") as client:
        with tracer.start_as_current_span("produce") as span:
            await client.enqueue("orders")
            await anext(client.consume("orders"))
    assert headers_sent(broker) == [{"traceparent": parent_of(span)}]
    for call in broker.seen[:2]:
        assert call.metadata["traceparent"] == parent_of(span)
        assert call.metadata["authorization"] == "Bearer k"


def test_tracestate_travels_too(broker, client, tracer):
    carrier = {"traceparent": OWN, "tracestate": "vendor=value"}
    context = TraceContextTextMapPropagator().extract(carrier)
    with tracer.start_as_current_span("produce", context=context):
        client.enqueue("orders")
    (headers,) = headers_sent(broker)
    assert headers["tracestate"] == broker.seen[0].metadata["tracestate"] == "vendor=value"
    assert headers["traceparent"].split("-")[1] == OWN.split("-")[1]


def test_a_traceparent_of_the_callers_own_is_untouched(broker, client, tracer):
    with tracer.start_as_current_span("produce"):
        client.enqueue("orders", {"traceparent": OWN})
        client.enqueue("orders", {"traceparent": "nonsense", "tracestate": "mine=1"})
    assert headers_sent(broker) == [
        {"traceparent": OWN},
        {"traceparent": "nonsense", "tracestate": "mine=1"},
    ]


def test_the_callers_mapping_is_not_changed(client, tracer):
    headers = {"a": "b"}
    with tracer.start_as_current_span("produce"):
        client.enqueue("orders", headers)
    assert headers == {"a": "b"}


def test_without_a_recording_span_nothing_is_added(broker, client):
    client.enqueue("orders")
    dropped = trace.TracerProvider(sampler=sampling.ALWAYS_OFF).get_tracer("test")
    with dropped.start_as_current_span("dropped"):
        client.enqueue("orders")
    assert headers_sent(broker) == [{}, {}]
    assert all("traceparent" not in call.metadata for call in broker.seen)


def test_without_opentelemetry_nothing_is_added_and_nothing_breaks(broker):
    program = f"""
import sys
sys.modules["opentelemetry"] = None  # as if it were not installed
import fila
with fila.Client({broker.target!r}) as client:
    client.enqueue("orders", {{"a": "b"}})
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
    assert headers_sent(broker) == [{"a": "b"}]


def test_importing_the_client_does_not_import_opentelemetry():
    program = "import fila, sys; sys.exit('opentelemetry' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_each_message_of_a_shared_request_keeps_its_own_trace():
    first = _wire.enqueue_item(fila.EnqueueMessage("orders"), {"traceparent": "a"})
    second = _wire.enqueue_item(fila.EnqueueMessage("orders"), {})
    request = service_pb2.EnqueueBatchRequest.FromString(_wire.join([first, second]))
    assert [dict(m.headers) for m in request.messages] == [{"traceparent": "a"}, {}]
