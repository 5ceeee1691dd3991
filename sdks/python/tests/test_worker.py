# SPDX-License-Identifier: AGPL-3.0-only
"""A worker settles each message once, by what its handler did, and leaves nothing behind."""

import asyncio
import os
import signal
import threading
import time
from contextlib import contextmanager

import grpc
import pytest

import fila
from fila.v1 import messages_pb2, service_pb2


def texts(broker):
    """What was nacked: id, text, delay, dead letter."""
    return {
        nack.message_id: (
            nack.error,
            nack.retry_after_ms if nack.HasField("retry_after_ms") else None,
            nack.dead_letter,
        )
        for call in broker.calls("NackBatch")
        for nack in call.request.nacks
    }


def acked(broker):
    return [ack.message_id for call in broker.calls("AckBatch") for ack in call.request.acks]


def deliver(broker, wire, *frames):
    def answer(request, context):
        if len(broker.calls("Consume")) == 1:
            yield from frames
        wire.idle(context)

    broker.script("Consume", answer)


def kinds(events):
    return sorted((event.kind, event.message.id) for event in events)


class Flavour:
    """Runs the same handler in either kind of worker."""

    def __init__(self, is_async, target):
        self.is_async, self.target = is_async, target
        self.client = (fila.AsyncClient if is_async else fila.Client)(target)

    def worker(self, handler, **options):
        if not self.is_async:
            return self.client.worker("orders", handler, **options)

        async def handle(message):
            found = handler(message)
            if asyncio.iscoroutine(found):
                await found

        return self.client.worker("orders", handle, **options)

    @contextmanager
    def running(self, worker):
        """Runs a worker beside the test; leaving the block waits for its end."""
        failures = []

        async def run():
            async with self.client:
                await worker.run()

        def work():
            try:
                if self.is_async:
                    asyncio.run(run())
                else:
                    worker.run()
            except fila.FilaError as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield failures
        finally:
            worker.stop()
            thread.join(60)
            assert not thread.is_alive()
            if not self.is_async:
                self.client.close()


@pytest.fixture(params=["threads", "tasks"])
def flavour(request, broker):
    return Flavour(request.param == "tasks", broker.target)


def test_each_outcome_is_told_the_broker(broker, flavour, wire):
    names = ("fine", "fail", "later", "never", "self", "long")
    deliver(broker, wire, wire.frame(*names))

    def handle(message):
        if message.id == "fail":
            raise ValueError("boom")
        if message.id == "later":
            raise fila.Backpressure(1.5, "mail", "full")
        if message.id == "never":
            raise fila.DeadLetter("hopeless")
        if message.id == "long":
            raise ValueError("ü" * 5000)
        if message.id == "self":
            return message.nack("mine")
        return None

    events = []
    worker = flavour.worker(handle, on_event=events.append)
    with flavour.running(worker):
        broker.wait_for(lambda: len(events) == 5)
    assert acked(broker) == ["fine"]
    found = texts(broker)
    long = found.pop("long")[0]
    assert long.startswith("ValueError: üü") and 4090 < len(long.encode()) <= 4096
    assert found == {
        "fail": ("ValueError: boom", None, False),
        "later": ("full", 1500, False),
        "never": ("hopeless", None, True),
        "self": ("mine", None, False),
    }
    (put_off,) = [
        nack
        for call in broker.calls("NackBatch")
        for nack in call.request.nacks
        if nack.message_id == "later"
    ]
    assert (put_off.throttle_key, put_off.lease_token) == ("mail", "token-of-later")
    assert kinds(events) == [
        ("acked", "fine"),
        ("dead_lettered", "never"),
        ("nacked", "fail"),
        ("nacked", "long"),
        ("put_off", "later"),
    ]


def test_the_options_are_those_of_the_consumer(broker, flavour, wire):
    deliver(broker, wire)
    with flavour.running(flavour.worker(print, concurrency=3, visibility_timeout_ms=7)):
        broker.wait_for(lambda: broker.calls("Consume"))
    (call,) = broker.calls("Consume")
    assert call.request == service_pb2.ConsumeRequest(
        queue="orders", max_in_flight=6, max_batch=3, visibility_timeout_ms=7
    )
    for options, expected in (
        ({"prefetch": 1}, 10),
        ({"prefetch": 50}, 50),
        ({"concurrency": 2, "batch_size": 5}, 20),
    ):
        client = fila.Client(broker.target)
        assert client.worker("q", print, **options)._options.in_flight == expected
        client.close()


