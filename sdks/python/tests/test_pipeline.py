# SPDX-License-Identifier: AGPL-3.0-only
"""Batches travel through pipelines, and no caller can tell: deadlines, retries, errors, closing."""

import asyncio
import contextlib
import threading
from contextlib import asynccontextmanager

import grpc
import pytest

import fila
from fila import _wire
from fila.v1 import messages_pb2, service_pb2

PATIENCE_S = 60
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def broker(start_broker):
    return start_broker(pipelines=True)


def stored(*ids):
    results = [service_pb2.EnqueueResult(message_id=message_id) for message_id in ids]
    return service_pb2.PipelineResponse(enqueue=service_pb2.EnqueueBatchResponse(results=results))


def payloads(request):
    return [message.payload for message in request.enqueue.messages]


@asynccontextmanager
async def connected(broker):
    """A client that knows that the broker has pipelines."""
    async with fila.AsyncClient(broker.target, timeout=PATIENCE_S, api_key="secret") as client:
        script = broker.scripts.pop("Pipeline", None)
        await client.nack("orders", "m-0")
        pipelines = client._connection._pipelines
        await asyncio.to_thread(broker.wait_for, lambda: pipelines._is_known)
        broker.seen.clear()
        broker.pipelines = 0
        if script is not None:
            broker.script("Pipeline", script)
        yield client


# --- How they travel ------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_enqueues_and_settlements_have_a_pipeline_each(broker):
    async with connected(broker) as client:
        for _ in range(5):
            await client.enqueue("orders")
        await asyncio.gather(client.ack("orders", "m-1"), client.nack("orders", "m-2"))
        await client.enqueue_many([fila.EnqueueMessage("orders")] * 3)
    assert broker.pipelines == 2
    assert all(call.is_carried for call in broker.seen)
    assert broker.seen[0].metadata["authorization"] == "Bearer secret"


def test_a_blocking_client_sends_calls(broker):
    with fila.Client(broker.target, timeout=PATIENCE_S) as client:
        client.enqueue("orders")
        client.ack("orders", "m-1")
    assert broker.pipelines == 0
    assert not any(call.is_carried for call in broker.seen)


@pytest.mark.asyncio
async def test_a_broker_without_pipelines_is_asked_once(broker):
    broker.has_pipelines = False
    async with fila.AsyncClient(broker.target, timeout=PATIENCE_S) as client:
        await asyncio.gather(*(client.enqueue("orders") for _ in range(10)))
        await client.ack("orders", "m-1")
    assert broker.pipelines == 1
    assert not any(call.is_carried for call in broker.seen)


@pytest.mark.asyncio
async def test_a_large_message_and_a_traced_one_go_as_calls(broker, monkeypatch):
    async with connected(broker) as client:
        await client.enqueue("orders", None, bytes(_wire.BATCH_BYTES_MAX))
        monkeypatch.setattr("fila.tracing.current", lambda: {"traceparent": "00-1-2-01"})
        await client.enqueue("orders")
        assert [call.is_carried for call in broker.seen] == [False, False]
        assert broker.seen[1].metadata["traceparent"] == "00-1-2-01"


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_refused_request_has_its_class_and_the_stream_goes_on(broker, wire):
    async with connected(broker) as client:
        store = broker.scripts["EnqueueBatch"]
        refusal = wire.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much", "OVERLOADED")
        broker.script("EnqueueBatch", refusal)
        with pytest.raises(fila.OverloadedError, match="too much") as caught:
            await client.enqueue("orders")
        error = caught.value
        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert error.queue == "orders" and error.retryable
        broker.script("EnqueueBatch", store)
        assert (await client.enqueue("orders", None, b"x")).startswith("x#")
        assert broker.pipelines == 1


@pytest.mark.asyncio
async def test_an_answer_to_another_call_is_an_internal_error_and_ends_the_stream(broker):
    async with connected(broker) as client:

        def garbled(requests, context):
            for _ in requests:
                yield service_pb2.PipelineResponse(ack=service_pb2.AckBatchResponse())

        broker.script("Pipeline", garbled)
        with pytest.raises(fila.InternalError, match="answered ack to enqueue"):
            await client.enqueue("orders")
        del broker.scripts["Pipeline"]
        assert (await client.enqueue("orders", None, b"x")).startswith("x#")
        assert broker.pipelines == 2


@pytest.mark.asyncio
async def test_a_refused_stream_is_every_callers_error(broker, wire):
    async with connected(broker) as client:
        refusal = wire.refuse(grpc.StatusCode.UNAUTHENTICATED, "no such key", "UNAUTHENTICATED")
        broker.script("Pipeline", lambda requests, context: iter([refusal(requests, context)]))
        many = [client.enqueue_many([fila.EnqueueMessage("orders")]) for _ in range(8)]
        for ((found,),) in zip(await asyncio.gather(*many), strict=True):
            # gRPC forgets the status if it finds a write under way.
            assert isinstance(found.error, fila.UnauthenticatedError | fila.UnavailableError)


