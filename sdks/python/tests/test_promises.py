# SPDX-License-Identifier: AGPL-3.0-only
"""What a client promised: repeated where that is safe, waited for, bounded, and cut off at last."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import fila
from fila.v1 import messages_pb2, service_pb2

QUICK = fila.Backoff(initial=0.02, maximum=0.1)
REASON = messages_pb2.ErrorReason


def away_once(broker, method, reason=None):
    """The first request is applied and its answer lost; the next one finds what `reason` says."""

    def answer(request, context):
        if len(broker.calls(method)) == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        items = getattr(request, "acks", None) or request.nacks
        error = None if reason is None else messages_pb2.ItemError(reason=reason)
        kind = type(request).__name__.replace("Request", "Response")
        results = [messages_pb2.ItemResult(error=error)] * len(items)
        return getattr(service_pb2, kind)(results=results)

    broker.script(method, answer)


async def call(client, name, *arguments):
    found = getattr(client, name)(*arguments)
    return await found if asyncio.iscoroutine(found) else found


@pytest.fixture(params=[fila.Client, fila.AsyncClient])
def kind(request):
    return request.param


@pytest.mark.parametrize("reason", [None, REASON.ERROR_REASON_MESSAGE_NOT_FOUND])
@pytest.mark.parametrize("method", ["ack", "nack"])
async def test_a_settlement_with_its_token_is_repeated(broker, kind, method, reason):
    rpc = method.title() + "Batch"
    away_once(broker, rpc, reason)
    client = kind(broker.target, backoff=QUICK)
    arguments = ("orders", "m", "token") if method == "ack" else ("orders", "m", "", "token")
    await asyncio.wait_for(call(client, method, *arguments), 60)
    assert len(broker.calls(rpc)) == 2
    await call(client, "close")


async def test_a_lease_that_is_over_after_a_repeat_is_success_for_a_nack_alone(broker, kind):
    for rpc in ("AckBatch", "NackBatch"):
        away_once(broker, rpc, REASON.ERROR_REASON_LEASE_EXPIRED)
    client = kind(broker.target, backoff=QUICK)
    await call(client, "nack", "orders", "m", "", "token")
    with pytest.raises(fila.LeaseExpiredError):
        await call(client, "ack", "orders", "m", "token")
    await call(client, "close")


async def test_without_a_token_it_is_never_sent_twice(broker, kind):
    away_once(broker, "AckBatch")
    client = kind(broker.target, backoff=QUICK)
    with pytest.raises(fila.UnavailableError):
        await call(client, "ack", "orders", "m")
    assert len(broker.calls("AckBatch")) == 1
    # And what was sent once is not forgiven.
    away_once(broker, "NackBatch", REASON.ERROR_REASON_MESSAGE_NOT_FOUND)
    broker.seen.append(broker.seen[0].__class__("NackBatch", None, {}, None))
    with pytest.raises(fila.MessageNotFoundError):
        await call(client, "nack", "orders", "m", "", "token")
    await call(client, "close")


async def test_many_acks_are_repeated_too(broker, kind, wire):
    away_once(broker, "AckBatch", REASON.ERROR_REASON_MESSAGE_NOT_FOUND)
    answer = service_pb2.ReceiveResponse(messages=wire.frame("x", "y").messages)
    broker.script("Receive", lambda *_: answer)
    client = kind(broker.target, backoff=QUICK)
    messages = await call(client, "receive", "orders", 2)
    assert await call(client, "ack_many", messages) == [None, None]
    assert len(broker.calls("AckBatch")) == 2
    await call(client, "close")


async def test_a_whole_frame_is_repeated_and_then_told_apart(broker, kind, wire):
    frame = wire.frame("x", "y")
    for raw in frame.messages:
        raw.metadata.lease_token = "t"
    broker.script("Receive", lambda *_: service_pb2.ReceiveResponse(messages=frame.messages))
    error = messages_pb2.ItemError(reason=REASON.ERROR_REASON_LEASE_EXPIRED)

    def settle(request, context):
        if len(broker.calls("SettleGrants")) == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        return service_pb2.SettleGrantsResponse(results=[service_pb2.GrantResult(error=error)])

    broker.script("SettleGrants", settle)
    gone = messages_pb2.ItemError(reason=REASON.ERROR_REASON_MESSAGE_NOT_FOUND)
    results = [messages_pb2.ItemResult(error=gone)] * 2
    broker.script("AckBatch", lambda *_: service_pb2.AckBatchResponse(results=results))
    client = kind(broker.target, backoff=QUICK)
    messages = await call(client, "receive", "orders", 2)
    assert await call(client, "ack_many", messages) == [None, None]
    await call(client, "close")


class Gate:
    """Holds requests at the broker until it is opened."""

    def __init__(self, broker, method="EnqueueBatch"):
        self.open = threading.Event()
        answer = broker.scripts[method]

        def wait(request, context):
            assert self.open.wait(60)
            return answer(request, context)

        broker.script(method, wait)


def test_flush_waits_for_what_was_begun_before(broker, client):
    gate = Gate(broker)
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(client.enqueue, "orders", None, b"x")
        broker.wait_for(lambda: broker.calls("EnqueueBatch"))
        with pytest.raises(fila.DeadlineExceededError, match="not everything"):
            client.flush(0.05)
        threading.Timer(0.1, gate.open.set).start()
        client.flush(60)
        assert pending.done() or pending.result(60)
    client.flush()


async def test_async_flush_waits_for_what_was_begun_before(broker):
    gate = Gate(broker)
    async with fila.AsyncClient(broker.target) as client:
        pending = asyncio.create_task(client.enqueue("orders", None, b"x"))
        await asyncio.to_thread(broker.wait_for, lambda: broker.calls("EnqueueBatch"))
        with pytest.raises(fila.DeadlineExceededError, match="not everything"):
            await client.flush(0.05)
        asyncio.get_running_loop().call_later(0.1, gate.open.set)
        await client.flush(60)
        assert (await pending).startswith("x#")
        await client.flush()


def test_close_lets_promised_calls_be_answered_and_refuses_others(broker):
    gate = Gate(broker)
    client = fila.Client(broker.target, close_timeout=60)
    with ThreadPoolExecutor(2) as pool:
        pending = pool.submit(client.enqueue, "orders", None, b"x")
        broker.wait_for(lambda: broker.calls("EnqueueBatch"))
        closing = pool.submit(client.close)
        broker.wait_for(lambda: client._connection.closing)
        with pytest.raises(fila.ClientClosedError):
            client.enqueue("orders", None, b"late")
        gate.open.set()
        assert pending.result(60).startswith("x#")
        closing.result(60)
    client.close()


def test_close_cuts_off_what_takes_too_long(broker):
    gate = Gate(broker)
    client = fila.Client(broker.target, timeout=60, close_timeout=0)
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(client.enqueue, "orders", None, b"x")
        broker.wait_for(lambda: broker.calls("EnqueueBatch"))
        client.close()
        assert type(pending.exception(60)) is fila.ClientClosedError
        gate.open.set()


async def test_async_close_lets_promised_calls_be_answered(broker):
    gate = Gate(broker)
    client = fila.AsyncClient(broker.target, close_timeout=60)
    pending = asyncio.create_task(client.enqueue("orders", None, b"x"))
    await asyncio.to_thread(broker.wait_for, lambda: broker.calls("EnqueueBatch"))
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    with pytest.raises(fila.ClientClosedError):
        await client.enqueue("orders", None, b"late")
    gate.open.set()
    assert (await pending).startswith("x#")
    await closing


def test_waiting_bytes_are_bounded(broker):
    gate = Gate(broker)
    client = fila.Client(broker.target, timeout=60, max_buffered_bytes=1_000)
    with ThreadPoolExecutor(8) as pool:
        first = [pool.submit(client.enqueue, "orders", None, b"x" * 600) for _ in range(2)]
        broker.wait_for(lambda: len(broker.calls("EnqueueBatch")) == 2)
        with pytest.raises(fila.DeadlineExceededError, match="not sent"):
            client.enqueue("orders", None, b"y", timeout=0.05)
        more = [pool.submit(client.enqueue, "orders", None, b"z" * 600) for _ in range(5)]
        broker.wait_for(lambda: len(client._calls._crowd) == 5)
        gate.open.set()
        for pending in first + more:
            assert pending.result(60)
    assert not client._calls._begun and not client._calls._crowd
    client.close()


async def test_waiting_bytes_of_an_async_client_are_bounded(broker):
    gate = Gate(broker)
    async with fila.AsyncClient(broker.target, timeout=60, max_buffered_bytes=1_000) as client:
        tasks = [asyncio.create_task(client.enqueue("orders", None, b"x" * 600)) for _ in range(20)]
        await asyncio.to_thread(broker.wait_for, lambda: broker.calls("EnqueueBatch"))
        assert client._calls._bytes < 2_000
        with pytest.raises(fila.DeadlineExceededError, match="not sent"):
            await client.enqueue("orders", None, b"y", timeout=0.05)
        tasks[10].cancel()
        gate.open.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(it, str) for it in found) == 19
        assert client._calls._bytes == 0 and not client._calls._begun


def test_closing_in_a_signal_handler_while_a_call_is_under_way_ends_it(broker):
    gate = Gate(broker)
    client = fila.Client(broker.target, timeout=60)
    before = signal.signal(signal.SIGALRM, lambda *_: client.close())
    try:

        def interrupt():
            broker.wait_for(lambda: broker.calls("EnqueueBatch"))
            signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

        threading.Thread(target=interrupt).start()
        with pytest.raises(fila.ClientClosedError):
            client.enqueue("orders", None, b"x")
    finally:
        signal.signal(signal.SIGALRM, before)
        gate.open.set()


def test_closing_in_a_signal_handler_ends_an_iteration(broker, wire):
    """Whatever the interrupted thread does: waits, opens its stream, or closes by itself."""

    def answer(request, context):
        wire.idle(context)
        yield from ()

    broker.script("Consume", answer)
    for pause in (0, 0.001, 0.005, 0.05):
        client = fila.Client(broker.target)
        consumer = client.consume("orders")
        before = signal.signal(signal.SIGALRM, lambda *_, it=client: it.close())
        try:
            signal.setitimer(signal.ITIMER_REAL, pause or 1e-6)
            assert list(consumer) == []
            time.sleep(0.01)
            client.close()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def test_consumers_are_closed_side_by_side(broker, wire):
    def answer(request, context):
        yield wire.frame(request.queue)
        wire.idle(context)

    broker.script("Consume", answer)
    arrived = threading.Barrier(6, timeout=60)

    def together(request, context):
        arrived.wait()  # breaks unless all give back at a time
        return broker.settle(request, context)

    client = fila.Client(broker.target)
    consumers = [client.consume(f"q{n}") for n in range(6)]
    first = [threading.Thread(target=consumer._reader.wait) for consumer in consumers]
    for thread in first:
        thread.start()
    for thread in first:
        thread.join(60)
    broker.script("NackBatch", together)
    client.close()
    assert len(broker.calls("NackBatch")) == 6


FORKING = """
import os, sys, fila
client = fila.Client(sys.argv[1])
consumer = client.consume("orders")
assert next(consumer).id == "a"
child = os.fork()
if not child:
    for act in (lambda: client.enqueue("orders"), lambda: next(consumer)):
        try:
            act()
        except fila.ClientClosedError as error:
            print(error, flush=True)
    client.close()
    os._exit(0)
os.waitpid(child, 0)
assert next(consumer).id == "b"
client.enqueue("orders", None, b"x")
client.close()
"""


def test_use_after_a_fork_says_what_to_do(broker, wire):
    def answer(request, context):
        yield wire.frame("a", "b")
        wire.idle(context)

    broker.script("Consume", answer)
    # Not from here: this process has a gRPC server, which does not outlive a fork.
    command = [sys.executable, "-c", FORKING, broker.target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    text = "the client was created in another process; create it after the fork"
    assert (done.returncode, done.stdout.splitlines()) == (0, [text, text]), done.stderr
