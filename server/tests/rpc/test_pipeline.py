# SPDX-License-Identifier: AGPL-3.0-only
"""Pipelines from the outside: batch calls over one stream, each with its answer, in order."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import fila
from fila import AclEntry
from fila.v1 import messages_pb2 as mp
from fila.v1 import service_pb2 as sp
from fila_server.limits import PIPELINE_REQUESTS_MAX
from server.tests.broker_process import BrokerProcess
from server.tests.rpc.test_overload import memory_mib
from server.tests.rpc.wire import Wire, eventually, refused

METHOD = "/fila.v1.FilaService/Pipeline"
BOOTSTRAP = "bootstrap-key-of-the-tests-0123456789"
REASON = mp.ErrorReason
WAIT_S = 60.0
CLIENT_MAX = 64  # requests that our clients have unanswered; the edge takes hundreds for a flood
MIB = 1024 * 1024
Start = Callable[..., tuple[BrokerProcess, Wire]]


class Pipe:
    """One pipeline of a client that sends bytes and reads answers when it is told to."""

    def __init__(self, channel: Any, key: str | None = None) -> None:
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        self.taken = 0  # by gRPC, which takes no more than flow control lets it send
        metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self.call = channel.stream_stream(METHOD, None, sp.PipelineResponse.FromString)(
            self._taken(), metadata=metadata
        )

    def _taken(self) -> Iterator[bytes]:
        for body in iter(self._requests.get, None):
            self.taken += 1
            yield body

    def send(self, *requests: sp.PipelineRequest | bytes) -> None:
        for request in requests:
            is_raw = isinstance(request, bytes)
            self._requests.put(request if is_raw else request.SerializeToString())  # type: ignore[arg-type, union-attr]

    def ask(self, request: sp.PipelineRequest | bytes) -> Any:
        self.send(request)
        return next(self.call)

    def half_close(self) -> None:
        self._requests.put(None)

    def close(self) -> None:
        self.half_close()
        self.call.cancel()


@pytest.fixture
def pipe(wire: Wire) -> Iterator[Pipe]:
    pipe = Pipe(wire.channel)
    yield pipe
    pipe.close()


def enqueue(name: str, *payloads: bytes, **fields: Any) -> sp.PipelineRequest:
    messages = [sp.EnqueueRequest(queue=name, payload=one, **fields) for one in payloads]
    return sp.PipelineRequest(enqueue=sp.EnqueueBatchRequest(messages=messages))


def ack(name: str, messages: Iterable[mp.Message]) -> sp.PipelineRequest:
    acks = [sp.AckRequest(queue=name, message_id=one.id) for one in messages]
    return sp.PipelineRequest(ack=sp.AckBatchRequest(acks=acks))


def nack(name: str, messages: Iterable[mp.Message]) -> sp.PipelineRequest:
    nacks = [sp.NackRequest(queue=name, message_id=one.id, retry_after_ms=0) for one in messages]
    return sp.PipelineRequest(nack=sp.NackBatchRequest(nacks=nacks))


def extend(name: str, messages: Iterable[mp.Message]) -> sp.PipelineRequest:
    items = [sp.LeaseExtension(queue=name, message_id=one.id) for one in messages]
    return sp.PipelineRequest(extend=sp.ExtendLeaseRequest(extensions=items))


def settle(name: str, message: mp.Message) -> sp.PipelineRequest:
    token = message.metadata.lease_token
    item = sp.GrantSettlement(queue=name, lease_token=token, ack=sp.GrantAck())
    return sp.PipelineRequest(settle=sp.SettleGrantsRequest(settlements=[item]))


def kinds(answers: Iterable[sp.PipelineResponse]) -> list[str | None]:
    return [one.WhichOneof("answer") for one in answers]


# --- Calls ----------------------------------------------------------------------------------------


def test_answers_come_in_the_order_of_mixed_requests(wire: Wire, pipe: Pipe) -> None:
    name = wire.queue()
    for _ in range(6):
        wire.enqueue(name)
    first, second = wire.receive(name, 4), wire.receive(name, 2)
    pipe.send(
        enqueue(name, b"1", b"2"),  # the only one that waits for the disk, and the others for it
        ack(name, first[:1]),
        nack(name, first[1:2]),
        extend(name, first[2:]),
        settle(name, second[0]),
        enqueue(name, b"3"),
    )
    answers = [next(pipe.call) for _ in range(6)]
    assert kinds(answers) == ["enqueue", "ack", "nack", "extend", "settle", "enqueue"]
    assert all(result.message_id for result in answers[0].enqueue.results)
    assert len(answers[3].extend.results) == 2
    assert answers[4].settle.results[0].messages == 2
    stats = wire.stats(name)
    assert (stats.depth, stats.in_flight) == (4, 2)


def test_many_requests_are_answered_each_with_its_own(wire: Wire, pipe: Pipe) -> None:
    name = wire.queue()
    sizes = [n % 7 + 1 for n in range(5 * CLIENT_MAX)]
    for start in range(0, len(sizes), CLIENT_MAX):
        some = sizes[start : start + CLIENT_MAX]
        pipe.send(*(enqueue(name, *[b"x"] * size) for size in some))
        assert [len(next(pipe.call).enqueue.results) for _ in some] == some
    assert wire.stats(name).depth == sum(sizes)


def test_errors_of_items_are_their_own(wire: Wire, pipe: Pipe) -> None:
    name = wire.queue()
    request = enqueue(name, b"x")
    request.enqueue.messages.add(queue="nobody")
    stored, lost = pipe.ask(request).enqueue.results
    assert stored.message_id
    assert lost.error.reason == REASON.ERROR_REASON_QUEUE_NOT_FOUND
    (result,) = pipe.ask(ack(name, [mp.Message(id="nobody")])).ack.results
    assert result.error.reason == REASON.ERROR_REASON_MESSAGE_NOT_FOUND


def test_a_large_batch_is_stored_in_order(wire: Wire, pipe: Pipe) -> None:
    name = wire.queue()
    payloads = [b"%05d" % n + bytes(400) for n in range(5000)]
    results = pipe.ask(enqueue(name, *payloads)).enqueue.results
    assert len(results) == 5000
    (first,) = wire.receive(name)
    assert first.payload == payloads[0]


# --- Requests that are refused as a whole ---------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "names no call"),
        (b"\x38\x01", "names no call"),  # a field that nobody knows
        (b"\xff" * 50, "cannot be decoded"),
        (b"\x0a\x05abc", "cannot be decoded"),
        (b"\x0a\x03abc", "cannot be decoded"),
        (b"\x38\x01" * 100, "cannot be decoded"),
        (b"\x12\x03\xff\xff\xff", "cannot be decoded"),
    ],
)
def test_bytes_that_are_no_request_are_refused_and_the_stream_goes_on(
    wire: Wire, pipe: Pipe, body: bytes, text: str
) -> None:
    name = wire.queue()
    error = pipe.ask(body).error
    assert error.reason == REASON.ERROR_REASON_INVALID_ARGUMENT
    assert text in error.message
    assert pipe.ask(enqueue(name, b"x")).enqueue.results[0].message_id


@pytest.mark.parametrize("number", range(1, 6))
def test_far_too_many_items_are_refused_unseen(wire: Wire, pipe: Pipe, number: int) -> None:
    """As in the calls themselves: protobuf would take seconds, and a gigabyte."""
    items = b"\x0a\x00" * 4_000_000
    size = len(items)
    head = bytes((number << 3 | 2, size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80))
    error = pipe.ask(head + bytes((size >> 14 & 0x7F | 0x80, size >> 21)) + items).error
    assert error.reason == REASON.ERROR_REASON_MESSAGE_TOO_LARGE
    assert wire.queue()


def test_a_request_in_two_parts_is_put_together(wire: Wire, pipe: Pipe) -> None:
    """As protobuf has it: what is said twice is merged, and the last call wins."""
    name = wire.queue()
    one, other = enqueue(name, b"1").SerializeToString(), enqueue(name, b"2").SerializeToString()
    lost = ack(name, [mp.Message(id="lost")]).SerializeToString()
    assert len(pipe.ask(one + b"\x38\x01" + other).enqueue.results) == 2
    assert len(pipe.ask(one + lost + other).enqueue.results) == 1
    assert wire.stats(name).depth == 3


def test_a_message_beyond_the_limit_ends_the_pipeline_and_nothing_else(wire: Wire) -> None:
    name = wire.queue()
    pipe = Pipe(wire.channel)
    assert pipe.ask(enqueue(name, b"x")).enqueue.results
    pipe.send(enqueue(name, *[bytes(3 * MIB)] * 6))
    refusal = refused(lambda: next(pipe.call))
    assert refusal.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert wire.stats(name).depth == 1
    assert Pipe(wire.channel).ask(enqueue(name, b"x")).enqueue.results[0].message_id


# --- Credit ---------------------------------------------------------------------------------------


@pytest.mark.serial
def test_a_client_that_reads_no_answers_is_not_read_on(start: Start) -> None:
    broker, wire = start()
    name = wire.queue()
    before = memory_mib(broker)
    # Answers that fill the client's window soon, and requests that would fill the broker.
    request = enqueue(name, *[b"x"] * 500).SerializeToString()
    ballast = request + b"\x3a\x80\x80\x10" + bytes(MIB // 4)  # field 7, which nobody knows
    options = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(broker.address, options=options) as channel:
        pipe = Pipe(channel)
        pipe.send(*[ballast] * 400)
        stored, is_still = 0, 0
        while is_still < 4:
            time.sleep(0.5)
            depth = wire.stats(name).depth
            stored, is_still = depth, is_still + 1 if depth == stored > 0 else 0
        assert stored <= (PIPELINE_REQUESTS_MAX + 20) * 500
        assert memory_mib(broker) - before < 60  # 100 MiB would have come in
        wire.enqueue(name)  # the others go on
        for _ in range(400):
            assert len(next(pipe.call).enqueue.results) == 500
        pipe.close()
    assert wire.stats(name).depth == 400 * 500 + 1


@pytest.mark.serial
def test_a_slow_disk_lets_no_more_than_the_bound_begin(tmp_path: Path, faultfs: Path) -> None:
    armed = tmp_path / "armed"
    environment = {
        "LD_PRELOAD": str(faultfs),
        "FAULT_MATCH": ".log",
        "FAULT_ARMED": str(armed),
    }
    broker = BrokerProcess(tmp_path, environment=environment)
    broker.start()
    wire = Wire(broker.address)
    try:
        name = wire.queue()
        pipe, acks = Pipe(wire.channel), Pipe(wire.channel)
        wire.enqueue(name)
        (message,) = wire.receive(name)
        armed.write_text("d")
        pipe.send(*[enqueue(name, b"x")] * 60)
        # Acks need no fsync, and do not wait behind enqueues in a pipeline of their own.
        assert acks.ask(ack(name, [message])).ack.results
        time.sleep(0.5)
        assert wire.stats(name).depth <= PIPELINE_REQUESTS_MAX
        armed.unlink()
        assert kinds(next(pipe.call) for _ in range(60)) == ["enqueue"] * 60
        assert wire.stats(name).depth == 60
        pipe.close()
        acks.close()
    finally:
        wire.close()
        broker.close()


def test_two_pipelines_at_a_time_do_not_mix(wire: Wire) -> None:
    names = [wire.queue() for _ in range(2)]
    pipes = [Pipe(wire.channel) for _ in names]

    def produce(pipe: Pipe, name: str, size: int) -> None:
        for _ in range(50):
            pipe.send(enqueue(name, *[b"x"] * size))

    threads = [
        threading.Thread(target=produce, args=(pipe, name, size))
        for pipe, name, size in zip(pipes, names, (2, 3), strict=True)
    ]
    for thread in threads:
        thread.start()
    for pipe, size in zip(pipes, (2, 3), strict=True):
        assert [len(next(pipe.call).enqueue.results) for _ in range(50)] == [size] * 50
        pipe.close()
    assert [wire.stats(name).depth for name in names] == [100, 150]


@pytest.mark.serial
def test_a_thousand_idle_pipelines_cost_little_and_end_promptly(start: Start) -> None:
    broker, wire = start()
    name = wire.queue()
    before = memory_mib(broker)

    async def idle() -> int:
        body = enqueue(name, b"x").SerializeToString()
        channels = [grpc.aio.insecure_channel(broker.address) for _ in range(4)]
        calls: list[Any] = [
            channels[n % 4].stream_stream(METHOD, None, None)() for n in range(1000)
        ]
        await asyncio.gather(*(call.write(body) for call in calls))
        await asyncio.gather(*(call.read() for call in calls))
        held = memory_mib(broker) - before
        assert wire.stats(name).depth == 1000
        began = time.monotonic()
        assert await asyncio.to_thread(broker.terminate) == 0
        assert time.monotonic() - began < 10
        codes = await asyncio.gather(*(call.code() for call in calls))
        assert set(codes) == {grpc.StatusCode.UNAVAILABLE}
        for channel in channels:
            await channel.close()
        return held

    assert asyncio.run(idle()) < 150


# --- Ends -----------------------------------------------------------------------------------------


def test_a_half_close_lets_what_is_under_way_be_answered(wire: Wire) -> None:
    name = wire.queue()
    pipe = Pipe(wire.channel)
    pipe.send(*[enqueue(name, b"x")] * 40)
    pipe.half_close()
    assert kinds(pipe.call) == ["enqueue"] * 40
    assert pipe.call.code() is grpc.StatusCode.OK
    empty = Pipe(wire.channel)
    empty.half_close()
    assert list(empty.call) == []


def test_a_pipeline_is_known_to_be_open_before_its_first_answer(pipe: Pipe) -> None:
    assert pipe.call.initial_metadata() is not None
    assert pipe.call.is_active()


def test_a_broker_that_stops_answers_what_is_under_way(start: Start) -> None:
    broker, wire = start("[server]\nshutdown_grace_ms = 30000\n")
    name = wire.queue()
    idle, busy = Pipe(wire.channel), Pipe(wire.channel)
    assert idle.ask(enqueue(name, b"x")).enqueue.results
    answered = 0

    def produce() -> None:
        for _ in range(CLIENT_MAX):
            busy.send(enqueue(name, b"x"))

    producing = threading.Thread(target=produce)
    producing.start()
    next(busy.call)
    answered = 1
    began = time.monotonic()
    stopping = threading.Thread(target=broker.terminate)
    stopping.start()
    refusal = refused(lambda: next(idle.call))
    assert (refusal.status, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
    try:
        for answer in busy.call:
            if answer.WhichOneof("answer") == "enqueue":
                answered += 1
            else:
                assert answer.error.reason == REASON.ERROR_REASON_SHUTTING_DOWN
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
    stopping.join()
    producing.join()
    assert time.monotonic() - began < 20  # not the time of grace
    broker.start()
    again = Wire(broker.address)
    # What was answered is there; what was not may be there.
    assert again.stats(name).depth >= answered + 1
    again.close()
    for pipe in (idle, busy):
        pipe.close()


def test_what_a_client_that_vanishes_began_happens_once(wire: Wire) -> None:
    name = wire.queue()
    for n in range(20):
        other = Wire(wire.address)
        pipe = Pipe(other.channel)
        pipe.send(*[enqueue(name, b"%d-%d" % (n, m)) for m in range(10)])
        if n % 2:
            next(pipe.call)
        pipe.call.cancel()
        pipe.half_close()
        other.close()
    # The broker goes on, and nothing was stored twice.
    last = wire.enqueue(name, b"last")
    found = [message.payload for message in wire.receive(name, 500)]
    assert last and b"last" in found
    assert len(found) == len(set(found)) <= 201
    assert {b"%d-0" % n for n in range(1, 20, 2)} <= set(found)


# --- Keys -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    environment = {"FILA_AUTH__BOOTSTRAP_APIKEY": BOOTSTRAP}
    broker = BrokerProcess(tmp_path_factory.mktemp("guarded"), environment=environment)
    broker.start()
    yield broker
    broker.close()


def test_a_key_is_checked_with_every_request(guarded: BrokerProcess) -> None:
    with fila.Client(guarded.address, api_key=BOOTSTRAP, timeout=WAIT_S) as root:
        for name in ("orders", "mail"):
            root.create_queue(name)
        key = root.create_api_key("worker", [AclEntry("produce", "orders")])
        wire = Wire(guarded.address)
        pipe = Pipe(wire.channel, key.secret)
        mixed = enqueue("orders", b"x")
        mixed.enqueue.messages.add(queue="mail")
        stored, denied = pipe.ask(mixed).enqueue.results
        assert stored.message_id
        assert denied.error.reason == REASON.ERROR_REASON_PERMISSION_DENIED
        root.set_acl(key.key_id, [AclEntry("produce", "mail")])
        denied, stored = pipe.ask(mixed).enqueue.results
        assert stored.message_id
        assert denied.error.reason == REASON.ERROR_REASON_PERMISSION_DENIED
        root.revoke_api_key(key.key_id)
        for _ in range(2):
            assert pipe.ask(mixed).error.reason == REASON.ERROR_REASON_UNAUTHENTICATED
        pipe.close()
        refusal = refused(lambda: next(Pipe(wire.channel, key.secret).call))
        assert refusal.status is grpc.StatusCode.UNAUTHENTICATED
        refusal = refused(lambda: next(Pipe(wire.channel).call))
        assert refusal.status is grpc.StatusCode.UNAUTHENTICATED
        wire.close()


def test_a_pipeline_is_one_call(start: Start) -> None:
    _, wire = start("[limits]\nmax_concurrent_rpcs = 3\n")
    name = wire.queue()
    pipes = [Pipe(wire.channel) for _ in range(3)]
    for pipe in pipes[:2]:
        assert pipe.ask(enqueue(name, b"x")).enqueue.results
    pipes[2].send(enqueue(name, b"x"))
    next(pipes[2].call)
    refusal = refused(lambda: next(Pipe(wire.channel).call))
    assert refusal.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    for pipe in pipes:
        pipe.close()

    def is_free() -> bool:
        try:
            return bool(wire.enqueue(name))
        except grpc.RpcError:
            return False

    eventually(is_free)
