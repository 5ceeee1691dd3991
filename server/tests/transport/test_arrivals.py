# SPDX-License-Identifier: AGPL-3.0-only
"""Bodies on their way in: bounded in bytes, and nobody who sends little waits for them.

A real server with one method that answers with its request's size, and real clients.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from fila_server.errors import FilaError, Overloaded
from fila_server.rpc.method import Conversation, Method, bidi
from fila_server.transport.grpcio import arrivals, rim
from fila_server.transport.grpcio.arrivals import Arrivals
from fila_server.transport.grpcio.rim import Rim
from server.tests.rpc.http2 import Connection

MIB = 1024 * 1024
METHOD = "/test.Sizes/Measure"
LIMIT_S = 60.0


class Sizes:
    """A server whose calls wait for a gate, and what a client of it can do."""

    def __init__(self, bytes_max: int) -> None:
        self.arrivals = Arrivals(bytes_max)
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = 0
        options = [("grpc.max_receive_message_length", 16 * MIB), ("grpc.http2.bdp_probe", 0)]
        self.server = grpc.aio.server(options=options)
        rim = Rim(self.arrivals)
        handlers = rim.handlers([Method(METHOD, self._measure, bytes)])
        self.server.add_generic_rpc_handlers((handlers,))
        self.channels: list[Any] = []

    async def _measure(self, body: bytes, context: Any) -> bytes:
        self.begun += 1
        await self.gate.wait()
        return b"%d" % len(body)

    async def start(self) -> None:
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()

    async def stop(self) -> None:
        self.gate.set()
        for channel in self.channels:
            await channel.close()
        await self.server.stop(0)

    def client(self) -> Callable[[int], Any]:
        """Return what calls with a body of a size, over a connection of its own."""
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        channel: Any = grpc.aio.insecure_channel(self.address, options=options)
        self.channels.append(channel)
        method = channel.unary_unary(METHOD, None, None)
        return lambda size: method(bytes(size), timeout=LIMIT_S)


@pytest.fixture
async def start() -> AsyncIterator[Callable[[int], Any]]:
    started: list[Sizes] = []

    async def run(bytes_max: int) -> Sizes:
        started.append(Sizes(bytes_max))
        await started[-1].start()
        return started[-1]

    yield run
    for sizes in started:
        await sizes.stop()


async def eventually(what: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if what():
            return
        await asyncio.sleep(0.005)
    pytest.fail("it never came to hold")


async def outcome(call: Any) -> str:
    try:
        return str((await call).decode())
    except grpc.aio.AioRpcError as error:
        failed: Any = error
        assert failed.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, failed
        return str(dict(failed.trailing_metadata())["fila-reason"])


async def test_a_body_takes_up_its_bytes_until_the_answer(start: Any) -> None:
    sizes = await start(8 * MIB)
    sizes.gate.clear()
    call = sizes.client()(1000)
    await eventually(lambda: sizes.begun == 1)
    assert sizes.arrivals.taken == 1000
    sizes.gate.set()
    assert await outcome(call) == "1000"
    assert sizes.arrivals.taken == 0


async def test_bodies_beyond_the_budget_are_refused_and_small_ones_are_not(start: Any) -> None:
    sizes = await start(8 * MIB)
    sizes.gate.clear()
    calls = [sizes.client()(3 * MIB) for _ in range(5)]
    refused = asyncio.gather(*(outcome(call) for call in calls))
    await eventually(lambda: sum(call.done() for call in calls) >= 3)
    small = sizes.client()(1000)
    await eventually(lambda: sizes.begun == 3)
    assert sizes.arrivals.taken <= 8 * MIB
    sizes.gate.set()
    assert await outcome(small) == "1000"
    assert sorted(await refused) == [str(3 * MIB)] * 2 + ["OVERLOADED"] * 3
    assert sizes.arrivals.taken == 0


async def test_whoever_sent_a_large_body_waits_for_room_with_the_next(start: Any) -> None:
    sizes = await start(8 * MIB)
    clients = [sizes.client() for _ in range(6)]
    for client in clients:
        assert await outcome(client(3 * MIB)) == str(3 * MIB)
    sizes.gate.clear()
    sizes.begun = 0
    calls = [asyncio.ensure_future(outcome(client(3 * MIB))) for client in clients]
    await eventually(lambda: sizes.begun == 2)
    await asyncio.sleep(0.3)  # the others stay with their clients
    assert (sizes.begun, sizes.arrivals.taken) == (2, 6 * MIB)
    sizes.gate.set()
    assert await asyncio.gather(*calls) == [str(3 * MIB)] * 6
    assert sizes.arrivals.taken == 0


async def test_connections_take_turns_in_the_line_and_the_last_gives_way(start: Any) -> None:
    sizes = await start(8 * MIB)
    noisy, quiet = sizes.client(), sizes.client()
    for client in (noisy, quiet):
        await outcome(client(5 * MIB))
    sizes.gate.clear()
    first = asyncio.ensure_future(outcome(noisy(5 * MIB)))
    await eventually(lambda: sizes.begun == 3)
    order: list[str] = []

    async def called(name: str, client: Callable[[int], Any]) -> None:
        order.append(name + await outcome(client(5 * MIB)))

    many = [asyncio.ensure_future(called("noisy ", noisy)) for _ in range(33)]
    await eventually(lambda: order == ["noisy OVERLOADED"])  # 32 wait
    one = asyncio.ensure_future(called("quiet ", quiet))
    await eventually(lambda: len(order) == 2)
    assert order.pop() == "noisy OVERLOADED"  # it made room for the other
    sizes.gate.set()
    await asyncio.gather(first, one, *many)
    assert f"quiet {5 * MIB}" in order[:4]
    assert sizes.arrivals.taken == 0


async def test_who_comes_again_and_again_overtakes_nobody_for_ever() -> None:
    arrivals = Arrivals(MIB)
    order: list[str] = []

    async def wait(peer: str) -> None:
        await arrivals._wait_for_room(peer, MIB)
        order.append(peer)

    again = asyncio.ensure_future(wait("again"))
    await again
    patient = [asyncio.ensure_future(wait("patient")) for _ in range(3)]
    for _ in range(6):
        if again.done():
            again = asyncio.ensure_future(wait("again"))
        await asyncio.sleep(0)
        arrivals.leave(MIB)
        await asyncio.sleep(0)
    assert all(one.done() for one in patient), order


async def test_who_leaves_the_line_makes_room_in_it_and_holds_nobody_up() -> None:
    arrivals = Arrivals(8 * MIB)
    await arrivals._wait_for_room("a", 4 * MIB)
    line = [asyncio.ensure_future(arrivals._wait_for_room("b", 4 * MIB)) for _ in range(32)]
    await asyncio.sleep(0)
    for task in line:
        task.cancel()
    await asyncio.sleep(0)
    small = asyncio.ensure_future(arrivals._wait_for_room("b", MIB))  # there is room for this one
    await asyncio.wait_for(small, 1)
    assert arrivals.taken == 5 * MIB
    large = asyncio.ensure_future(arrivals._wait_for_room("b", 4 * MIB))
    behind = asyncio.ensure_future(arrivals._wait_for_room("c", MIB))
    await asyncio.sleep(0)
    assert not large.done() and not behind.done()
    large.cancel()
    await asyncio.wait_for(behind, 1)
    assert arrivals.taken == 6 * MIB


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_happens_in_the_line_all_bytes_are_accounted_for(seed: int) -> None:
    dice = random.Random(seed)
    arrivals = Arrivals(8 * MIB)
    line: dict[asyncio.Future[None], int] = {}
    held: list[int] = []

    async def settle() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        for task in [task for task in line if task.done()]:
            size = line.pop(task)
            if task.cancelled():
                continue
            if task.exception() is None:
                held.append(size)
            else:
                assert isinstance(task.exception(), Overloaded)

    for _ in range(400):
        match dice.randrange(4):
            case 0 | 1:
                size = dice.choice((256 * 1024, MIB, 3 * MIB, 16 * MIB))
                peer = str(dice.randrange(5))
                line[asyncio.ensure_future(arrivals._wait_for_room(peer, size))] = size
            case 2 if held:
                arrivals.leave(held.pop(dice.randrange(len(held))))
            case 3 if line:
                dice.choice(list(line)).cancel()
        if dice.random() < 0.7:
            await settle()
            assert arrivals.taken == sum(held)
            assert arrivals.taken <= 6 * MIB or len(held) == 1
            waiting = arrivals._waiting
            assert len(waiting) == len(line) <= 32
            assert [it.turn for it in waiting] == sorted(it.turn for it in waiting)
            assert not waiting or not arrivals._has_room(waiting[0].size)
    for task in line:
        task.cancel()
    await settle()
    while held:
        arrivals.leave(held.pop())
    assert arrivals.taken == 0 and not arrivals._waiting


async def test_one_body_passes_whatever_its_size(start: Any) -> None:
    sizes = await start(MIB)
    client = sizes.client()
    for _ in range(3):
        assert await outcome(client(5 * MIB)) == str(5 * MIB)
    assert sizes.arrivals.taken == 0


async def test_callers_that_leave_give_their_room_back(start: Any) -> None:
    sizes = await start(8 * MIB)
    client = sizes.client()
    await outcome(client(3 * MIB))
    sizes.gate.clear()
    sizes.begun = 0
    calls = [client(3 * MIB) for _ in range(5)]
    await eventually(lambda: sizes.begun == 2)
    for call in calls:
        call.cancel()
    await eventually(lambda: sizes.arrivals.taken == 0)
    sizes.gate.set()
    assert await outcome(client(3 * MIB)) == str(3 * MIB)


async def test_bodies_that_stop_halfway_are_refused_beyond_some(start: Any) -> None:
    sizes = await start(8 * MIB)
    connections = [Connection(sizes.address) for _ in range(30)]
    try:
        for connection in connections:
            stream = connection.call(METHOD)
            connection.begin_message(stream, MIB)
            connection.send(stream, 1000)

        def ended() -> int:
            for connection in connections:
                connection.pump(0.001)
            return sum(bool(connection.ended) for connection in connections)

        await eventually(lambda: ended() == 18)
        assert sizes.arrivals.taken == 12 * (8 * MIB // 16)  # what large bodies may take up
        assert await outcome(sizes.client()(1000)) == "1000"
    finally:
        for connection in connections:
            connection.close()
    await eventually(lambda: sizes.arrivals.taken == 0)


async def test_bodies_that_do_not_come_give_way_to_those_that_wait(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "_PATIENCE_LOOKS", 10)
    sizes = await start(8 * MIB)
    client = sizes.client()
    assert await outcome(client(3 * MIB)) == str(3 * MIB)
    connections = [Connection(sizes.address) for _ in range(12)]
    try:
        for connection in connections:
            connection.begin_message(connection.call(METHOD), MIB)
        await eventually(lambda: sizes.arrivals.taken == 12 * (8 * MIB // 16))
        await asyncio.sleep(0.6)
        assert sizes.arrivals.taken == 12 * (8 * MIB // 16)  # nobody wants it
        assert await outcome(client(3 * MIB)) == str(3 * MIB)
        assert sizes.arrivals.taken >= 5 * (8 * MIB // 16)  # no more of them went than had to
    finally:
        for connection in connections:
            connection.close()
    await eventually(lambda: sizes.arrivals.taken == 0)


async def test_a_call_without_a_request(start: Any) -> None:
    sizes = await start(8 * MIB)
    sizes.client()
    method = sizes.channels[0].stream_unary(METHOD, None, None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await method(iter(()), timeout=LIMIT_S)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# --- Calls that bring many ------------------------------------------------------------------------


async def test_requests_of_a_conversation_take_up_their_bytes_until_they_are_answered(
    start: Callable[[int], Any],
) -> None:
    sizes: Sizes = await start(MIB)
    taken: list[int] = []

    async def converse(_: None, call: Conversation) -> None:
        bodies: list[bytes | FilaError] = []

        def begin(body: bytes | FilaError) -> None:
            bodies.append(body)
            taken.append(sizes.arrivals.taken)
            if len(bodies) == 3:
                for one in bodies:
                    call.reply(b"full" if isinstance(one, FilaError) else b"%d" % len(one))

        await call.attend(begin)

    server = grpc.aio.server()
    handlers = Rim(sizes.arrivals).handlers([bidi("/test.Talks/Talk", converse)])
    server.add_generic_rpc_handlers((handlers,))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.stream_stream("/test.Talks/Talk", None, None)()
        for size in (600_000, 700_000, 100):
            await call.write(bytes(size))
        answers = [await call.read() for _ in range(3)]
        assert answers == [b"600000", b"full", b"100"]
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        assert taken == [600_000, 600_000, 600_100]
        assert sizes.arrivals.taken == 0
        # A client that leaves gives back what was not answered.
        call = channel.stream_stream("/test.Talks/Talk", None, None)()
        await call.write(bytes(1000))
        await eventually(lambda: sizes.arrivals.taken == 1000)
        call.cancel()
        await eventually(lambda: sizes.arrivals.taken == 0)
    await server.stop(0)


async def test_answers_of_conversations_that_nobody_reads_keep_no_room_from_others(
    start: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rim, "UNREAD_BYTES", 4 * MIB)
    sizes: Sizes = await start(MIB)
    answer = 10

    async def converse(_: None, call: Conversation) -> None:
        await call.open()
        await call.attend(lambda body: call.reply(bytes(answer)))

    server = grpc.aio.server(options=[("grpc.http2.bdp_probe", 0)])
    ours = Rim(sizes.arrivals)
    handlers = ours.handlers([bidi("/test.Talks/Talk", converse)])
    server.add_generic_rpc_handlers((handlers,))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    with Connection(address) as silent:
        stream = silent.call("/test.Talks/Talk")

        async def sent(size: int) -> None:
            silent.begin_message(stream, size)
            while size:
                size -= silent.send(stream, size)
                silent.pump(0.001)
                await asyncio.sleep(0)

        answer = 200_000  # more than its window
        await sent(1000)
        await eventually(lambda: ours._unread.all == answer)
        answer = 10
        for _ in range(5):
            await sent(200_000)
        await eventually(lambda: ours._unread.all == 200_050)
        assert sizes.arrivals.taken == 0
        answer = 4 * MIB
        await sent(1000)  # now they are too many
        await eventually(lambda: ours._unread.all == 0)
        silent.open_window(stream, 2 * MIB)  # for what was on its way; the end is behind it
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while stream not in silent.ended:
            assert asyncio.get_running_loop().time() < deadline
            silent.pump(0.001)
            await asyncio.sleep(0.01)
    await server.stop(0)
