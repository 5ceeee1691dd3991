# SPDX-License-Identifier: AGPL-3.0-only
"""Streams: credit, frames, disconnects. A stream gets what it asked for and never more."""

import queue as queues
import threading
from typing import Any

from fila.v1 import admin_pb2 as ap
from fila.v1 import service_pb2 as sp
from fila.v1.messages_pb2 import Message
from server.tests.broker_process import BrokerProcess
from server.tests.rpc.wire import Wire, eventually, refused

KIB = 1024


class Reader:
    """Reads a stream on a thread of its own, frame by frame."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.frames: list[list[Message]] = []
        self._arrived: queues.SimpleQueue[Message] = queues.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for frame in self.stream:
                self.frames.append(list(frame.messages))
                for message in frame.messages:
                    self._arrived.put(message)
        except Exception:
            pass  # cancelled

    def take(self, count: int = 1) -> list[Message]:
        return [self._arrived.get(timeout=30) for _ in range(count)]

    def is_empty(self) -> bool:
        return self._arrived.empty()

    def close(self) -> None:
        self.stream.cancel()
        self._thread.join(30)
        assert not self._thread.is_alive()


def fill(wire: Wire, queue: str, count: int, payload: bytes = b"x") -> None:
    item = sp.EnqueueRequest(queue=queue, payload=payload)
    wire.call(sp.EnqueueBatchRequest(messages=[item] * count))


def test_a_waiting_stream_gets_what_is_enqueued(wire: Wire) -> None:
    queue = wire.queue()
    reader = Reader(wire.consume(queue))
    eventually(lambda: wire.stats(queue).active_consumers == 1)
    for n in range(3):
        message_id = wire.enqueue(queue, b"%d" % n)
        (message,) = reader.take()
        assert (message.id, message.payload) == (message_id, b"%d" % n)
        wire.ack(queue, message)
    reader.close()
    eventually(lambda: wire.stats(queue).active_consumers == 0)


def test_an_open_stream_of_an_empty_queue_says_so_at_once(wire: Wire) -> None:
    """A client that waits for the response's headers would hang otherwise."""
    stream = wire.consume(wire.queue(), timeout=60)
    assert stream.initial_metadata() is not None
    stream.cancel()
    refusal = refused(lambda: next(wire.consume("nobody")))
    assert refusal.reason == "QUEUE_NOT_FOUND"


def test_frames_hold_one_message_unless_more_are_asked_for(wire: Wire) -> None:
    for max_batch in (0, 1):
        queue = wire.queue()
        fill(wire, queue, 20)
        reader = Reader(wire.consume(queue, max_batch=max_batch))
        reader.take(20)
        reader.close()
        assert [len(frame) for frame in reader.frames] == [1] * 20


def test_frames_hold_as_many_messages_as_asked_for(wire: Wire) -> None:
    queue = wire.queue()
    fill(wire, queue, 100)
    reader = Reader(wire.consume(queue, max_batch=30))
    reader.take(100)
    reader.close()
    assert [len(frame) for frame in reader.frames] == [30, 30, 30, 10]


def test_credit_is_never_exceeded_and_comes_back(wire: Wire) -> None:
    queue = wire.queue()
    fill(wire, queue, 50)
    reader = Reader(wire.consume(queue, max_in_flight=3, max_batch=10))
    held = reader.take(3)

    def settled() -> bool:
        stats = wire.stats(queue)
        assert stats.in_flight <= 3
        return stats.in_flight == 3 and stats.depth == 47

    eventually(settled)
    assert reader.is_empty()
    for _ in range(5):
        wire.ack(queue, held.pop())
        held += reader.take(1)
        assert wire.stats(queue).in_flight == 3
    wire.nack(queue, held.pop())  # gives credit back too
    held += reader.take(1)
    (result,) = wire.call(
        sp.NackBatchRequest(
            nacks=[sp.NackRequest(queue=queue, message_id=held.pop().id, retry_after_ms=60_000)]
        )
    ).results
    assert not result.HasField("error")
    held += reader.take(1)
    assert wire.stats(queue).in_flight == 3 and reader.is_empty()
    reader.close()


def test_an_expired_lease_gives_credit_back(wire: Wire) -> None:
    queue = wire.queue()
    wire.enqueue(queue, b"forgotten")
    reader = Reader(wire.consume(queue, max_in_flight=1, visibility_timeout_ms=50))
    attempts = [message.metadata.attempt_count for message in reader.take(4)]
    assert attempts == [0, 1, 2, 3]
    reader.close()


def test_default_credit(wire: Wire) -> None:
    queue = wire.queue()
    fill(wire, queue, 300)
    reader = Reader(wire.consume(queue, max_batch=100))
    reader.take(256)
    eventually(lambda: wire.stats(queue).in_flight == 256)
    assert reader.is_empty()
    assert wire.stats(queue).consumer_credit == 0
    reader.close()