# --- Deadlines ------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_who_gives_up_leaves_the_stream_to_the_others(broker):
    go_on = threading.Event()

    def slow(requests, context):
        for request in requests:
            found = payloads(request)
            if b"slow" in found:
                go_on.wait(PATIENCE_S)
            yield stored(*(payload.decode() for payload in found))

    broker.script("Pipeline", slow)
    async with connected(broker) as client:
        many = asyncio.create_task(client.enqueue_many([fila.EnqueueMessage("q", None, b"slow")]))
        await asyncio.sleep(0.3)
        with pytest.raises(fila.DeadlineExceededError):
            await client.enqueue("orders", None, b"late", timeout=0.2)
        many.cancel()
        with pytest.raises(asyncio.CancelledError):
            await many
        go_on.set()
        assert await client.enqueue("orders", None, b"quick") == "quick"
    assert broker.pipelines == 1


@pytest.mark.asyncio
async def test_no_more_than_a_bound_is_unanswered_and_the_rest_follows(broker):
    go_on = threading.Event()
    taken = []

    def slow(requests, context):
        def take():
            with contextlib.suppress(grpc.RpcError):  # the client leaves
                taken.extend(payloads(request) for request in requests)

        reader = threading.Thread(target=take)
        reader.start()
        go_on.wait(PATIENCE_S)
        for number in range(100):
            broker.wait_for(lambda number=number: len(taken) > number)
            yield stored(taken[number][0].decode())
        reader.join(PATIENCE_S)

    broker.script("Pipeline", slow)
    async with connected(broker) as client:
        calls = [
            asyncio.create_task(client.enqueue_many([fila.EnqueueMessage("q", None, b"%d" % n)]))
            for n in range(100)
        ]
        await asyncio.to_thread(broker.wait_for, lambda: len(taken) >= 64)
        await asyncio.sleep(0.2)
        assert len(taken) == 64
        go_on.set()
        found = [outcome.message_id for (outcome,) in await asyncio.gather(*calls)]
        assert found == [str(n) for n in range(100)]


# --- Streams that end -----------------------------------------------------------------------------


def ending(broker, status=None, reason=None, first=1):
    """Ends the first streams when they have read a request, and answers through the others."""
    taken = []

    def script(requests, context):
        for request in requests:
            taken.append(payloads(request))
            if len(taken) <= first:
                if reason is not None:
                    context.set_trailing_metadata((("fila-reason", reason),))
                if status is not None:
                    context.abort(status, "gone")
                return
            yield stored(*(payload.decode() for payload in taken[-1]))

    broker.script("Pipeline", script)
    return taken


@pytest.mark.parametrize("status", [UNAVAILABLE, None])
@pytest.mark.asyncio
async def test_an_enqueue_on_a_stream_that_breaks_is_never_sent_twice(broker, status):
    async with connected(broker) as client:
        taken = ending(broker, status)
        with pytest.raises(fila.UnavailableError) as caught:
            await client.enqueue("orders", None, b"once")
        assert caught.value.code == "UNAVAILABLE"
        assert await client.enqueue("orders", None, b"again") == "again"
        assert taken == [[b"once"], [b"again"]]


@pytest.mark.asyncio
async def test_an_enqueue_with_an_idempotency_key_is_sent_again(broker):
    taken = ending(broker, UNAVAILABLE, "SHUTTING_DOWN", first=2)
    async with connected(broker) as client:
        with pytest.raises(fila.UnavailableError):
            await client.enqueue("orders", None, b"once")
        assert await client.enqueue("orders", None, b"x", idempotency_key="k") == "x"
    assert taken == [[b"once"], [b"x"], [b"x"]]


@pytest.mark.asyncio
async def test_the_end_of_an_idle_stream_is_nobodys_error(broker):
    def one_each(requests, context):
        yield stored(*(payload.decode() for payload in payloads(next(requests))))

    broker.script("Pipeline", one_each)
    async with connected(broker) as client:
        for _ in range(5):
            assert await client.enqueue("orders", None, b"x") == "x"
            stream = client._connection._pipelines._streams[True]
            await asyncio.to_thread(broker.wait_for, lambda stream=stream: stream.is_ended)
    assert broker.pipelines == 5


# --- Closing --------------------------------------------------------------------------------------


def held(requests, context):
    """Answers nothing until the stream is over."""
    over = threading.Event()
    context.add_callback(over.set)
    over.wait(PATIENCE_S)
    yield from ()


@pytest.mark.asyncio
async def test_closing_lets_whoever_waits_know(broker):
    broker.script("Pipeline", held)
    async with connected(broker) as client:
        call = asyncio.create_task(client.enqueue("orders"))
        await asyncio.to_thread(broker.wait_for, lambda: broker.pipelines)
        await client.close()
        with pytest.raises(fila.ClientClosedError):
            await call


@pytest.mark.asyncio
async def test_item_errors_come_through(broker):
    async with connected(broker) as client:
        error = messages_pb2.ItemError(reason="ERROR_REASON_QUEUE_FULL", message="full")
        full = service_pb2.EnqueueBatchResponse(results=[service_pb2.EnqueueResult(error=error)])
        broker.script("EnqueueBatch", lambda request, context: full)
        with pytest.raises(fila.QueueFullError, match="full"):
            await client.enqueue("orders")
