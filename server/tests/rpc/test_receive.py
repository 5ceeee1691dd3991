# SPDX-License-Identifier: AGPL-3.0-only
"""Receive: up to so many messages, waiting up to so long, possibly none."""

import threading
import time

import grpc

from fila.v1 import service_pb2 as sp
from server.tests.rpc.wire import Wire, eventually, refused


def test_without_a_wait_an_empty_queue_answers_at_once(wire: Wire) -> None:
    queue = wire.queue()
    assert wire.receive(queue, 10) == []
    assert wire.stats(queue).active_consumers == 0


def test_a_wait_ends_with_nothing(wire: Wire) -> None:
    began = time.monotonic()
    assert wire.receive(wire.queue(), 10, wait_ms=300) == []
    assert time.monotonic() - began >= 0.3


def test_a_wait_ends_with_the_first_message(wire: Wire) -> None:
    queue = wire.queue()
    request = sp.ReceiveRequest(queue=queue, max_messages=10, wait_ms=60_000)
    waiting = wire.service.Receive.future(request)
    eventually(lambda: wire.stats(queue).active_consumers == 1)
    message_id = wire.enqueue(queue)
    (message,) = waiting.result(timeout=30).messages
    assert message.id == message_id
    eventually(lambda: wire.stats(queue).active_consumers == 0)


def test_up_to_as_many_as_asked_for(wire: Wire) -> None:
    queue = wire.queue()
    ids = [wire.enqueue(queue) for _ in range(5)]
    assert [message.id for message in wire.receive(queue, 0)] == ids[:1]  # 0 means 1
    assert [message.id for message in wire.receive(queue, 3)] == ids[1:4]
    assert [message.id for message in wire.receive(queue, 3, wait_ms=60_000)] == ids[4:]


def test_everyone_who_waits_gets_one(wire: Wire) -> None:
    queue = wire.queue()
    request = sp.ReceiveRequest(queue=queue, wait_ms=60_000)
    waiting = [wire.service.Receive.future(request) for _ in range(10)]
    eventually(lambda: wire.stats(queue).active_consumers == 10)
    ids = {wire.enqueue(queue) for _ in range(10)}
    received = [call.result(timeout=30).messages for call in waiting]
    assert all(len(messages) == 1 for messages in received)
    assert {messages[0].id for messages in received} == ids


def test_a_caller_that_left_gets_nothing(wire: Wire) -> None:
    queue = wire.queue()
    request = sp.ReceiveRequest(queue=queue, wait_ms=60_000)
    waiting = wire.service.Receive.future(request)
    eventually(lambda: wire.stats(queue).active_consumers == 1)
    waiting.cancel()
    eventually(lambda: wire.stats(queue).active_consumers == 0)
    wire.enqueue(queue)
    (message,) = wire.receive(queue)
    assert message.metadata.attempt_count == 0


def test_a_deadline_that_passes_leases_nothing(wire: Wire) -> None:
    queue = wire.queue()
    request = sp.ReceiveRequest(queue=queue, wait_ms=60_000)
    refusal = refused(lambda: wire.service.Receive(request, timeout=0.3))
    assert refusal.status is grpc.StatusCode.DEADLINE_EXCEEDED
    eventually(lambda: wire.stats(queue).active_consumers == 0)
    wire.enqueue(queue)
    (message,) = wire.receive(queue)
    assert message.metadata.attempt_count == 0


def test_callers_that_leave_at_any_moment_lose_nothing(wire: Wire) -> None:
    """Cancels race with deliveries: a message is either received, or it is back at once or after
    its lease, and never gone."""
    queue = wire.queue(visibility_timeout_ms=500)
    stop = threading.Event()
    received: set[str] = set()

    def leave_early() -> None:
        request = sp.ReceiveRequest(queue=queue, max_messages=5, wait_ms=60_000)
        while not stop.is_set():
            call = wire.service.Receive.future(request)
            time.sleep(0.002)
            call.cancel()

    leavers = [threading.Thread(target=leave_early) for _ in range(2)]
    for thread in leavers:
        thread.start()
    ids = {wire.enqueue(queue) for _ in range(200)}
    stop.set()
    for thread in leavers:
        thread.join(30)
    while received != ids:
        for message in wire.receive(queue, 100, wait_ms=10_000, visibility_timeout_ms=60_000):
            received.add(message.id)
            wire.ack(queue, message)
    assert wire.stats(queue).depth == 0


def test_a_lease_lasts_as_long_as_the_call_asked(wire: Wire) -> None:
    queue = wire.queue()
    wire.enqueue(queue)
    (message,) = wire.receive(queue, visibility_timeout_ms=50)
    (again,) = wire.receive(queue, wait_ms=60_000)
    assert again.id == message.id
    assert (again.metadata.attempt_count, again.metadata.last_error) == (1, "lease expired")