def test_streams_share_a_queue(wire: Wire) -> None:
    queue = wire.queue()
    readers = [Reader(wire.consume(queue, max_in_flight=5)) for _ in range(3)]
    eventually(lambda: wire.stats(queue).active_consumers == 3)
    fill(wire, queue, 15)
    ids = [message.id for reader in readers for message in reader.take(5)]
    assert len(set(ids)) == 15
    for reader in readers:
        reader.close()


def test_a_stream_that_does_not_read_leases_little_and_blocks_nobody(wire: Wire) -> None:
    queue = wire.queue()
    for _ in range(5):
        fill(wire, queue, 10, bytes(KIB * KIB))  # more than gRPC buffers for a stream
    stuck = wire.consume(queue, max_in_flight=50)
    next(stuck)
    seen: list[int] = []

    def is_stuck() -> bool:
        seen.append(wire.stats(queue).in_flight)
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    eventually(is_stuck)
    leased = seen[-1]
    assert 1 < leased < 50
    (message,) = wire.receive(queue)
    wire.ack(queue, message)
    stuck.cancel()
    eventually(lambda: wire.stats(queue).active_consumers == 0)
    # What had not left goes back at once. What had left waits for its lease to end.
    eventually(lambda: wire.stats(queue).in_flight < leased)
    stats = wire.stats(queue)
    assert stats.depth + stats.in_flight == 49
    assert stats.counters.expired == 0
    while messages := wire.receive(queue, 3):
        assert all(message.metadata.attempt_count == 0 for message in messages)


def leave_while_a_frame_is_written(wire: Wire) -> None:
    queue = wire.queue()
    for _ in range(4):
        fill(wire, queue, 10, bytes(300_000))
    stream = wire.consume(queue, max_batch=10)
    next(stream)
    eventually(lambda: wire.stats(queue).in_flight >= 30)
    stream.cancel()
    eventually(lambda: wire.stats(queue).active_consumers == 0)


def test_clients_that_leave_are_nothing_to_log(broker: BrokerProcess, wire: Wire) -> None:
    for _ in range(6):
        leave_while_a_frame_is_written(wire)
    assert "Traceback" not in broker.log()


def test_deleting_a_queue_ends_its_streams(wire: Wire) -> None:
    queue = wire.queue()
    stream = wire.consume(queue)
    eventually(lambda: wire.stats(queue).active_consumers == 1)
    wire.call(ap.DeleteQueueRequest(queue=queue))
    refusal = refused(lambda: next(stream))
    assert refusal.reason == "QUEUE_NOT_FOUND"
    assert queue in refusal.text


def test_a_lease_lasts_as_long_as_the_stream_asked(wire: Wire) -> None:
    queue = wire.queue(visibility_timeout_ms=1000)
    wire.enqueue(queue)
    reader = Reader(wire.consume(queue, visibility_timeout_ms=600_000))
    (message,) = reader.take()
    times = message.timestamps
    assert times.lease_expires_at.ToSeconds() - times.leased_at.ToSeconds() == 600
    reader.close()


def test_frames_stay_below_the_size_that_every_client_accepts(wire: Wire) -> None:
    """What a delivery adds to a small message counts too: keys, and what the last nack said."""
    queue = wire.queue()
    fill(wire, queue, 1500)
    failed = wire.receive(queue, 1500)
    nacks = [
        sp.NackRequest(queue=queue, message_id=message.id, error="e" * 5000) for message in failed
    ]
    wire.call(sp.NackBatchRequest(nacks=nacks))
    seen = 0
    while seen < 1500:
        response = wire.call(sp.ReceiveRequest(queue=queue, max_messages=1500, wait_ms=1000))
        assert 0 < response.ByteSize() < 4 * KIB * KIB
        assert all(len(m.metadata.last_error) == 4096 for m in response.messages)
        seen += len(response.messages)


def test_backpressure_keeps_no_more_of_an_error_than_a_failure_does(wire: Wire) -> None:
    queue = wire.queue()
    wire.enqueue(queue)
    (message,) = wire.receive(queue)
    wire.nack(queue, message, error="é" * 5000, retry_after_ms=0)
    (again,) = wire.receive(queue)
    assert again.metadata.last_error == "é" * 2048
    assert again.metadata.attempt_count == 0


def test_who_leaves_with_a_frame_keeps_what_it_leased(wire: Wire) -> None:
    queue = wire.queue(visibility_timeout_ms=60_000)
    for n in range(200):
        wire.enqueue(queue, b"%d" % n)
        stream = wire.consume(queue)
        (message,) = next(stream).messages
        stream.cancel()
        assert message.payload == b"%d" % n
        wire.ack(queue, message)
    stats = wire.stats(queue)
    assert (stats.depth, stats.in_flight, stats.counters.delivered) == (0, 0, 200)
