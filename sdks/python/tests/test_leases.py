# SPDX-License-Identifier: AGPL-3.0-only
"""Leases are kept while something is held, and nothing is handed out whose lease has ended."""

import asyncio
import logging
import threading
import time

import grpc
import pytest

import fila
from fila._latch import Latch
from fila._leases import Frame
from fila.v1 import messages_pb2, service_pb2

REASON = messages_pb2.ErrorReason
# Half of it is enough for a machine that is busy.
LEASE_MS = 4_000


def leased(wire, token, ms, *ids):
    """A frame as the broker sends it: one token, one lease, by a clock that is not ours."""
    frame = wire.frame(*ids)
    for raw in frame.messages:
        raw.metadata.lease_token = token
        raw.timestamps.leased_at.FromMilliseconds(5_000)
        raw.timestamps.lease_expires_at.FromMilliseconds(5_000 + ms)
    return frame


def deliver(broker, wire, *frames):
    def answer(request, context):
        if len(broker.calls("Consume")) == 1:
            yield from frames
        wire.idle(context)

    broker.script("Consume", answer)


def extend(broker, **errors):
    def answer(request, context):
        response = service_pb2.SettleGrantsResponse()
        for item in request.settlements:
            result = response.results.add(messages=1)
            if item.lease_token in errors:
                result.error.reason = errors[item.lease_token]
        return response

    broker.script("SettleGrants", answer)


def extensions(broker, token):
    return [
        item
        for call in broker.calls("SettleGrants")
        for item in call.request.settlements
        if item.lease_token == token and item.WhichOneof("action") == "extend"
    ]


def test_what_is_held_is_extended_for_as_long_again(broker, client, wire):
    deliver(broker, wire, leased(wire, "t", LEASE_MS, "a", "b"))
    extend(broker)
    with client.consume("orders") as consumer:
        assert next(consumer).id == "a"
        broker.wait_for(lambda: len(extensions(broker, "t")) >= 3)
        assert next(consumer).id == "b"  # long after its first lease ended
    first = extensions(broker, "t")[0]
    assert (first.queue, first.extend.extend_ms, first.expected_messages) == ("orders", LEASE_MS, 0)


@pytest.mark.asyncio
async def test_an_async_consumer_extends_what_it_holds(broker, wire):
    deliver(broker, wire, leased(wire, "t", LEASE_MS, "a", "b"))
    extend(broker)
    async with fila.AsyncClient(broker.target) as client, client.consume("orders") as consumer:
        assert (await anext(consumer)).id == "a"
        await asyncio.to_thread(broker.wait_for, lambda: len(extensions(broker, "t")) >= 3)
        assert (await anext(consumer)).id == "b"


def test_what_was_handed_out_is_the_applications_own(broker, client, wire):
    deliver(broker, wire, leased(wire, "t", LEASE_MS, "a"), leased(wire, "u", LEASE_MS, "b", "c"))
    extend(broker)
    with client.consume("orders") as consumer:
        assert [next(consumer).id, next(consumer).id] == ["a", "b"]
        broker.wait_for(lambda: len(extensions(broker, "u")) >= 2)
    assert len(extensions(broker, "t")) <= 1  # while it was the first of what is held


def test_frames_that_are_due_together_travel_in_one_request(broker, client, wire):
    frames = [leased(wire, f"t{n}", LEASE_MS, f"a{n}", f"b{n}") for n in range(5)]
    deliver(broker, wire, *frames)
    extend(broker)
    with client.consume("orders") as consumer:
        next(consumer)
        broker.wait_for(lambda: broker.calls("SettleGrants"))
        assert len(broker.calls("SettleGrants")[0].request.settlements) == 5


def test_leases_are_not_extended_unless_wanted_and_what_ended_is_dropped(
    broker, client, wire, caplog
):
    deliver(broker, wire, leased(wire, "t", 2_000, "a", "b", "c"), leased(wire, "u", 60_000, "d"))
    with (
        caplog.at_level(logging.DEBUG, "fila"),
        client.consume("orders", extend_leases=False) as consumer,
    ):
        assert next(consumer).id == "a"
        time.sleep(2.1)
        assert next(consumer).id == "d"
    assert broker.calls("SettleGrants") == []
    assert "2 messages of queue 'orders' were dropped: its lease ended" in caplog.text


def test_nothing_of_a_frame_that_was_lost_is_handed_out(broker, client, wire):
    lost, kept = leased(wire, "t", LEASE_MS, "a", "b"), leased(wire, "u", LEASE_MS, "c", "d")
    deliver(broker, wire, lost, kept)
    extend(broker, t=REASON.ERROR_REASON_LEASE_EXPIRED)
    with client.consume("orders") as consumer:
        assert next(consumer).id == "a"
        broker.wait_for(lambda: len(extensions(broker, "u")) >= 2)
        assert next(consumer).id == "c"
        assert len(extensions(broker, "t")) == 1


