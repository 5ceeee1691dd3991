# SPDX-License-Identifier: AGPL-3.0-only
"""Concurrent calls share requests, each caller gets its own answer, and nobody waits for others."""

import asyncio
import signal
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

import fila
from fila import _coalesce, _wire
from fila._wire import Item
from fila.v1 import messages_pb2, service_pb2

CALLERS = 64
PATIENCE_S = 60


class Interrupted(Exception):
    """What a signal handler raises."""


@pytest.fixture
def client(broker):
    with fila.Client(broker.target, timeout=PATIENCE_S) as client:
        yield client


class Gate:
    """Holds requests at the broker until it is opened."""

    def __init__(self, broker, method="EnqueueBatch"):
        self.open = threading.Event()
        self.arrived = threading.Semaphore(0)
        answer = broker.scripts[method]

        def wait(request, context):
            self.arrived.release()
            assert self.open.wait(PATIENCE_S)
            return answer(request, context)

        broker.script(method, wait)

    def wait_for_requests(self, count=1):
        for _ in range(count):
            assert self.arrived.acquire(timeout=PATIENCE_S)


def sizes(broker, method="EnqueueBatch", field="messages"):
    return [len(getattr(call.request, field)) for call in broker.calls(method)]


def fill_slots(broker, pool, client):
    """Occupies every slot with a request that waits at the gate."""
    gate = Gate(broker)
    slots = _coalesce.REQUESTS_UNDER_WAY_MAX
    held = [pool.submit(client.enqueue, "orders", None, b"first") for _ in range(slots)]
    gate.wait_for_requests(slots)
    return gate, held


def wait_for_waiting(coalescer, count):
    deadline = time.monotonic() + PATIENCE_S
    while len(coalescer._waiting) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(CALLERS) as pool:
        yield pool


def test_a_lone_call_goes_out_alone(broker, client):
    for number in range(20):
        assert client.enqueue("orders", None, b"x").startswith("x#"), number
    assert sizes(broker) == [1] * 20


def test_calls_that_pile_up_share_the_next_request(broker, client, pool):
    gate, held = fill_slots(broker, pool, client)
    calls = {
        f"caller-{n}": pool.submit(client.enqueue, "orders", None, f"caller-{n}".encode())
        for n in range(CALLERS - len(held))
    }
    wait_for_waiting(client._calls.enqueues, len(calls))
    gate.open.set()
    for name, call in calls.items():
        assert call.result(PATIENCE_S).split("#")[0] == name
    assert sizes(broker) == [1] * len(held) + [len(calls)]


def test_sixty_four_threads_need_far_fewer_requests(broker, client, pool):
    each = 10
    answer = broker.scripts["EnqueueBatch"]

    def slow(request, context):
        time.sleep(0.01)
        return answer(request, context)

    broker.script("EnqueueBatch", slow)

    def enqueue(name):
        return [client.enqueue("orders", None, name.encode()).split("#") for _ in range(each)]

    ids = set()
    for caller, found in zip(
        range(CALLERS), pool.map(enqueue, map(str, range(CALLERS))), strict=True
    ):
        assert {name for name, _ in found} == {str(caller)}
        ids |= {number for _, number in found}
    assert len(ids) == CALLERS * each
    assert sum(sizes(broker)) == CALLERS * each
    assert len(broker.seen) < CALLERS * each / 2


@pytest.mark.asyncio
async def test_sixty_four_tasks_share_one_request(broker):
    async with fila.AsyncClient(broker.target, timeout=PATIENCE_S) as client:
        calls = [client.enqueue("orders", None, f"{n}".encode()) for n in range(CALLERS)]
        ids = await asyncio.gather(*calls)
        assert [found.split("#")[0] for found in ids] == [str(n) for n in range(CALLERS)]
        assert sizes(broker) == [CALLERS]
        await client.enqueue("orders", None, b"x")
    assert sizes(broker) == [CALLERS, 1]


def test_acks_nacks_and_extensions_are_shared_too(broker, client, pool):
    def extended(request, context):
        result = service_pb2.ExtendLeaseResult()
        result.lease_expires_at.seconds = 1_000_000
        return service_pb2.ExtendLeaseResponse(results=[result] * len(request.extensions))

    broker.script("ExtendLease", extended)
    for method, field, call, coalescer in (
        ("AckBatch", "acks", client.ack, client._calls.acks),
        ("NackBatch", "nacks", client.nack, client._calls.nacks),
        ("ExtendLease", "extensions", client.extend, client._calls.extensions),
    ):
        gate = Gate(broker, method)
        calls = [pool.submit(call, "orders", f"m-{n}") for n in range(2)]
        gate.wait_for_requests(2)
        calls += [pool.submit(call, "orders", f"m-{n}") for n in range(10)]
        wait_for_waiting(coalescer, 10)
        gate.open.set()
        for pending in calls:
            pending.result(PATIENCE_S)
        assert sizes(broker, method, field) == [1, 1, 10]


