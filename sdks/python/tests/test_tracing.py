# SPDX-License-Identifier: AGPL-3.0-only
"""The active span travels with the message and with the call; nobody's own context is replaced.

And back: a message gives its sender's context, and a span around its handling.
"""

import subprocess
import sys

import pytest
from opentelemetry import trace as api
from opentelemetry.sdk import trace
from opentelemetry.sdk.trace import sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import fila
from fila import _wire
from fila.v1 import messages_pb2, service_pb2

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


# --- The way back ---------------------------------------------------------------------------------


@pytest.fixture
def ended(monkeypatch):
    """What returns the spans that have ended, of the provider that all programs share."""
    exporter = InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(api, "_TRACER_PROVIDER", provider)
    return exporter.get_finished_spans


def received(**headers):
    raw = messages_pb2.Message(id="m-1", headers=headers, payload=b"hush")
    raw.metadata.queue_id = "orders"
    raw.metadata.fairness_key = "acme"
    return fila.Message(raw)


def test_a_messages_context_is_its_senders():
    message = received(traceparent=OWN, tracestate="vendor=value")
    sender = api.get_current_span(fila.tracing.extract(message)).get_span_context()
    assert parent_of(api.NonRecordingSpan(sender)) == OWN
    assert sender.is_remote and sender.trace_state.get("vendor") == "value"


@pytest.mark.parametrize("headers", [{}, {"traceparent": "nonsense"}, {"traceparent": "0" * 55}])
def test_a_message_without_a_context_leaves_the_current_one(headers, tracer):
    with tracer.start_as_current_span("mine") as span:
        assert api.get_current_span(fila.tracing.extract(received(**headers))) is span


def test_processing_is_a_consumers_span_below_its_sender(ended):
    with fila.tracing.processing(received(traceparent=OWN)) as span:
        assert api.get_current_span() is span
    (found,) = ended()
    assert (found.name, found.kind) == ("process orders", api.SpanKind.CONSUMER)
    assert parent_of(api.NonRecordingSpan(found.parent)) == OWN
    assert [parent_of(api.NonRecordingSpan(link.context)) for link in found.links] == [OWN]
    assert dict(found.attributes) == {
        "messaging.system": "fila",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.message.id": "m-1",
        "fairness_key": "acme",
    }
    assert found.status.status_code is api.StatusCode.UNSET


def test_processing_inside_a_span_is_below_that_one_and_linked_to_its_sender(ended, tracer):
    with (
        tracer.start_as_current_span("mine") as mine,
        fila.tracing.processing(received(traceparent=OWN)),
    ):
        pass
    (found,) = ended()
    assert found.parent == mine.get_span_context()
    assert [parent_of(api.NonRecordingSpan(link.context)) for link in found.links] == [OWN]


@pytest.mark.parametrize("headers", [{}, {"traceparent": "nonsense"}])
def test_processing_a_message_without_a_context_begins_a_trace(headers, ended):
    with fila.tracing.processing(received(**headers)):
        pass
    (found,) = ended()
    assert found.parent is None and not found.links


def test_processing_that_fails_says_so_and_raises(ended):
    with pytest.raises(KeyError), fila.tracing.processing(received()):
        raise KeyError("x")
    (found,) = ended()
    assert found.status.status_code is api.StatusCode.ERROR
    assert found.attributes["error.type"] == "KeyError"


def test_a_span_that_the_sender_does_not_sample_is_not_recorded(ended):
    with fila.tracing.processing(received(traceparent=OWN[:-1] + "0")) as span:
        assert not span.is_recording()
    assert ended() == ()


def test_without_opentelemetry_processing_just_runs():
    program = """
import sys
sys.modules["opentelemetry"] = None  # as if it were not installed
import fila
from fila.v1 import messages_pb2
with fila.tracing.processing(fila.Message(messages_pb2.Message(id="m"))) as span:
    assert span is None
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