def test_a_broker_that_is_away_is_asked_again(broker, client, wire):
    deliver(broker, wire, leased(wire, "t", LEASE_MS, "a", "b"))
    extend(broker)
    answer = broker.scripts["SettleGrants"]

    def flaky(request, context):
        if len(broker.calls("SettleGrants")) == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        return answer(request, context)

    broker.script("SettleGrants", flaky)
    with client.consume("orders") as consumer:
        next(consumer)
        broker.wait_for(lambda: len(extensions(broker, "t")) >= 2)
        assert next(consumer).id == "b"


def test_a_broker_that_knows_no_grants_is_told_each_message(broker, client, wire):
    deliver(broker, wire, leased(wire, "t", LEASE_MS, "a", "b", "c"))
    broker.script("SettleGrants", wire.refuse(grpc.StatusCode.UNIMPLEMENTED, "what?"))

    def answer(request, context):
        response = service_pb2.ExtendLeaseResponse()
        for item in request.extensions:
            result = response.results.add()
            if item.message_id == "b":
                result.error.reason = REASON.ERROR_REASON_LEASE_EXPIRED
        return response

    broker.script("ExtendLease", answer)
    with client.consume("orders") as consumer:
        assert next(consumer).id == "a"
        broker.wait_for(lambda: len(broker.calls("ExtendLease")) >= 2)
        assert next(consumer).id == "c"
    named = [item.message_id for item in broker.calls("ExtendLease")[0].request.extensions]
    assert named == ["b", "c"]
    assert len(broker.calls("SettleGrants")) == 1


@pytest.mark.parametrize("flavour", ["threads", "tasks"])
def test_a_worker_extends_what_is_being_handled(broker, wire, flavour):
    deliver(broker, wire, leased(wire, "t", LEASE_MS, "a"))
    extend(broker)

    def is_kept():
        return len(extensions(broker, "t")) >= 2

    if flavour == "threads":
        with fila.Client(broker.target) as client:

            def handle(message):
                broker.wait_for(is_kept)
                worker.stop()

            worker = client.worker("orders", handle)
            worker.run(signals=False)
    else:

        async def main():
            async def handle_async(message):
                await asyncio.to_thread(broker.wait_for, is_kept)
                worker.stop()

            async with fila.AsyncClient(broker.target) as client:
                worker = client.worker("orders", handle_async)
                await worker.run(signals=False)

        asyncio.run(main())
    assert [ack.message_id for ack in broker.calls("AckBatch")[0].request.acks] == ["a"]


def test_many_threads_share_a_consumer_and_each_message_goes_to_one(broker, client, wire):
    frames = [wire.frame(*(f"{n}-{k}" for k in range(7))) for n in range(40)]
    deliver(broker, wire, *frames)
    consumer = client.consume("orders")
    found = []

    def take():
        for message in consumer:
            found.append(message.id)  # noqa: PERF401 - others look at it meanwhile

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    broker.wait_for(lambda: len(found) == 280)
    consumer.close()
    for thread in threads:
        thread.join(wire.patience_s)
        assert not thread.is_alive()
    assert sorted(found) == sorted(m.id for frame in frames for m in frame.messages)
    assert len(broker.calls("Consume")) == 1


def test_a_lost_stream_and_its_return_are_one_line_each(start_broker, wire, caplog):
    first = start_broker(port=wire.free_port())
    first.stop()
    scripts = {}

    def answer(request, context):
        context.send_initial_metadata(())
        wire.idle(context)
        yield from ()

    scripts["Consume"] = answer
    with (
        caplog.at_level(logging.INFO, "fila"),
        fila.Client(first.target, backoff=fila.Backoff(0.02, 0.1)) as client,
        client.consume("orders") as consumer,
    ):
        reader = threading.Thread(target=lambda: list(consumer))
        reader.start()
        first.wait_for(lambda: consumer._reader.reconnect.attempts)
        start_broker(port=first.port, scripts=scripts)
        first.wait_for(lambda: "there again" in caplog.text)
        consumer.close()
        reader.join(wire.patience_s)
    said = [record.getMessage() for record in caplog.records if record.name == "fila"]
    lines = [line for line in said if line.startswith("consume stream")]
    assert len(lines) == 2
    assert "was lost" in lines[0] and "there again" in lines[1]


def test_a_frame_without_times_is_never_due(wire):
    frame = Frame(wire.frame("a").messages, 1.0)
    assert frame.ends_at == float("inf")


def test_a_latch_opens_once_for_all_who_wait():
    latch = Latch()
    assert not latch.wait(0)
    waiters = [threading.Thread(target=latch.wait) for _ in range(5)]
    for waiter in waiters:
        waiter.start()
    latch.open()
    latch.open()
    for waiter in waiters:
        waiter.join(60)
        assert not waiter.is_alive()
    assert latch.wait()
