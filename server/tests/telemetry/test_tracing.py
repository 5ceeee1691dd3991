# SPDX-License-Identifier: AGPL-3.0-only
"""Spans: which calls and frames have one, whose child it is, what it says, and to whom."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import (
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from fila.v1 import admin_pb2, admin_pb2_grpc, service_pb2, service_pb2_grpc
from fila.v1.service_pb2 import AckBatchRequest, AckRequest, EnqueueBatchRequest, EnqueueRequest
from fila_server.config import Config, TelemetryConfig
from fila_server.runtime.engine import Engine
from fila_server.runtime.hooks import compile_hooks
from fila_server.storage.memory import MemoryStorage
from fila_server.telemetry import tracing
from fila_server.telemetry.tracing import LINKS_MAX, LOOKED_AT, Tracing
from fila_server.transport.server import Server
from server.tests.broker_process import BrokerProcess, free_port
from server.tests.rpc.wire import Wire
from server.tests.telemetry.collector import collecting

DEADLINE_S = 60.0
Start = Callable[..., tuple[BrokerProcess, Wire]]


def traceparent(trace: int = 1, span: int = 1, is_sampled: bool = True) -> str:
    return f"00-{trace:032x}-{span:016x}-0{int(is_sampled)}"


def context_of(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.parent.span_id if span.parent else 0


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


class Broker:
    """A broker in this process whose spans stay here."""

    def __init__(self, address: str, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter
        channel: Any = grpc.aio.insecure_channel(address)
        self.channel = channel
        self.service: Any = service_pb2_grpc.FilaServiceStub(channel)
        self.admin: Any = admin_pb2_grpc.FilaAdminStub(channel)

    async def call(self, request: Any, traced: str | None = None) -> Any:
        name = type(request).__name__.removesuffix("Request")
        stub = self.service if hasattr(self.service, name) else self.admin
        metadata = (("traceparent", traced),) if traced is not None else ()
        return await getattr(stub, name)(request, metadata=metadata, timeout=DEADLINE_S)

    def spans(self) -> list[ReadableSpan]:
        """Return the spans that ended since this was asked last."""
        spans = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return spans

    def span(self) -> ReadableSpan:
        (span,) = self.spans()
        return span

    async def receive(self, count: int = 1, traced: str | None = None) -> Any:
        request = service_pb2.ReceiveRequest(queue="q", max_messages=count)
        return (await self.call(request, traced)).messages


Run = Callable[[float], Any]


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    """Start a broker that samples a share of what comes without a decision."""
    ends: list[Callable[[], Any]] = []

    async def start(ratio: float = 1.0) -> Broker:
        exporter = InMemorySpanExporter()
        telemetry = TelemetryConfig(sample_ratio=ratio)
        config = Config()
        config = replace(config, server=replace(config.server, listen_addr="127.0.0.1:0"))
        engine = Engine(config, MemoryStorage(), compile_hooks(config.lua, config.limits), 1)
        engine.start()
        tracing = Tracing(telemetry, SimpleSpanProcessor(exporter))
        server = Server(config, engine, tracing)
        broker = Broker(await server.start(), exporter)

        async def end() -> None:
            await broker.channel.close()
            engine.close_consumers()
            await server.stop(None)
            engine.stop()

        ends.append(end)
        await broker.call(admin_pb2.CreateQueueRequest(name="q"))
        return broker

    yield start
    for end in ends:
        await end()


def message(traced: str | None = None, **fields: Any) -> EnqueueRequest:
    headers = {"secret": "hush"} | ({} if traced is None else {"traceparent": traced})
    return EnqueueRequest(queue="q", headers=headers, payload=b"hush", **fields)


async def test_an_enqueue_is_a_child_of_its_call_and_says_what_was_stored(run: Run) -> None:
    broker = await run()
    response = await broker.call(message(fairness_key="acme"), traceparent(7, 8))
    span = broker.span()
    assert (span.name, span.kind) == ("enqueue q", SpanKind.SERVER)
    assert context_of(span) == (7, 8) and linked(span) == []
    assert dict(span.attributes or {}) == {
        "messaging.system": "fila",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "q",
        "messaging.message.id": response.message_id,
        "queue_id": "q",
        "msg_id": response.message_id,
        "fairness_key": "acme",
    }
    assert "hush" not in span.to_json()


@pytest.mark.parametrize(
    ("metadata", "header", "parent", "links"),
    [
        (None, traceparent(1, 2), (1, 2), []),
        (traceparent(1, 2), traceparent(1, 2), (1, 2), []),
        (traceparent(1, 2), traceparent(3, 4), (1, 2), [(3, 4)]),
        ("00-nonsense", traceparent(3, 4), (3, 4), []),
        (traceparent(1, 2), "00-nonsense", (1, 2), []),
        (traceparent(1, 2), "x" * 60_000, (1, 2), []),
        (traceparent(1, 2), traceparent(0, 4), (1, 2), []),
    ],
)
async def test_the_calls_context_is_the_parent_and_a_messages_own_is_linked(
    run: Run,
    metadata: str | None,
    header: str,
    parent: tuple[int, int],
    links: list[tuple[int, int]],
) -> None:
    broker = await run(0.0)
    await broker.call(message(header), metadata)
    span = broker.span()
    assert context_of(span) == parent
    assert linked(span) == links


@pytest.mark.parametrize(
    ("metadata", "header"),
    [
        (traceparent(is_sampled=False), traceparent(2, 2)),
        (None, traceparent(is_sampled=False)),
        ("00-nonsense", traceparent(is_sampled=False)),
    ],
)
async def test_a_decision_against_a_trace_is_followed(
    run: Run, metadata: str | None, header: str
) -> None:
    broker = await run(1.0)
    await broker.call(message(header), metadata)
    assert broker.spans() == []


async def test_without_a_decision_the_ratio_decides(run: Run) -> None:
    never, always = await run(0.0), await run(1.0)
    for broker in (never, always):
        await broker.call(message("00-nonsense"))
        (received,) = await broker.receive()
        await broker.call(AckRequest(queue="q", message_id=received.id))
    assert never.spans() == []
    assert [span.name for span in always.spans()] == ["enqueue q", "deliver q", "ack q"]


async def test_a_delivery_is_linked_to_its_producer_and_settling_names_the_message(
    run: Run,
) -> None:
    broker = await run(0.0)
    await broker.call(message(traceparent(5, 6), fairness_key="acme"))
    broker.spans()
    (received,) = await broker.receive()
    span = broker.span()
    assert (span.name, span.kind) == ("deliver q", SpanKind.SERVER)
    assert context_of(span) == (5, 6) and linked(span) == [(5, 6)]
    about = dict(span.links[0].attributes or {})
    assert about == {"messaging.message.id": received.id, "fairness_key": "acme"}
    assert span.start_time == received.timestamps.leased_at.ToNanoseconds()
    fields = dict(span.attributes or {})
    assert fields["queue_id"] == "q" and fields["messaging.operation.type"] == "receive"
    assert fields["msg_id"] == received.id and fields["fairness_key"] == "acme"
    for request, name in (
        (service_pb2.NackRequest(queue="q", message_id=received.id, error="hush"), "nack q"),
        (AckRequest(queue="q", message_id=received.id), "ack q"),
    ):
        await broker.call(request, traceparent(7, 8))
        span = broker.span()
        assert span.name == name and context_of(span) == (7, 8)
        fields = dict(span.attributes or {})
        assert (fields["queue_id"], fields["msg_id"]) == ("q", received.id)
        assert fields["fairness_key"] == "acme" and fields["messaging.operation.type"] == "settle"
        assert span.status.status_code is StatusCode.UNSET
        assert "hush" not in span.to_json()
        await broker.receive(traced=traceparent(is_sampled=False))  # for the ack
    assert broker.spans() == []


async def test_a_batch_has_one_span_with_bounded_links(run: Run) -> None:
    broker = await run(0.0)
    batch = [message(traceparent(1, n)) for n in range(1, LOOKED_AT + 200)]
    await broker.call(EnqueueBatchRequest(messages=batch), traceparent(9, 9))
    span = broker.span()
    assert context_of(span) == (9, 9)
    assert linked(span) == [(1, n) for n in range(1, LINKS_MAX + 1)]
    assert span.dropped_links == 0
    fields = dict(span.attributes or {})
    assert fields["messaging.batch.message_count"] == len(batch)
    assert "msg_id" not in fields
    received = await broker.receive(len(batch))
    span = broker.span()
    assert len(span.links) == LINKS_MAX and context_of(span) == (1, 1)
    acks = [AckRequest(queue="q", message_id=it.id) for it in received]
    await broker.call(AckBatchRequest(acks=acks), traceparent(9, 9))
    span = broker.span()
    assert span.name == "ack q"
    assert dict(span.attributes or {})["messaging.batch.message_count"] == len(batch)


async def test_a_grant_is_told_with_what_is_under_it(run: Run) -> None:
    broker = await run(0.0)
    batch = [EnqueueRequest(queue="q", fairness_key="a") for _ in range(3)]
    await broker.call(EnqueueBatchRequest(messages=batch))
    received = await broker.receive(3)
    token = received[0].metadata.lease_token
    settlement = service_pb2.GrantSettlement(
        queue="q", lease_token=token, ack=service_pb2.GrantAck()
    )
    request = service_pb2.SettleGrantsRequest(settlements=[settlement])
    for count, is_refused in ((3, False), (0, True)):
        await broker.call(request, traceparent(9, 9))
        span = broker.span()
        assert span.name == "settle q" and context_of(span) == (9, 9)
        about = dict(span.attributes or {})
        assert about["messaging.batch.message_count"] == count
        assert about.get("fairness_key") == (None if is_refused else "a")
        assert (span.status.status_code is StatusCode.ERROR) == is_refused


async def test_messages_of_several_traces_share_a_root_with_links_to_the_sampled_ones(
    run: Run,
) -> None:
    broker = await run(0.0)
    contexts = [traceparent(1, 1), traceparent(2, 2, is_sampled=False), traceparent(3, 3), None]
    await broker.call(EnqueueBatchRequest(messages=[message(it) for it in contexts]))
    enqueued = broker.span()
    await broker.receive(4)
    delivered = broker.span()
    for span in (enqueued, delivered):
        assert linked(span) == [(1, 1), (3, 3)]
        assert span.parent is None
        assert span.context.trace_id not in (1, 2, 3)


async def test_a_stream_has_a_span_per_frame_whatever_opened_it(run: Run) -> None:
    broker = await run(0.0)
    for traced in (traceparent(1, 1), None, traceparent(2, 2), traceparent(3, 3, False)):
        await broker.call(message(traced))
    broker.spans()
    stream = broker.service.Consume(
        service_pb2.ConsumeRequest(queue="q"),
        metadata=(("traceparent", traceparent(9, 9, is_sampled=False)),),
    )
    for _ in range(4):
        assert len((await stream.read()).messages) == 1
    stream.cancel()
    spans = broker.spans()
    assert [(span.name, context_of(span)) for span in spans] == [
        ("deliver q", (1, 1)),
        ("deliver q", (2, 2)),
    ]


async def test_refusals_are_told_by_their_reason(run: Run) -> None:
    broker = await run(0.0)
    with pytest.raises(grpc.RpcError):
        await broker.call(AckRequest(queue="q", message_id="none"), traceparent())
    span = broker.span()
    assert span.status.status_code is StatusCode.ERROR
    assert dict(span.attributes or {})["error.type"] == "MESSAGE_NOT_FOUND"
    mixed = [message(), EnqueueRequest(queue="nowhere")]
    await broker.call(EnqueueBatchRequest(messages=mixed), traceparent())
    span = broker.span()
    fields = dict(span.attributes or {})
    assert span.name == "enqueue" and "queue_id" not in fields
    assert (fields["fila.refused_count"], fields["error.type"]) == (1, "QUEUE_NOT_FOUND")
    assert span.status.status_code is StatusCode.UNSET
    await broker.call(EnqueueBatchRequest(messages=mixed[1:]), traceparent())
    assert broker.span().status.status_code is StatusCode.ERROR


async def test_a_key_that_a_hook_chooses_is_told_at_delivery(run: Run) -> None:
    broker = await run(0.0)
    script = 'function on_enqueue(msg) return {fairness_key = "chosen"} end'
    config = admin_pb2.QueueConfig(on_enqueue_script=script)
    await broker.call(admin_pb2.CreateQueueRequest(name="hooked", config=config))
    request = message(traceparent(), fairness_key="asked")
    request.queue = "hooked"
    await broker.call(request)
    assert "fairness_key" not in dict(broker.span().attributes or {})
    await broker.call(service_pb2.ReceiveRequest(queue="hooked"))
    assert dict(broker.span().attributes or {})["fairness_key"] == "chosen"


async def test_each_request_of_a_pipeline_has_the_span_of_its_call(run: Run) -> None:
    broker = await run(1.0)
    stub: Any = broker.channel.stream_stream("/fila.v1.FilaService/Pipeline", None, None)
    pipeline = stub(metadata=(("traceparent", traceparent(9, 9)),))
    for n in (1, 2):
        batch = EnqueueBatchRequest(messages=[message(traceparent(1, n))])
        request = service_pb2.PipelineRequest(enqueue=batch)
        await pipeline.write(request.SerializeToString())
        await pipeline.read()
        # The message's sender, not who opened the stream.
        span = broker.span()
        assert span.name == "enqueue q" and context_of(span) == (1, n)
    request = service_pb2.PipelineRequest(ack=service_pb2.AckBatchRequest())
    await pipeline.write(request.SerializeToString())
    await pipeline.read()
    assert broker.span().name == "ack"
    await pipeline.done_writing()
    assert await pipeline.code() is grpc.StatusCode.OK


async def test_empty_answers_and_batches(run: Run) -> None:
    broker = await run(1.0)
    await broker.receive()
    assert broker.spans() == []
    await broker.call(EnqueueBatchRequest())
    assert broker.span().name == "enqueue"


# --- The way to the collector ---------------------------------------------------------------------


class Failing(SpanExporter):
    """An exporter that fails while it is told to."""

    is_failing = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.FAILURE if self.is_failing else SpanExportResult.SUCCESS


def test_lost_spans_are_told_once_a_minute(
    caplog: pytest.LogCaptureFixture, logged: Callable[[], list[logging.LogRecord]]
) -> None:
    caplog.set_level(logging.INFO)
    now_s = [1.0]
    exporter = Failing()
    complaining = tracing._Complaining(exporter, "http://c", lambda: now_s[0])
    for _ in range(3):
        complaining.export([ReadableSpan("a")] * 2)
    now_s[0] += 60.0
    complaining.export([ReadableSpan("a")])
    exporter.is_failing = False
    for _ in range(2):
        complaining.export([ReadableSpan("a")])
    texts = [row.getMessage() for row in logged()]
    assert [text.partition(" spans could")[0] for text in texts[:2]] == ["2", "5"]
    assert texts[2:] == ["spans reach http://c again"]


def test_spans_reach_a_collector_over_otlp(start: Start) -> None:
    with collecting() as (collector, endpoint):
        broker, wire = start(
            f'[telemetry]\notlp_endpoint = "{endpoint}"\nservice_name = "mine"\nsample_ratio = 0'
        )
        queue = wire.queue()
        headers = {"traceparent": traceparent(5, 6)}
        request = EnqueueRequest(queue=queue, headers=headers, payload=b"hush")
        wire.call(request, metadata=(("traceparent", traceparent(5, 6)),))
        wire.enqueue(queue)  # without a decision
        first, _ = wire.receive(queue, 2)
        wire.call(AckRequest(queue=queue, message_id=first.id))
        enqueued, delivered = collector.wait_for(f"enqueue {queue}", f"deliver {queue}")
        for span in (enqueued, delivered):
            assert int.from_bytes(span.trace_id) == 5
            assert int.from_bytes(span.parent_span_id) == 6
        assert [int.from_bytes(link.span_id) for link in delivered.links] == [6]
        assert collector.resources[0]["service.name"] == "mine"
        assert broker.terminate() == 0
        assert len(collector.spans) == 2
        assert not any(b"hush" in span.SerializeToString() for span in collector.spans)


def test_the_last_spans_leave_when_the_broker_stops(start: Start) -> None:
    with collecting() as (collector, endpoint):
        broker, wire = start(f'[telemetry]\notlp_endpoint = "{endpoint}"\nsample_ratio = 1')
        queue = wire.queue()
        for _ in range(100):
            wire.enqueue(queue)
        assert broker.terminate() == 0
        assert [span.name for span in collector.spans] == [f"enqueue {queue}"] * 100


def test_traces_can_be_off_with_a_collector(start: Start) -> None:
    with collecting() as (collector, endpoint):
        settings = f'otlp_endpoint = "{endpoint}"\ntraces = false\nsample_ratio = 1'
        broker, wire = start(f"[telemetry]\n{settings}")
        wire.enqueue(wire.queue())
        assert broker.terminate() == 0
        assert collector.spans == []


def test_a_dead_collector_stops_nobody(start: Start) -> None:
    broker, wire = start(f'[telemetry]\notlp_endpoint = "http://127.0.0.1:{free_port()}"')
    queue = wire.queue()
    for _ in range(20):
        batch = [EnqueueRequest(queue=queue, payload=b"x")] * 300
        wire.call(EnqueueBatchRequest(messages=batch))
        received = wire.receive(queue, 300)
        assert len(received) == 300
        acks = [AckRequest(queue=queue, message_id=it.id) for it in received]
        wire.call(AckBatchRequest(acks=acks))
    assert broker.terminate() == 0
    log = broker.log()
    assert "opentelemetry" not in log and "Traceback" not in log
    assert log.count("could not be sent") <= 2
