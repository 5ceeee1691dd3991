# SPDX-License-Identifier: AGPL-3.0-only
"""Limits that protect the broker: what is beyond them is refused, and everybody else goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from fila.v1 import admin_pb2 as ap
from fila.v1 import service_pb2 as sp
from server.tests.broker_process import BrokerProcess
from server.tests.rpc.http2 import Connection
from server.tests.rpc.wire import Wire, eventually, refused

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
INVALID = grpc.StatusCode.INVALID_ARGUMENT
Start = Callable[..., tuple[BrokerProcess, Wire]]


def memory_mib(broker: BrokerProcess) -> int:
    """Return what a broker holds in memory."""
    assert broker.process is not None
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024


def outcome(call: Any) -> str:
    """Return the reason that a call under way was refused for, or an empty text."""
    try:
        call.result(timeout=60)
    except grpc.RpcError as error:
        failed: Any = error
        assert failed.code() is EXHAUSTED, failed
        trailers = dict(failed.trailing_metadata() or ())
        return str(trailers.get("fila-reason", "no reason"))
    return ""


def test_a_giant_request_is_refused_and_the_connection_lives(wire: Wire) -> None:
    queue = wire.queue()
    item = sp.EnqueueRequest(queue=queue, payload=bytes(3 * 1024 * 1024))
    refusal = wire.refusal(sp.EnqueueBatchRequest(messages=[item] * 6))
    assert refusal.status is EXHAUSTED
    assert wire.stats(queue).depth == 0
    results = wire.call(sp.EnqueueBatchRequest(messages=[item] * 5)).results
    assert all(result.message_id for result in results)


@pytest.mark.parametrize("method", ["FilaService/Consume", "FilaService/Receive"])
def test_what_may_last_is_asked_for_in_few_words(wire: Wire, method: str) -> None:
    """A stream holds its request for as long as it is open."""
    call = wire.channel.unary_stream(f"/fila.v1.{method}", None, None)
    unknown = b"\x7a\x80\x80\x40" + bytes(1024 * 1024)  # field 15, of a megabyte
    refusal = refused(lambda: next(call(unknown, timeout=60)))
    assert (refusal.status, refusal.reason) == (INVALID, "MESSAGE_TOO_LARGE")


def test_giant_metadata_is_refused_and_the_connection_lives(wire: Wire) -> None:
    queue = wire.queue()
    request = sp.EnqueueRequest(queue=queue)
    refusal = wire.refusal(request, metadata=(("x-large", "v" * 40_000),))
    assert refusal.status is EXHAUSTED
    wire.call(request, metadata=(("x-fine", "v" * 8000),))
    assert wire.stats(queue).depth == 1


def test_more_requests_than_the_inbox_holds_are_refused(start: Start) -> None:
    _, wire = start("[scheduler]\ninbox_max = 3\n")
    queue = wire.queue()
    batch = sp.EnqueueBatchRequest(
        messages=[sp.EnqueueRequest(queue=queue, payload=bytes(100))] * 2000
    )
    stored = refusals = 0
    while not refusals:
        calls = [wire.service.EnqueueBatch.future(batch) for _ in range(50)]
        outcomes = [outcome(call) for call in calls]
        assert set(outcomes) <= {"", "OVERLOADED"}
        stored += outcomes.count("")
        refusals += outcomes.count("OVERLOADED")
    # Refused means not stored, and what was not refused is there.
    assert wire.stats(queue).depth == stored * 2000
    assert wire.enqueue(queue)


@pytest.mark.serial
def test_more_bytes_than_the_inbox_holds_are_refused_and_small_calls_pass(start: Start) -> None:
    _, wire = start("[scheduler]\ninbox_bytes = 16777216\n")
    queue = wire.queue()
    item = sp.EnqueueRequest(queue=queue, payload=bytes(3 * 1024 * 1024))
    batch = sp.EnqueueBatchRequest(messages=[item] * 5)
    stored = refusals = rounds = 0
    while not refusals and rounds < 20:
        rounds += 1
        others = [Wire(wire.address) for _ in range(8)]
        calls = [other.service.EnqueueBatch.future(batch) for other in others]
        wire.enqueue(queue)
        outcomes = [outcome(call) for call in calls]
        assert set(outcomes) <= {"", "OVERLOADED"}
        stored += outcomes.count("")
        refusals += outcomes.count("OVERLOADED")
        for other in others:
            other.close()
    assert refusals
    # Refused means not stored, and what was not refused is there.
    assert wire.stats(queue).depth == stored * 5 + rounds


@pytest.mark.serial
def test_a_burst_of_calls_is_answered_and_never_cancelled(start: Start) -> None:
    """gRPC answers CANCELLED for calls that nobody has seen, once too many of them wait."""
    _, wire = start()
    queue = wire.queue()
    others = [Wire(wire.address) for _ in range(4)]
    request = sp.EnqueueRequest(queue=queue)
    calls = [other.service.Enqueue.future(request) for _ in range(900) for other in others]
    assert [outcome(call) for call in calls].count("") == 3600
    assert wire.stats(queue).depth == 3600
    for other in others:
        other.close()


@pytest.mark.serial
def test_streams_that_are_reset_at_once_leave_the_others_alone(start: Start) -> None:
    _, wire = start()
    queue = wire.queue()
    with Connection(wire.address) as connection:
        for n in range(5000):
            connection.reset(connection.call("/fila.v1.FilaService/Enqueue"))
            if n % 500 == 0:
                connection.pump(0.001)
                assert wire.enqueue(queue)
    assert wire.enqueue(queue)


@pytest.mark.serial
def test_bodies_that_stop_halfway_hold_little_memory(start: Start) -> None:
    broker, wire = start()
    queue = wire.queue()
    before = memory_mib(broker)
    size = 15 * 1024 * 1024
    connections = [Connection(broker.address) for _ in range(60)]
    rest = {}
    for connection in connections:
        stream = connection.call("/fila.v1.FilaService/EnqueueBatch")
        connection.begin_message(stream, size)
        rest[connection, stream] = size - 1  # the last byte never comes
    still = 0
    while still < 20:  # rounds in which nothing more could be sent
        sent = 0
        for (connection, stream), left in rest.items():
            if stream not in connection.ended and not connection.is_closed:
                part = connection.send(stream, left)
                rest[connection, stream] -= part
                sent += part
                connection.pump(0.001)
        still = 0 if sent else still + 1
    assert wire.enqueue(queue)
    refused_ones = sum(bool(connection.ended) for connection in connections)
    assert refused_ones >= 40
    assert memory_mib(broker) - before < 500  # 900 MiB would have come in
    for connection in connections:
        connection.close()
    eventually(lambda: memory_mib(broker) - before < 100)


def test_more_streams_than_allowed_are_refused(start: Start) -> None:
    _, wire = start("[limits]\nmax_consumers = 2\n")
    queue = wire.queue()
    streams = [wire.consume(queue) for _ in range(2)]
    eventually(lambda: wire.stats(queue).active_consumers == 2)
    refusal = refused(lambda: next(wire.consume(queue)))
    assert (refusal.status, refusal.reason) == (EXHAUSTED, "OVERLOADED")
    assert "2 consumers" in refusal.text
    streams.pop().cancel()
    eventually(lambda: wire.stats(queue).active_consumers == 1)
    streams.append(wire.consume(queue))
    eventually(lambda: wire.stats(queue).active_consumers == 2)
    for stream in streams:
        stream.cancel()


def test_more_queues_than_allowed_are_refused(start: Start) -> None:
    _, wire = start("[limits]\nmax_queues = 5\n")
    wire.queue()
    kept = wire.queue()
    refusal = wire.refusal(ap.CreateQueueRequest(name="third"))
    assert (refusal.status, refusal.reason) == (EXHAUSTED, "OVERLOADED")
    assert "4 queues" in refusal.text and "5" in refusal.text
    wire.call(ap.DeleteQueueRequest(queue=kept))
    wire.call(ap.CreateQueueRequest(name="third"))


def test_more_calls_at_a_time_than_allowed_are_refused(start: Start) -> None:
    _, wire = start("[limits]\nmax_concurrent_rpcs = 4\n")
    queue = wire.queue()
    request = sp.ReceiveRequest(queue=queue, wait_ms=60_000)
    waiting = [wire.service.Receive.future(request) for _ in range(20)]
    eventually(lambda: sum(call.done() for call in waiting) >= 16)
    # grpcio refuses by itself, and gives no reason.
    assert {outcome(call) for call in waiting if call.done()} <= {"no reason", "OVERLOADED"}
    for call in waiting:
        call.cancel()

    def is_free() -> bool:
        try:
            return bool(wire.enqueue(queue))
        except grpc.RpcError:
            return False

    eventually(is_free)


def test_a_broker_short_of_disk_takes_no_messages_but_lets_them_be_consumed(start: Start) -> None:
    broker, wire = start()
    queue = wire.queue()
    wire.enqueue(queue)
    assert broker.terminate() == 0
    broker.start(environment={"FILA_STORAGE__MIN_FREE_BYTES": str(1 << 40)})
    wire = Wire(broker.address)
    refusal = wire.refusal(sp.EnqueueRequest(queue=queue))
    assert (refusal.status, refusal.reason) == (EXHAUSTED, "DISK_FULL")
    (message,) = wire.receive(queue)
    wire.ack(queue, message)
    assert wire.stats(queue).depth == 0
    wire.close()
