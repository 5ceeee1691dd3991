# SPDX-License-Identifier: AGPL-3.0-only
"""Stopping and starting again: nothing that was promised is forgotten."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import grpc
import pytest

import fila
from fila import Client, EnqueueMessage
from fila.v1.service_pb2 import EnqueueRequest
from server.tests.broker_process import COMMAND, BrokerProcess
from server.tests.rpc.wire import Wire, eventually

MakeBroker = Callable[..., BrokerProcess]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_broker_cleanly(make_broker: MakeBroker, number: int) -> None:
    broker = make_broker()
    broker.start()
    broker.signal(number)
    assert broker.wait() == 0
    assert "stopped" in broker.log() and "Traceback" not in broker.log()


# Starts a broker whose standard input is a pipe that nobody writes to, as a test suite does.
HOLDER = """
import subprocess, sys
command = [sys.executable, "-m", "fila_server.main", "--stop-at-eof", *sys.argv[1:]]
sys.exit(subprocess.Popen(command, stdin=subprocess.PIPE).wait())
"""


def test_a_broker_does_not_outlive_a_killed_holder_of_its_input(make_broker: MakeBroker) -> None:
    broker = make_broker()
    broker.start([sys.executable, "-c", HOLDER])
    with Client(broker.address, timeout=30) as client:
        client.create_queue("q")
    broker.signal(signal.SIGKILL)
    assert broker.wait() == -signal.SIGKILL
    eventually(lambda: "stopped" in broker.log())


def test_a_broker_that_stops_with_its_input_obeys_signals(make_broker: MakeBroker) -> None:
    broker = make_broker()
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "w"):
        broker.start([*COMMAND, "--stop-at-eof"], stdin=read)
        assert broker.terminate() == 0


def test_a_stop_under_load_keeps_every_promise(make_broker: MakeBroker) -> None:
    broker = make_broker()
    broker.start()
    confirmed: set[str] = set()
    acked: set[str] = set()
    strange: list[BaseException] = []
    lock = threading.Lock()

    def produce(client: Client) -> None:
        while True:
            for result in client.enqueue_many([EnqueueMessage("q", None, b"x")] * 20):
                if result.error is not None:
                    raise result.error
                with lock:
                    confirmed.add(result.message_id)

    def consume(client: Client) -> None:
        while True:
            messages = client.receive("q", 10, wait_ms=1000)
            for message, error in zip(messages, client.ack_many(messages), strict=True):
                if error is not None:
                    raise error
                with lock:
                    acked.add(message.id)

    def guard(job: Callable[[Client], None], client: Client) -> None:
        try:
            job(client)
        except (fila.UnavailableError, fila.CancelledError):
            pass  # gRPC cancels calls that come while a server stops
        except BaseException as error:
            strange.append(error)

    client = Client(broker.address, timeout=30)
    client.create_queue("q")
    jobs = [produce, produce, produce, consume]
    threads = [threading.Thread(target=guard, args=(job, client)) for job in jobs]
    for thread in threads:
        thread.start()
    while len(confirmed) < 500:
        time.sleep(0.01)
    assert broker.terminate() == 0
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    client.close()
    assert not strange, strange
    assert "Traceback" not in broker.log()

    broker.start()
    with Client(broker.address, timeout=30) as client:
        stats = client.stats("q")
        left = {row.message.id for page in _pages(client, "q") for row in page.messages}
        assert len(left) == stats.depth + stats.in_flight
    assert confirmed - acked <= left
    assert not acked & left
    assert broker.terminate() == 0


def _pages(client: Client, queue: str) -> list[fila.PeekPage]:
    pages = [client.peek(queue, 1000)]
    while pages[-1].next_position:
        pages.append(client.peek(queue, 1000, from_position=pages[-1].next_position))
    return pages


def peeked(client: Client) -> list[tuple[object, ...]]:
    """Return what a peek shows of the queue's messages."""
    return [
        (
            row.message.id,
            row.message.payload,
            row.message.fairness_key,
            row.message.attempt_count,
            row.message.last_error,
            row.message.enqueued_at,
            row.message.lease_expires_at,
            row.state,
            row.position,
        )
        for row in client.peek("q", 100).messages
    ]


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_a_restart_keeps_everything(make_broker: MakeBroker, how: str) -> None:
    broker = make_broker()
    broker.start()
    with Client(broker.address, timeout=30) as client:
        client.create_queue("q", max_attempts=2, visibility_timeout_ms=600_000)
        client.create_queue("gone")
        client.enqueue("gone")
        client.delete_queue("gone")
        client.set_config("weight:q:gold", "7")
        client.set_config("throttle:mail:rate", "5")
        client.pause("q", "frozen")
        dead = client.enqueue("q", None, b"dead")
        (message,) = client.receive("q")
        message.nack("first")
        (message,) = client.receive("q")
        message.nack("second")
        failed = client.enqueue("q", {"k": "v"}, b"failed", fairness_key="gold")
        (message,) = client.receive("q")
        message.nack("once")
        leased = client.enqueue("q", None, b"leased")
        held = {m.id: m for m in client.receive("q", 2)}
        held.pop(failed).nack("", retry_after_ms=0)
        delayed = client.enqueue("q", None, b"delayed", delay_ms=600_000)
        frozen = client.enqueue("q", None, b"frozen", fairness_key="frozen")
        once = client.enqueue("q", None, b"once", idempotency_key="key")
        ids = [failed, leased, delayed, frozen, once]
        before = peeked(client)
    getattr(broker, how)()
    broker.start()
    with Client(broker.address, timeout=30) as client:
        assert [queue.name for queue in client.list_queues()] == ["q", "q.dlq"]
        assert client.list_config() == {"weight:q:gold": "7", "throttle:mail:rate": "5"}
        assert peeked(client) == before
        assert [row[0] for row in before] == ids
        stats = client.stats("q")
        assert (stats.depth, stats.in_flight, stats.delayed) == (3, 1, 1)
        assert stats.config.max_attempts == 2
        (buried,) = client.peek("q.dlq").messages
        assert (buried.message.id, buried.message.last_error) == (dead, "second")
        assert client.enqueue("q", None, b"again", idempotency_key="key") == once
        received = {m.id: m for m in client.receive("q", 10)}
        assert set(received) == {failed, once}
        assert received[failed].headers == {"k": "v"}
        assert received[failed].attempt_count == 1
        client.ack("q", leased, held[leased].lease_token)  # a lease outlives the broker
        client.resume("q", "frozen")
        assert [m.id for m in client.receive("q", 10)] == [frozen]
        client.create_queue("gone")
        assert client.stats("gone").depth == 0
        assert client.redrive("q.dlq") == 1
    assert broker.terminate() == 0


def test_who_is_stored_at_a_stop_is_told_so(make_broker: MakeBroker) -> None:
    """Single calls under way are answered; nobody hears "unknown" about what was done."""
    broker = make_broker()
    broker.start()
    confirmed: list[str] = []
    strange: list[BaseException] = []

    def produce() -> None:
        wire = Wire(broker.address)
        try:
            while True:  # single calls, many at a time
                requests = [EnqueueRequest(queue="q", payload=b"x") for _ in range(50)]
                calls = [wire.service.Enqueue.future(it, timeout=60) for it in requests]
                confirmed.extend(call.result().message_id for call in calls if not call.exception())
                for call in calls:
                    call.result()
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                strange.append(error)
        finally:
            wire.close()

    with Client(broker.address, timeout=30) as client:
        client.create_queue("q")
    threads = [threading.Thread(target=produce) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(confirmed) < 500:
        time.sleep(0.01)
    assert broker.terminate() == 0
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not strange, strange
    broker.start()
    with Client(broker.address, timeout=30) as client:
        stored = {row.message.id for page in _pages(client, "q") for row in page.messages}
    assert stored == set(confirmed)
    assert broker.terminate() == 0
