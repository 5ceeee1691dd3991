# SPDX-License-Identifier: AGPL-3.0-only
"""Limits that protect the broker: what is beyond them is refused, and everybody else goes on."""

from collections.abc import Callable
from typing import Any

import grpc

from fila.v1 import admin_pb2 as ap
from fila.v1 import service_pb2 as sp
from server.tests.broker_process import BrokerProcess
from server.tests.rpc.wire import Wire, eventually, refused

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
Start = Callable[..., tuple[BrokerProcess, Wire]]


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
    wire.call(ap.DeleteQueueRequest(queue=f"{kept}.dlq"))
    wire.call(ap.CreateQueueRequest(name="third"))


def test_more_calls_at_a_time_than_allowed_are_refused(start: Start) -> None:
    _, wire = start("[limits]\nmax_concurrent_rpcs = 4\n")
    queue = wire.queue()
    request = sp.ReceiveRequest(queue=queue, wait_ms=60_000)
    waiting = [wire.service.Receive.future(request) for _ in range(20)]
    eventually(lambda: sum(call.done() for call in waiting) >= 16)
    assert {outcome(call) for call in waiting if call.done()} == {"no reason"}
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