def test_a_worker_refuses_what_makes_no_sense(client):
    for wrong in ({"concurrency": 0}, {"batch_size": -1}, {"handler_timeout": 0}):
        with pytest.raises(ValueError, match="must be positive"):
            client.worker("orders", print, **wrong)
    with pytest.raises(TypeError, match="handler must be callable"):
        client.worker("orders", "print")
    worker = client.worker("orders", print)
    worker.stop()
    worker.run(signals=False)
    with pytest.raises(RuntimeError, match="runs once"):
        worker.run(signals=False)


def test_no_more_handlers_run_than_were_asked_for(broker, flavour, wire):
    deliver(broker, wire, wire.frame(*"abcdefgh"))
    running, most = [], []
    lock = threading.Lock()
    gate = threading.Event()

    def handle(message):
        with lock:
            running.append(message.id)
            most.append(len(running))

        def done():
            with lock:
                running.remove(message.id)

        if flavour.is_async:

            async def wait():
                await asyncio.to_thread(gate.wait, 60)
                done()

            return wait()
        assert gate.wait(60)
        return done()

    with flavour.running(flavour.worker(handle, concurrency=3)):
        broker.wait_for(lambda: len(running) == 3)
        gate.set()
        broker.wait_for(lambda: len(acked(broker)) == 8)
    assert max(most) == 3


def test_a_batch_has_one_outcome(broker, flavour, wire):
    deliver(broker, wire, wire.frame("a", "b", "c", "d", "e"))
    batches = []

    def handle(messages):
        batches.append([message.id for message in messages])
        if len(messages) < 3:
            raise ValueError("too few")

    with flavour.running(flavour.worker(handle, concurrency=1, batch_size=3)):
        broker.wait_for(lambda: len(acked(broker)) + len(texts(broker)) == 5)
    assert batches == [["a", "b", "c"], ["d", "e"]]
    assert acked(broker) == ["a", "b", "c"]
    assert texts(broker) == dict.fromkeys(("d", "e"), ("ValueError: too few", None, False))


def test_middleware_wraps_the_handler_outermost_first(broker, flavour, wire):
    deliver(broker, wire, wire.frame("a"))
    steps = []

    def layer(name):
        def around(message, call_next):
            steps.append(f"{name} before {message.id}")
            return call_next(message)

        return around

    def handle(message):
        steps.append("handle")

    with flavour.running(flavour.worker(handle, middleware=[layer("outer"), layer("inner")])):
        broker.wait_for(lambda: acked(broker))
    assert steps == ["outer before a", "inner before a", "handle"]


def test_a_handler_that_is_too_slow_has_failed(broker, flavour, wire):
    deliver(broker, wire, wire.frame("slow", "next"))
    gate = threading.Event()
    cancelled = []

    def handle(message):
        if message.id != "slow":
            return None
        if flavour.is_async:

            async def wait():
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    cancelled.append(message.id)
                    raise

            return wait()
        assert gate.wait(60)
        return None

    events = []
    worker = flavour.worker(handle, concurrency=1, handler_timeout=2, on_event=events.append)
    with flavour.running(worker):
        broker.wait_for(lambda: texts(broker))
        if not flavour.is_async:  # it keeps its place until it ends
            assert acked(broker) == []
            gate.set()
        broker.wait_for(lambda: acked(broker) == ["next"] and len(events) == 3)
    assert texts(broker) == {"slow": ("handler timed out after 2 s", None, False)}
    assert kinds(events) == [("acked", "next"), ("nacked", "slow"), ("timed_out", "slow")]
    assert cancelled == (["slow"] if flavour.is_async else [])


def test_a_stop_lets_handlers_finish_and_gives_the_rest_back(broker, flavour, wire):
    deliver(broker, wire, wire.frame("a", "b", "c"))
    gate = threading.Event()
    started = []

    def handle(message):
        started.append(message.id)
        return asyncio.to_thread(gate.wait, 60) if flavour.is_async else gate.wait(60)

    worker = flavour.worker(handle, concurrency=1)
    with flavour.running(worker):
        broker.wait_for(lambda: started)
        worker.stop()
        broker.wait_for(lambda: len(texts(broker)) == 2)
        gate.set()
    assert started == ["a"] and acked(broker) == ["a"]
    assert texts(broker) == {"b": ("", 0, False), "c": ("", 0, False)}