def test_one_bad_item_fails_alone(broker, client, pool):
    def picky(request, context):
        def result(message):
            if message.payload == b"bad":
                error = messages_pb2.ItemError(
                    reason="ERROR_REASON_QUEUE_FULL", message="queue is full"
                )
                return service_pb2.EnqueueResult(error=error)
            return service_pb2.EnqueueResult(message_id=message.payload.decode())

        results = [result(message) for message in request.messages]
        return service_pb2.EnqueueBatchResponse(results=results)

    broker.script("EnqueueBatch", picky)
    gate, held = fill_slots(broker, pool, client)
    payloads = [b"bad" if n == 3 else f"good-{n}".encode() for n in range(8)]
    calls = [pool.submit(client.enqueue, "orders", None, payload) for payload in payloads]
    wait_for_waiting(client._calls.enqueues, len(calls))
    gate.open.set()
    for payload, call in zip(payloads, calls, strict=True):
        if payload == b"bad":
            with pytest.raises(fila.QueueFullError, match="queue is full"):
                call.result(PATIENCE_S)
        else:
            assert call.result(PATIENCE_S) == payload.decode()
    assert sizes(broker) == [1] * len(held) + [8]


def test_each_caller_of_a_failed_request_gets_its_own_exception(broker, client, pool, wire):
    broker.script("EnqueueBatch", wire.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much"))
    gate, _held = fill_slots(broker, pool, client)
    calls = [pool.submit(client.enqueue, f"queue-{n}") for n in range(8)]
    wait_for_waiting(client._calls.enqueues, 8)
    gate.open.set()
    errors = [call.exception(PATIENCE_S) for call in calls]
    assert {type(error) for error in errors} == {fila.ResourceExhaustedError}
    assert {error.queue for error in errors} == {f"queue-{n}" for n in range(8)}
    assert len({id(error) for error in errors}) == 8


def test_a_short_timeout_is_kept_inside_a_shared_request(broker, client, pool):
    gate, held = fill_slots(broker, pool, client)
    patient = [pool.submit(client.enqueue, "orders", None, b"patient") for _ in range(4)]
    wait_for_waiting(client._calls.enqueues, 4)
    error = pool.submit(client.enqueue, "orders", None, b"hasty", timeout=0.2).exception(PATIENCE_S)
    assert type(error) is fila.DeadlineExceededError
    assert "not sent" in error.message
    gate.open.set()
    assert all(call.result(PATIENCE_S).startswith("patient") for call in patient)
    # Who left before the request was sent is not in it.
    assert sizes(broker) == [1] * len(held) + [4]


def test_a_caller_leaves_a_request_under_way_at_its_own_deadline(broker, client, pool):
    gate, _held = fill_slots(broker, pool, client)
    second_gate = threading.Event()
    answer = broker.store

    def hold(request, context):
        assert second_gate.wait(PATIENCE_S)
        return answer(request, context)

    broker.script("EnqueueBatch", hold)
    patient = pool.submit(client.enqueue, "orders", None, b"patient")
    hasty = pool.submit(client.enqueue, "orders", None, b"hasty", timeout=2)
    wait_for_waiting(client._calls.enqueues, 2)
    gate.open.set()
    error = hasty.exception(PATIENCE_S)
    assert type(error) is fila.DeadlineExceededError
    assert "unknown" in error.message
    # The request has the deadline of the most patient caller, so the others are not cut off.
    shared = broker.calls("EnqueueBatch")[-1]
    assert len(shared.request.messages) == 2
    assert shared.time_remaining > 2
    second_gate.set()
    assert patient.result(PATIENCE_S).startswith("patient")


@pytest.mark.asyncio
async def test_a_short_timeout_is_kept_inside_a_shared_async_request(broker):
    gate = Gate(broker)
    async with fila.AsyncClient(broker.target, timeout=PATIENCE_S) as client:
        patient = asyncio.create_task(client.enqueue("orders", None, b"patient"))
        # Long enough to be sent, however busy the machine.
        with pytest.raises(fila.DeadlineExceededError):
            await client.enqueue("orders", None, b"hasty", timeout=2)
        assert broker.calls("EnqueueBatch")[0].time_remaining > 2
        gate.open.set()
        assert (await patient).startswith("patient")
    assert sizes(broker) == [2]


@pytest.mark.asyncio
async def test_cancelling_one_task_leaves_the_others_alone(broker):
    gate = Gate(broker)
    async with fila.AsyncClient(broker.target, timeout=PATIENCE_S) as client:
        tasks = [
            asyncio.create_task(client.enqueue("orders", None, f"{n}".encode())) for n in range(4)
        ]
        await asyncio.to_thread(gate.wait_for_requests)
        # Under way, and still in the queue.
        late = [asyncio.create_task(client.enqueue("orders", None, b"late")) for _ in range(2)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        gate.open.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found[1], asyncio.CancelledError)
        assert [found[n].split("#")[0] for n in (0, 2, 3)] == ["0", "2", "3"]
        assert all(found.startswith("late") for found in await asyncio.gather(*late))


@pytest.mark.asyncio
async def test_a_task_cancelled_before_it_was_sent_sends_nothing(broker):
    gate = Gate(broker)
    async with fila.AsyncClient(broker.target, timeout=PATIENCE_S) as client:
        slots = _coalesce.REQUESTS_UNDER_WAY_MAX
        held = []
        for _ in range(slots):
            held.append(asyncio.create_task(client.enqueue("orders", None, b"held")))
            await asyncio.to_thread(gate.wait_for_requests)
        waiting = [
            asyncio.create_task(client.enqueue("orders", None, f"{n}".encode())) for n in range(3)
        ]
        await asyncio.sleep(0)
        waiting[1].cancel()
        gate.open.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(found[1], asyncio.CancelledError)
        await asyncio.gather(*held)
    assert sizes(broker) == [1] * slots + [2]


# --- Interruptions --------------------------------------------------------------------------------


@contextmanager
def interrupted_when(condition):
    """Raises Interrupted in this thread, out of a signal handler, once a condition holds."""

    def handler(*_):
        raise Interrupted

    def wait_and_interrupt():
        condition()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        waiter = threading.Thread(target=wait_and_interrupt)
        waiter.start()
        with pytest.raises(Interrupted):
            yield
        waiter.join()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_interrupted_leader_hands_its_slot_on(broker, client, pool):
    """Ctrl-C in one thread neither stops the others nor loses a slot."""
    gate = Gate(broker)
    with interrupted_when(gate.wait_for_requests):
        client.enqueue("orders", None, b"interrupted")
    gate.open.set()
    assert client._calls.enqueues._free_slots == _coalesce.REQUESTS_UNDER_WAY_MAX
    calls = [pool.submit(client.enqueue, "orders", None, b"x") for _ in range(CALLERS)]
    assert all(call.result(PATIENCE_S).startswith("x") for call in calls)


def test_an_interrupted_waiter_leaves_the_queue(broker, client, pool):
    gate, held = fill_slots(broker, pool, client)
    with interrupted_when(lambda: wait_for_waiting(client._calls.enqueues, 1)):
        client.enqueue("orders", None, b"interrupted")
    other = pool.submit(client.enqueue, "orders", None, b"other")
    gate.open.set()
    assert other.result(PATIENCE_S).startswith("other")
    assert b"interrupted" not in [
        m.payload for call in broker.calls("EnqueueBatch") for m in call.request.messages
    ]
    assert all(call.result(PATIENCE_S) for call in held)  # who leads a request frees its slot
    assert client._calls.enqueues._free_slots == _coalesce.REQUESTS_UNDER_WAY_MAX


# --- Batches --------------------------------------------------------------------------------------


class Seat:
    def __init__(self, size, is_gone=False):
        self.item = Item(b"x" * size, "orders")
        self.is_gone = is_gone


def test_a_batch_stays_within_its_limits_and_skips_who_left():
    big = _wire.BATCH_BYTES_MAX
    waiting = deque(
        [Seat(1, is_gone=True), Seat(big - 10), Seat(11, is_gone=True), Seat(10), Seat(1)]
    )
    assert [len(s.item.data) for s in _coalesce.take(waiting)] == [big - 10, 10]
    assert [len(s.item.data) for s in _coalesce.take(waiting)] == [1]
    # One that is larger than any batch goes alone.
    waiting.extend([Seat(big + 1), Seat(1)])
    assert [len(s.item.data) for s in _coalesce.take(waiting)] == [big + 1]
    waiting.extend(Seat(1) for _ in range(_wire.BATCH_ITEMS_MAX))
    assert len(_coalesce.take(waiting)) == _wire.BATCH_ITEMS_MAX
    assert len(_coalesce.take(waiting)) == 1
    assert _coalesce.take(waiting) == []
