# SPDX-License-Identifier: AGPL-3.0-only
"""A consumer hands out what it was sent, outlives its connection, and ends when it is told to."""

import asyncio
import gc
import logging
import threading
import time

import grpc
import pytest

import fila
from fila._reader import _Reconnect
from fila.v1 import messages_pb2, service_pb2

QUICK = fila.Backoff(initial=0.02, maximum=0.1)


def released(broker):
    """Messages that the client gave back, without an attempt being counted."""
    nacks = [nack for call in broker.calls("NackBatch") for nack in call.request.nacks]
    assert all(nack.HasField("retry_after_ms") and nack.retry_after_ms == 0 for nack in nacks)
    assert all(nack.lease_token == f"token-of-{nack.message_id}" for nack in nacks)
    return [nack.message_id for nack in nacks]


def frames_then_idle(wire, *frames):
    """A script: these frames, then an open stream; `ended` is set when the client leaves."""
    ended = threading.Event()

    def answer(request, context):
        try:
            yield from frames
            wire.idle(context)
        finally:  # gRPC drops the generator where it stands when the client leaves early.
            ended.set()

    answer.ended = ended
    return answer


def reader_waits(consumer):
    """Whether a thread waits for a message."""
    return consumer._reader._turn.locked()


def test_messages_arrive_in_order_across_frames(broker, client, wire):
    broker.script("Consume", frames_then_idle(wire, wire.frame("a", "b"), wire.frame("c")))
    with client.consume(
        "orders", max_in_flight=7, batch_size=3, visibility_timeout_ms=9
    ) as consumer:
        assert iter(consumer) is consumer
        assert [next(consumer).id for _ in range(3)] == ["a", "b", "c"]
    (call,) = broker.calls("Consume")
    assert call.request == service_pb2.ConsumeRequest(
        queue="orders", max_in_flight=7, max_batch=3, visibility_timeout_ms=9
    )


def test_by_default_messages_come_in_frames_and_prefetch_is_bounded(broker, client, wire):
    broker.script("Consume", frames_then_idle(wire, wire.frame("a")))
    with client.consume("orders") as consumer:
        next(consumer)
    (call,) = broker.calls("Consume")
    assert call.request == service_pb2.ConsumeRequest(
        queue="orders", max_in_flight=64, max_batch=32
    )


def test_settling_a_message_names_its_delivery(broker, client, wire):
    def extended(request, context):
        result = service_pb2.ExtendLeaseResult()
        result.lease_expires_at.seconds = 1_900_000_000
        return service_pb2.ExtendLeaseResponse(results=[result])

    broker.script("ExtendLease", extended)
    broker.script("Consume", frames_then_idle(wire, wire.frame("a", "b")))
    with client.consume("orders") as consumer:
        first, second = next(consumer), next(consumer)
        end = first.extend(5000)
        assert end.timestamp() == 1_900_000_000
        assert first.lease_expires_at == end
        first.ack()
        second.nack("boom", retry_after_ms=10, throttle_key="mail")
    (extension,) = broker.calls("ExtendLease")[0].request.extensions
    assert (extension.message_id, extension.lease_token) == ("a", "token-of-a")
    assert (extension.queue, extension.extend_ms) == ("orders", 5000)
    (ack,) = broker.calls("AckBatch")[0].request.acks
    assert (ack.queue, ack.message_id, ack.lease_token) == ("orders", "a", "token-of-a")
    (nack,) = broker.calls("NackBatch")[0].request.nacks
    assert nack == service_pb2.NackRequest(
        queue="orders",
        message_id="b",
        error="boom",
        lease_token="token-of-b",
        retry_after_ms=10,
        throttle_key="mail",
    )


def test_many_messages_are_settled_with_one_outcome_each(broker, client, wire):
    def picky(request, context):
        error = messages_pb2.ItemError(reason="ERROR_REASON_LEASE_EXPIRED", message="too late")
        items = getattr(request, "acks", None) or request.nacks
        results = [
            messages_pb2.ItemResult(error=error if item.message_id == "b" else None)
            for item in items
        ]
        kind = type(request).__name__.replace("Request", "Response")
        return getattr(service_pb2, kind)(results=results)

    broker.script("AckBatch", picky)
    broker.script("NackBatch", lambda request, context: broker.settle(request, context))
    answer = service_pb2.ReceiveResponse(messages=wire.frame("a", "b", "c").messages)
    broker.script("Receive", lambda *_: answer)
    messages = client.receive("orders", 3)
    first, second, third = client.ack_many(messages)
    assert (first, third) == (None, None)
    assert type(second) is fila.LeaseExpiredError
    assert (second.queue, second.message_id) == ("orders", "b")
    assert client.nack_many(messages, "boom") == [None] * 3
    assert [n.error for n in broker.calls("NackBatch")[0].request.nacks] == ["boom"] * 3


