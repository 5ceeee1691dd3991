# SPDX-License-Identifier: AGPL-3.0-only
"""Lists of what is there: from consumers, and for extensions. What a dropped consumer leaves."""

import gc
import threading
from datetime import UTC, datetime

import pytest

import fila
from fila import _reader
from fila.v1 import messages_pb2, service_pb2


def frames_then_idle(wire, *frames):
    def answer(request, context):
        yield from frames
        wire.idle(context)

    return answer


def ids(batch):
    return [message.id for message in batch]


def wait_for_frames(broker, consumer, count):
    broker.wait_for(lambda: len(consumer._reader.frames) == count)


def test_batches_hold_what_is_there_up_to_their_size(broker, client, wire):
    frames = [wire.frame(*"ab"), wire.frame(*"cde"), wire.frame("f")]
    broker.script("Consume", frames_then_idle(wire, *frames))
    with client.consume("orders") as consumer:
        batches = consumer.batches(4)
        first = next(batches)  # of what came by then
        wait_for_frames(broker, consumer, 1 if len(first) == 4 else 2)
        found = ids(first)
        while len(found) < 6:
            batch = next(batches)
            assert 0 < len(batch) <= 4
            found += ids(batch)
    assert found == list("abcdef")


def test_a_batch_crosses_frames_and_does_not_wait_for_more(broker, client, wire):
    broker.script("Consume", frames_then_idle(wire, wire.frame("a"), wire.frame(*"bc")))
    with client.consume("orders") as consumer:
        reader = threading.Thread(target=consumer._reader.wait)
        reader.start()
        wait_for_frames(broker, consumer, 2)
        reader.join(wire.patience_s)
        assert ids(next(consumer.batches(100))) == list("abc")


async def test_async_batches_cross_frames_and_end_with_the_consumer(broker, wire):
    broker.script("Consume", frames_then_idle(wire, wire.frame("a"), wire.frame(*"bc")))
    async with fila.AsyncClient(broker.target) as client, client.consume("orders") as consumer:
        found = []
        async for batch in consumer.batches(2):
            assert 0 < len(batch) <= 2
            found += ids(batch)
            if len(found) == 3:
                await consumer.close()
        assert found == list("abc")


def test_batches_end_with_the_consumer_and_fail_as_it_does(broker, client, wire):
    broker.script("Consume", frames_then_idle(wire, wire.frame("a")))
    consumer = client.consume("orders")
    for batch in consumer.batches(10):
        assert ids(batch) == ["a"]
        consumer.close()
    broker.script("Consume", wire.refuse(wire.code.NOT_FOUND, "no", "QUEUE_NOT_FOUND"))
    with pytest.raises(fila.QueueNotFoundError):
        next(client.consume("nowhere").batches(10))
    with pytest.raises(ValueError, match="max_messages must be positive, got 0"):
        next(consumer.batches(0))


# --- Extensions -----------------------------------------------------------------------------------

END = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def extend_all_but(*lost):
    def answer(request, context):
        response = service_pb2.ExtendLeaseResponse()
        for item in request.extensions:
            result = response.results.add()
            if item.message_id in lost:
                result.error.CopyFrom(
                    messages_pb2.ItemError(reason="ERROR_REASON_LEASE_EXPIRED", message="over")
                )
            else:
                result.lease_expires_at.FromDatetime(END)
        return response

    return answer


def check_extended(broker, messages, outcomes):
    assert [outcomes[0], outcomes[2]] == [END, END]
    assert isinstance(outcomes[1], fila.LeaseExpiredError)
    assert outcomes[1].message_id == "b"
    assert messages[0].lease_expires_at == END
    (call,) = broker.calls("ExtendLease")
    sent = [(it.message_id, it.lease_token, it.extend_ms) for it in call.request.extensions]
    assert sent == [(id, f"token-of-{id}", 9_000) for id in "abc"]


def test_extend_many_gives_each_message_its_end_or_its_error(broker, client, wire):
    broker.script(
        "Receive", lambda *_: service_pb2.ReceiveResponse(messages=map(wire.message, "abc"))
    )
    broker.script("ExtendLease", extend_all_but("b"))
    messages = client.receive("orders", 3)
    check_extended(broker, messages, client.extend_many(messages, 9_000))


async def test_async_extend_many(broker, wire):
    broker.script(
        "Receive", lambda *_: service_pb2.ReceiveResponse(messages=map(wire.message, "abc"))
    )
    broker.script("ExtendLease", extend_all_but("b"))
    async with fila.AsyncClient(broker.target) as client:
        messages = await client.receive("orders", 3)
        check_extended(broker, messages, await client.extend_many(messages, 9_000))


def test_extend_many_splits_a_long_list(broker, client, wire):
    broker.script("ExtendLease", extend_all_but())
    messages = [fila.Message(wire.message(f"m-{n}")) for n in range(1001)]
    assert client.extend_many(messages) == [END] * 1001
    sizes = [len(call.request.extensions) for call in broker.calls("ExtendLease")]
    assert sizes == [1000, 1]


# --- Dropped consumers ----------------------------------------------------------------------------


def test_a_dropped_consumer_blocks_nobody(broker, client, wire, monkeypatch):
    """However long giving messages back takes: the broker answers that only after the drop."""
    monkeypatch.setattr(_reader, "_DRAIN_S", 10 * wire.patience_s)
    monkeypatch.setattr(_reader, "_RELEASE_TIMEOUT_S", 10 * wire.patience_s)
    dropped = threading.Event()

    def settle_later(request, context):
        assert dropped.wait(wire.patience_s)
        return broker.settle(request, context)

    broker.script("Consume", frames_then_idle(wire, wire.frame(*"abc")))
    broker.script("NackBatch", settle_later)

    def drop():
        consumer = client.consume("orders")
        next(consumer)
        del consumer  # `__del__` runs here
        gc.collect()

    dropping = threading.Thread(target=drop)
    dropping.start()
    dropping.join(wire.patience_s / 2)
    assert not dropping.is_alive()
    dropped.set()
    broker.wait_for(lambda: broker.calls("NackBatch"))
    (release,) = broker.calls("NackBatch")
    assert [(nack.message_id, nack.retry_after_ms) for nack in release.request.nacks] == [
        ("b", 0),
        ("c", 0),
    ]
