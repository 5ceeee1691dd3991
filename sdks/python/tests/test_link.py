# SPDX-License-Identifier: AGPL-3.0-only
"""What a client tells of its connection: each change once, however many calls met it."""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import fila
from fila._link import Link

QUICK = fila.Backoff(0.01, 0.05)


def kinds(events):
    return [event.kind for event in events]


def until_answered(client, wire):
    """Calls until one succeeds; the others fail because nobody is there."""
    for _ in range(10_000):
        try:
            return client.enqueue("orders", timeout=wire.patience_s)
        except fila.UnavailableError:
            client._connection.pause(0.01)
    raise AssertionError("nobody came")


def test_a_client_that_was_not_used_says_nothing(broker):
    events = []
    fila.Client(broker.target, on_connection=events.append).close()
    assert events == []


def test_each_change_is_told_once(start_broker, wire, caplog):
    events = []
    first = start_broker(port=wire.free_port())
    with (
        caplog.at_level(logging.INFO, "fila"),
        fila.Client(first.target, backoff=QUICK, on_connection=events.append) as client,
    ):
        for _ in range(3):
            client.enqueue("orders")
        assert events == [fila.ConnectionEvent("connected")]
        first.stop()
        for _ in range(5):
            with pytest.raises(fila.UnavailableError):
                client.enqueue("orders")
        assert kinds(events) == ["connected", "lost", "unreachable"]
        assert all(event.reason for event in events[1:])
        start_broker(port=first.port)
        until_answered(client, wire)
        client.enqueue("orders")
    assert kinds(events) == ["connected", "lost", "unreachable", "connected"]
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in said] == ["WARNING", "WARNING", "INFO"]
    assert said[0][1].startswith(f"lost the connection to {first.target}: ")
    assert said[1][1].startswith(f"cannot reach {first.target}: ")
    assert said[2][1].startswith(f"connected to {first.target} after ")


def test_a_consumer_tells_of_its_stream(start_broker, wire):
    events = []
    first = start_broker(port=wire.free_port())
    scripts = {"Consume": answer_with_headers(wire)}
    first.scripts.update(scripts)
    with (
        fila.Client(first.target, backoff=QUICK, on_connection=events.append) as client,
        client.consume("orders") as consumer,
    ):
        reader = threading.Thread(target=lambda: list(consumer))
        reader.start()
        first.wait_for(lambda: kinds(events) == ["connected"])  # with no message in it
        first.stop()
        first.wait_for(lambda: kinds(events)[1:] == ["lost", "unreachable"])
        start_broker(port=first.port, scripts=scripts)
        first.wait_for(lambda: len(events) == 4)
        consumer.close()
        reader.join(wire.patience_s)
    assert kinds(events)[3] == "connected"


async def test_the_async_client_tells_the_same(start_broker, wire):
    events = []
    first = start_broker(port=wire.free_port())
    scripts = {"Consume": answer_with_headers(wire)}
    first.scripts.update(scripts)
    client = fila.AsyncClient(first.target, backoff=QUICK, on_connection=events.append)
    async with client, client.consume("orders") as consumer, asyncio.timeout(wire.patience_s):
        reader = asyncio.create_task(anext(consumer, None))
        await asyncio.to_thread(first.wait_for, lambda: kinds(events) == ["connected"])
        await asyncio.to_thread(first.stop)
        await asyncio.to_thread(first.wait_for, lambda: len(events) == 3)
        start_broker(port=first.port, scripts=scripts)
        await asyncio.to_thread(first.wait_for, lambda: len(events) == 4)
        await consumer.close()
        await reader
    assert kinds(events) == ["connected", "lost", "unreachable", "connected"]


def answer_with_headers(wire):
    def answer(request, context):
        context.send_initial_metadata(())
        wire.idle(context)
        yield from ()

    return answer


def test_refusals_of_the_broker_are_answers(broker, wire):
    events = []
    broker.script("EnqueueBatch", wire.refuse(grpc.StatusCode.UNAVAILABLE, "bye", "SHUTTING_DOWN"))
    with fila.Client(broker.target, on_connection=events.append) as client:
        for _ in range(2):
            with pytest.raises(fila.ShuttingDownError):
                client.enqueue("orders")
    assert kinds(events) == ["connected"]


def test_what_the_function_raises_is_logged_and_changes_nothing(broker, caplog):
    def broken(event):
        raise RuntimeError("no")

    with fila.Client(broker.target, on_connection=broken) as client:
        assert client.enqueue("orders")
    assert "on_connection failed" in caplog.text


def test_calls_that_share_a_loss_tell_of_one():
    events = []
    link = Link("b:1", events.append)
    link.answered(0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: link.failed(0, "reset"), range(100)))
    assert kinds(events) == ["connected", "lost"]
    link.answered(0)  # which began before the loss
    assert not link.is_up
    link.failed(1, "refused")
    link.failed(1, "refused")
    link.answered(1)
    assert kinds(events) == ["connected", "lost", "unreachable", "connected"]


def test_the_function_may_use_the_client(broker):
    found = []

    def note(event):
        found.append(client.enqueue("orders"))

    with fila.Client(broker.target, on_connection=note) as client:
        client.enqueue("orders")
    assert len(found) == 1