def test_receive_returns_what_there_is_and_waits_longer_than_the_broker(broker, client, wire):
    broker.script("Receive", lambda *_: service_pb2.ReceiveResponse())
    assert client.receive("orders", 5, wait_ms=20_000, visibility_timeout_ms=7) == []
    (call,) = broker.seen
    assert call.request == service_pb2.ReceiveRequest(
        queue="orders", max_messages=5, wait_ms=20_000, visibility_timeout_ms=7
    )
    assert 20 < call.time_remaining < 20 + 5.5


def test_unknown_queue_is_raised_by_the_first_iteration(broker, client, wire):
    broker.script("Consume", wire.refuse(grpc.StatusCode.NOT_FOUND, "no queue", "QUEUE_NOT_FOUND"))
    consumer = client.consume("nowhere")
    with pytest.raises(fila.QueueNotFoundError, match="no queue") as caught:
        next(consumer)
    assert caught.value.queue == "nowhere"
    assert len(broker.seen) == 1


def test_an_error_in_the_middle_comes_after_the_messages_before_it(broker, client, wire):
    def answer(request, context):
        yield wire.frame("a", "b")
        wire.refuse(grpc.StatusCode.PERMISSION_DENIED, "revoked", "PERMISSION_DENIED")(
            request, context
        )

    broker.script("Consume", answer)
    consumer = client.consume("orders")
    assert [next(consumer).id, next(consumer).id] == ["a", "b"]
    with pytest.raises(fila.PermissionDeniedError):
        next(consumer)


@pytest.mark.parametrize("ending", ["clean", "unavailable", "shutting-down", "cancelled"])
def test_a_stream_that_ends_is_opened_again(broker, wire, ending, caplog):
    refuse = {
        "clean": lambda request, context: None,
        "unavailable": wire.refuse(grpc.StatusCode.UNAVAILABLE, "reset"),
        "shutting-down": wire.refuse(grpc.StatusCode.UNAVAILABLE, "bye", "SHUTTING_DOWN"),
        "cancelled": wire.refuse(grpc.StatusCode.CANCELLED, "the server is stopping"),
    }[ending]

    def answer(request, context):
        number = len(broker.calls("Consume"))
        yield wire.frame(f"m-{number}")
        if number == 3:
            wire.idle(context)
        refuse(request, context)

    broker.script("Consume", answer)
    with (
        caplog.at_level(logging.WARNING, "fila"),
        fila.Client(broker.target, backoff=QUICK) as client,
        client.consume("orders") as consumer,
    ):
        assert [next(consumer).id for _ in range(3)] == ["m-1", "m-2", "m-3"]
    ours = [it.levelname for it in caplog.records if it.msg.startswith("consume stream")]
    assert ours == ["WARNING"] * 2


def test_a_consumer_survives_a_broker_restart(start_broker, wire):
    first = start_broker(port=wire.free_port())
    first.script("Consume", frames_then_idle(wire, wire.frame("before")))
    with (
        fila.Client(first.target, backoff=QUICK) as client,
        client.consume("orders") as consumer,
    ):
        assert next(consumer).id == "before"
        found = []
        reader = threading.Thread(target=lambda: found.append(next(consumer)))
        reader.start()
        first.stop()
        time.sleep(0.3)  # Longer than every backoff, so that attempts fail in between.
        script = frames_then_idle(wire, wire.frame("after"))
        start_broker(port=first.port, scripts={"Consume": script})
        reader.join(wire.patience_s)
        assert [message.id for message in found] == ["after"]
        assert client.enqueue("orders", None, b"x").startswith("x#")


@pytest.mark.asyncio
async def test_an_async_consumer_survives_a_broker_restart(start_broker, wire):
    first = start_broker(port=wire.free_port())
    first.script("Consume", frames_then_idle(wire, wire.frame("before")))
    async with (
        fila.AsyncClient(first.target, backoff=QUICK) as client,
        client.consume("orders") as consumer,
    ):
        assert (await anext(consumer)).id == "before"
        reader = asyncio.create_task(anext(consumer))
        await asyncio.to_thread(first.stop)
        await asyncio.sleep(0.3)
        script = frames_then_idle(wire, wire.frame("after"))
        start_broker(port=first.port, scripts={"Consume": script})
        async with asyncio.timeout(wire.patience_s):
            assert (await reader).id == "after"


def test_a_consumer_may_be_opened_before_the_broker(start_broker, wire):
    port = wire.free_port()
    with (
        fila.Client(f"127.0.0.1:{port}", backoff=QUICK) as client,
        client.consume("orders") as consumer,
    ):
        scripts = {"Consume": frames_then_idle(wire, wire.frame("a"))}
        timer = threading.Timer(0.3, start_broker, kwargs={"port": port, "scripts": scripts})
        timer.start()
        assert next(consumer).id == "a"
        timer.join()