def test_what_outlives_the_grace_is_given_back(broker, flavour, wire):
    deliver(broker, wire, wire.frame("a"))
    gate = threading.Event()
    started, events = [], []

    def handle(message):
        started.append(message.id)
        return asyncio.sleep(60) if flavour.is_async else gate.wait(60)

    worker = flavour.worker(handle, on_event=events.append)
    try:
        with flavour.running(worker):
            broker.wait_for(lambda: started)
            worker.stop()
            worker.stop(0)
    finally:
        gate.set()
    assert texts(broker) == {"a": ("", 0, False)} and acked(broker) == []
    assert kinds(events) == [("given_back", "a")]


def test_what_ends_the_consumer_is_raised_after_the_handlers_are_done(broker, flavour, wire):
    gate = threading.Event()
    done = []

    def answer(request, context):
        yield wire.frame("a")
        assert gate.wait(60)
        context.set_trailing_metadata((("fila-reason", "QUEUE_NOT_FOUND"),))
        context.abort(grpc.StatusCode.NOT_FOUND, "deleted")

    broker.script("Consume", answer)

    def handle(message):
        gate.set()
        time.sleep(0.2)
        done.append(message.id)

    worker = flavour.worker(handle)
    with flavour.running(worker) as failures:
        broker.wait_for(lambda: failures)
        assert done == ["a"] and acked(broker) == ["a"]
    assert type(failures[0]) is fila.QueueNotFoundError


def test_a_settlement_that_fails_is_an_event(broker, flavour, wire, caplog):
    deliver(broker, wire, wire.frame("a"))
    error = messages_pb2.ItemError(reason="ERROR_REASON_LEASE_EXPIRED", message="too late")
    results = [messages_pb2.ItemResult(error=error)]
    broker.script("AckBatch", lambda *_: service_pb2.AckBatchResponse(results=results))
    events = []

    def note(event):
        events.append(event)
        raise RuntimeError("of no consequence")

    with flavour.running(flavour.worker(lambda message: None, on_event=note)):
        broker.wait_for(lambda: events)
    assert kinds(events) == [("settle_failed", "a")]
    assert type(events[0].error) is fila.LeaseExpiredError
    assert "too late" in caplog.text and "of no consequence" in caplog.text


def test_two_workers_of_a_client_share_it(broker, wire):
    def answer(request, context):
        yield wire.frame(*(f"{len(broker.calls('Consume'))}-{n}" for n in range(20)))
        wire.idle(context)

    broker.script("Consume", answer)
    with fila.Client(broker.target) as client:
        workers = [client.worker("orders", lambda message: None) for _ in range(2)]
        threads = [threading.Thread(target=worker.run) for worker in workers]
        for thread in threads:
            thread.start()
        broker.wait_for(lambda: len(acked(broker)) == 40)
        for worker, thread in zip(workers, threads, strict=True):
            worker.stop()
            thread.join(60)
    assert len(set(acked(broker))) == 40


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_worker_and_its_handlers_are_put_back(broker, client, wire, number):
    deliver(broker, wire, wire.frame("a"))
    before = signal.getsignal(number)
    client.worker("orders", lambda message: os.kill(os.getpid(), number)).run()
    assert acked(broker) == ["a"]
    assert signal.getsignal(number) is before


async def test_a_signal_stops_the_async_worker(broker, wire):
    deliver(broker, wire, wire.frame("a"))
    before = signal.getsignal(signal.SIGTERM)

    async def handle(message):
        os.kill(os.getpid(), signal.SIGTERM)

    async with fila.AsyncClient(broker.target) as client:
        await client.worker("orders", handle).run()
    assert acked(broker) == ["a"]
    assert signal.getsignal(signal.SIGTERM) is before


async def test_cancelling_an_async_worker_gives_back_what_runs(broker, wire):
    deliver(broker, wire, wire.frame("a", "b"))
    started = asyncio.Event()

    async def handle(message):
        started.set()
        await asyncio.sleep(60)

    async with fila.AsyncClient(broker.target) as client:
        run = asyncio.create_task(client.worker("orders", handle, concurrency=1).run())
        await started.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert texts(broker) == {"a": ("", 0, False), "b": ("", 0, False)}