def test_attempts_are_spread_and_never_hot(broker, wire, monkeypatch):
    monkeypatch.setattr("random.random", lambda: 1.0)
    broker.script("Consume", wire.refuse(grpc.StatusCode.UNAVAILABLE, "away"))
    started = time.monotonic()
    with fila.Client(broker.target, backoff=fila.Backoff(0.1, 0.2)) as client:
        consumer = client.consume("orders")
        reader = threading.Thread(target=list, args=(consumer,))
        reader.start()
        broker.wait_for(lambda: len(broker.calls("Consume")) >= 5)
        consumer.close()
        reader.join(wire.patience_s)
        assert not reader.is_alive()
    assert time.monotonic() - started >= 0.1 + 3 * 0.2


def test_backoff_doubles_to_its_bound_and_uses_all_of_the_range():
    backoff = fila.Backoff(initial=0.1, maximum=5.0)
    assert [backoff.delay(n, 1.0) for n in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.delay(10**9, 1.0) == 5.0
    assert backoff.delay(3, 0.0) == 0.0
    assert backoff.delay(3, 0.5) == pytest.approx(0.4)
    for wrong in ((0, 5), (-1, 5), (2, 1)):
        with pytest.raises(ValueError, match="backoff needs 0 < initial <= maximum"):
            fila.Backoff(*wrong)


def test_a_frame_or_a_long_life_starts_the_backoff_anew(monkeypatch):
    monkeypatch.setattr("random.random", lambda: 1.0)
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    reconnect = _Reconnect("orders", fila.Backoff(0.1, 5.0))

    def ended():
        reconnect.opened()
        return reconnect.delay(fila.UnavailableError())

    assert [ended(), ended(), ended()] == [0.1, 0.2, 0.4]
    reconnect.received()
    assert [ended(), ended()] == [0.1, 0.2]
    reconnect.opened()
    now += 6
    assert reconnect.delay(None) == 0.1


def test_close_from_another_thread_ends_a_blocked_iteration(broker, client, wire):
    script = frames_then_idle(wire, wire.frame("a"))
    broker.script("Consume", script)
    consumer = client.consume("orders")
    next(consumer)
    rest = []
    reader = threading.Thread(target=lambda: rest.extend(consumer))
    reader.start()
    broker.wait_for(lambda: reader_waits(consumer))
    consumer.close()
    reader.join(wire.patience_s)
    assert not reader.is_alive()
    assert rest == []
    assert script.ended.wait(wire.patience_s)
    consumer.close()


def test_close_ends_an_iteration_that_waits_to_reconnect(start_broker, wire, monkeypatch):
    monkeypatch.setattr("random.random", lambda: 1.0)
    gone = start_broker(port=wire.free_port())
    gone.stop()
    forever = 2 * wire.patience_s
    with fila.Client(gone.target, backoff=fila.Backoff(forever, forever)) as client:
        consumer = client.consume("orders")
        reader = threading.Thread(target=list, args=(consumer,))
        reader.start()
        gone.wait_for(lambda: consumer._reader.reconnect.attempts)
        consumer.close()
        reader.join(wire.patience_s)
        assert not reader.is_alive()


@pytest.mark.parametrize("state", ["reading", "waiting-for-the-broker"])
def test_closing_the_client_ends_its_consumers_cleanly(start_broker, wire, state):
    broker = start_broker(port=wire.free_port())
    broker.script("Consume", frames_then_idle(wire))
    if state != "reading":
        broker.stop()
    client = fila.Client(broker.target, backoff=QUICK)
    ended = []
    readers = [
        threading.Thread(target=lambda consumer: ended.append(list(consumer)), args=(consumer,))
        for consumer in (client.consume("orders"), client.consume("invoices"))
    ]
    for reader in readers:
        reader.start()
    if state == "reading":
        broker.wait_for(lambda: len(broker.calls("Consume")) == 2)
    else:
        time.sleep(0.3)  # They try in vain, or are about to: either must end.
    client.close()
    for reader in readers:
        reader.join(wire.patience_s)
    assert ended == [[], []]


def test_leaving_the_loop_and_the_with_block_ends_the_stream(broker, client, wire):
    script = frames_then_idle(wire, wire.frame("a", "b", "c"))
    broker.script("Consume", script)
    with client.consume("orders") as consumer:
        for message in consumer:
            assert message.id == "a"
            break
    assert script.ended.wait(wire.patience_s)
    # Nobody has seen the others, so they need not wait for their leases to end.
    assert released(broker) == ["b", "c"]
    assert list(consumer) == []


def test_dropping_a_consumer_ends_its_stream(broker, client, wire):
    script = frames_then_idle(wire, wire.frame("a", "b"))
    broker.script("Consume", script)
    for message in client.consume("orders"):
        assert message.id == "a"
        break
    gc.collect()
    assert script.ended.wait(wire.patience_s)
    broker.wait_for(lambda: released(broker) == ["b"])


@pytest.mark.asyncio
async def test_dropping_an_async_consumer_ends_its_stream(broker, wire):
    script = frames_then_idle(wire, wire.frame("a", "b"))
    broker.script("Consume", script)
    async with fila.AsyncClient(broker.target) as client:
        async for message in client.consume("orders"):
            assert message.id == "a"
            break
        gc.collect()
        assert await asyncio.to_thread(script.ended.wait, wire.patience_s)
    assert released(broker) == ["b"]


def test_messages_that_cannot_be_given_back_do_not_hold_up_the_close(broker, client, wire):
    broker.script("Consume", frames_then_idle(wire, wire.frame("a", "b")))
    broker.script("NackBatch", wire.refuse(grpc.StatusCode.INTERNAL, "broken"))
    with client.consume("orders") as consumer:
        next(consumer)
    assert released(broker) == ["b"]


@pytest.mark.asyncio
async def test_async_messages_are_consumed_and_settled(broker, wire):
    answer = service_pb2.ReceiveResponse(messages=wire.frame("x", "y").messages)
    broker.script("Receive", lambda *_: answer)
    script = frames_then_idle(wire, wire.frame("a", "b"), wire.frame("c", "d"))
    broker.script("Consume", script)
    async with fila.AsyncClient(broker.target) as client:
        found = []
        async with client.consume("orders") as consumer:
            async for message in consumer:
                found.append(message.id)
                await message.ack()
                if message.id == "c":
                    break
        assert found == ["a", "b", "c"]
        assert released(broker) == ["d"]
        assert [message async for message in consumer] == []
        received = await client.receive("orders", 2)
        assert await client.ack_many(received) == [None, None]
        assert await client.nack_many(received, "boom") == [None, None]
        await received[0].nack("boom")
    assert script.ended.wait(wire.patience_s)
    acked = [ack.message_id for call in broker.calls("AckBatch") for ack in call.request.acks]
    assert acked == ["a", "b", "c", "x", "y"]


@pytest.mark.asyncio
async def test_async_close_from_another_task_ends_a_blocked_iteration(broker, wire):
    script = frames_then_idle(wire, wire.frame("a"))
    broker.script("Consume", script)
    async with fila.AsyncClient(broker.target) as client:
        consumer = client.consume("orders")
        await anext(consumer)

        async def drain():
            return [message async for message in consumer]

        reader = asyncio.create_task(drain())
        await asyncio.sleep(0)
        await consumer.close()
        async with asyncio.timeout(wire.patience_s):
            assert await reader == []
        await consumer.close()
        assert await asyncio.to_thread(script.ended.wait, wire.patience_s)


@pytest.mark.asyncio
async def test_closing_the_async_client_ends_its_consumers_cleanly(broker, wire):
    broker.script("Consume", frames_then_idle(wire))
    client = fila.AsyncClient(broker.target)

    async def drain(queue):
        return [message async for message in client.consume(queue)]

    readers = [asyncio.create_task(drain(queue)) for queue in ("orders", "invoices")]
    await asyncio.to_thread(broker.wait_for, lambda: len(broker.calls("Consume")) == 2)
    await client.close()
    async with asyncio.timeout(wire.patience_s):
        assert await asyncio.gather(*readers) == [[], []]


@pytest.mark.asyncio
async def test_cancelling_one_anext_loses_neither_stream_nor_message(broker, wire):
    send = threading.Event()

    def answer(request, context):
        yield wire.frame("a")
        assert send.wait(wire.patience_s)
        yield wire.frame("b")
        wire.idle(context)

    broker.script("Consume", answer)
    async with (
        fila.AsyncClient(broker.target) as client,
        client.consume("orders") as consumer,
    ):
        assert (await anext(consumer)).id == "a"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await anext(consumer)
        send.set()
        async with asyncio.timeout(wire.patience_s):
            assert (await anext(consumer)).id == "b"
    assert len(broker.calls("Consume")) == 1


@pytest.mark.asyncio
async def test_async_errors_reach_the_iteration(broker, wire):
    broker.script("Consume", wire.refuse(grpc.StatusCode.NOT_FOUND, "no", "QUEUE_NOT_FOUND"))
    async with fila.AsyncClient(broker.target) as client:
        consumer = client.consume("nowhere")
        with pytest.raises(fila.QueueNotFoundError) as caught:
            await anext(consumer)
        assert caught.value.queue == "nowhere"
        assert [message async for message in consumer] == []
    assert len(broker.calls("Consume")) == 1
