# SPDX-License-Identifier: AGPL-3.0-only
"""Bodies that are announced and do not come: nobody else is refused, or waits, because of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import grpc
import pytest
from fila_edge import CALL, MESSAGE

from server.edge.tests.calls import later, refused, talk, unary
from server.edge.tests.canned import WAIT_S, Canned
from server.edge.tests.conftest import Connect, Start
from server.edge.tests.http2 import Connection, call_headers, grpc_message
from server.tests.torture.http2 import END_HEADERS, HEADERS, frame

MIB = 1024 * 1024
REFUSED = b"8"


def announce(connection: Connection, size: int, sent: int, path: str = "/t.T/Echo") -> int:
    """Begin a call with a request of a size, of which so much comes and no more."""
    stream, connection._next = connection._next, connection._next + 2
    connection._windows[stream] = connection._initial
    connection.send(frame(HEADERS, END_HEADERS, stream, call_headers(path)))
    body = grpc_message(bytes(size))[: 5 + sent]
    assert connection.pour(stream, body, WAIT_S) == len(body)
    return stream


def endings(connection: Connection, streams: set[int]) -> dict[int, dict[bytes, bytes]]:
    """Read until these calls have ended; return what was said at the end of each."""
    deadline = time.monotonic() + WAIT_S
    while not connection._ended.issuperset(streams):
        assert time.monotonic() < deadline, f"only {connection._ended} of {streams} ended"
        connection.read(WAIT_S)
    return {stream: connection._heads[stream] for stream in streams}


Dial = Callable[[Canned], Connection]


@pytest.fixture
def dial() -> Iterator[Dial]:
    """Open connections by hand."""
    opened: list[Connection] = []

    def run(canned: Canned) -> Connection:
        opened.append(Connection(canned.address))
        return opened[-1]

    yield run
    for connection in opened:
        connection.close()


@pytest.fixture
def small(start: Start) -> Canned:
    """An edge that is full soon, and has all the time in the world."""
    return start(settings={"inbox_bytes": 8 * MIB, "arrival_timeout_ms": 600_000})


def test_announcing_takes_no_room_from_others(small: Canned, connect: Connect, dial: Dial) -> None:
    connection = dial(small)
    for _ in range(378):
        announce(connection, 200_000, 100)
    small.settled(lambda now: now["inbox_bytes"] == 37_800)
    channel = connect(small)
    for _ in range(20):
        assert len(unary(channel, "Echo", bytes(200_000))) == 200_000
    connection.close()
    small.settled(lambda now: now["inbox_bytes"] == 0)


def test_nothing_is_cut_while_there_is_room(small: Canned, dial: Dial) -> None:
    connection = dial(small)
    streams = {announce(connection, 200_000, 100), announce(connection, MIB, 100)}
    connection.read(2.5)
    assert not connection._ended & streams
    connection.close()


@pytest.mark.parametrize("count", [1, 50])
def test_large_bodies_that_do_not_come_give_way_to_those_that_do(
    small: Canned, connect: Connect, dial: Dial, count: int
) -> None:
    """One holds all of the room, or many hold it one after the other; each is cut when wanted."""
    connection = dial(small)
    streams = {announce(connection, 6 * MIB, 1000) for _ in range(count)}
    small.settled(lambda now: now["inbox_bytes"] == 6 * MIB)
    assert len(unary(connect(small), "Echo", bytes(3 * MIB))) == 3 * MIB
    told = endings(connection, {min(streams)})  # it came first, and was in the way
    assert {answer[b"grpc-status"] for answer in told.values()} == {REFUSED}
    assert {answer[b"fila-reason"] for answer in told.values()} == {b"OVERLOADED"}
    connection.close()


def test_bodies_that_stop_halfway_give_way_to_small_ones(
    small: Canned, connect: Connect, dial: Dial
) -> None:
    """They did come, and fill the budget: who fills it and stops is cut before its time is over."""
    connection = dial(small)
    for _ in range(38):
        announce(connection, 250_000, 220_000)
    channel = connect(small)
    text = f"requests of {38 * 220_000} bytes are waiting already; try again later"
    body = bytes(200_000)
    small.settled(lambda now: now["inbox_bytes"] == 38 * 220_000)
    refusal = refused(lambda: unary(channel, "Echo", body))
    assert refusal == (grpc.StatusCode.RESOURCE_EXHAUSTED, text, "OVERLOADED")
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            assert len(unary(channel, "Echo", body)) == len(body)
            break
        except grpc.RpcError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    while not connection._ended:
        assert time.monotonic() < deadline, "nobody was cut"
        connection.read(WAIT_S)
    words = connection._heads[min(connection._ended)][b"grpc-message"]
    assert words.startswith(b"0 bytes of the request came in a second")
    connection.close()


def test_what_keeps_coming_is_not_cut_however_many_want_room(
    small: Canned, connect: Connect, dial: Dial
) -> None:
    connection = dial(small)
    size = 6 * MIB
    stream = announce(connection, size, 1000)
    small.settled(lambda now: now["inbox_bytes"] == size)
    waiting = later(connect(small), "Echo", bytes(3 * MIB))
    left = grpc_message(bytes(size))[1005:]
    step = 100 * 1024
    for at in range(0, 10 * step, step):  # 2.5 seconds, at 400 kilobytes a second
        connection.pour(stream, left[at : at + step], WAIT_S)
        time.sleep(0.25)
    assert stream not in connection._ended and not waiting.done()
    connection.pour(stream, left[10 * step :], WAIT_S)
    assert len(waiting.result()) == 3 * MIB
    connection.close()


def test_one_connection_does_not_fill_the_line(small: Canned, connect: Connect, dial: Dial) -> None:
    channel = connect(small)
    held = later(channel, "Hold", bytes(6 * MIB))
    id = small.wait_for(CALL)[1]
    connection = dial(small)
    streams = [announce(connection, MIB, 100) for _ in range(20)]
    told = endings(connection, set(streams[12:]))
    words = b"12 large requests are waiting already; try again later"
    assert {answer[b"grpc-message"] for answer in told.values()} == {words}
    other = later(connect(small), "Echo", bytes(MIB))
    small.edge.answer([(id, b"")])
    assert held.result() == b""
    assert len(other.result()) == MIB
    connection.close()
    small.settled(lambda now: now["inbox_bytes"] == 0 and now["calls_under_way"] == 0)


def test_large_bodies_of_one_connection_come_beside_those_that_wait(
    small: Canned, connect: Connect, dial: Dial
) -> None:
    """A body that waits fills a window of its own, and leaves the connection's to the others."""
    channel = connect(small)
    calls = [later(channel, "Echo", bytes(3 * MIB)) for _ in range(12)]
    assert [len(call.result()) for call in calls] == [3 * MIB] * 12
    small.settled(lambda now: now["inbox_bytes"] == 0)


def test_pipelines_that_fill_the_budget_together_come_to_an_end(small: Canned, dial: Dial) -> None:
    """Half of each is there, and none has room for the rest: one after the other gets it."""
    connections = [dial(small) for _ in range(45)]
    size, sent = 250_000, 200_000
    streams = [announce(connection, size, sent, "/t.T/Talk") for connection in connections]
    for _ in streams:
        small.edge.more(small.wait_for(CALL)[1], 1)
    for connection, stream in zip(connections, streams, strict=True):
        connection.pour(stream, bytes(size - sent), 0.1)
    # On a machine that is slow just now some may have waited too long for their second half.
    for _ in range(30):
        message = small.wait_for(MESSAGE)
        assert len(message[2]) == size
        small.edge.reply(message[1], b"")
    for connection in connections:
        connection.close()
    small.settled(lambda now: now["inbox_bytes"] == 0 and now["calls_under_way"] == 0)


def test_a_pipeline_that_stops_halfway_holds_up_no_other(
    small: Canned, connect: Connect, dial: Dial
) -> None:
    stopped = dial(small)
    for _ in range(40):
        announce(stopped, 250_000, 205_000, "/t.T/Talk")
    for _ in range(40):
        small.edge.more(small.wait_for(CALL)[1], 1)
    call = talk(connect(small), [bytes(200_000)] * 5)
    id = small.wait_for(CALL)[1]
    small.edge.more(id, 5)
    for _ in range(5):
        message = small.wait_for(MESSAGE, id=id)
        assert len(message[2]) == 200_000
        small.edge.reply(id, b"")
    small.edge.end(id, 0, "", "")
    assert list(call) == [b""] * 5
    stopped.close()


def test_answers_of_pipelines_that_nobody_reads_keep_no_room_from_others(
    start: Start, connect: Connect
) -> None:
    """Else a client without a window, with one connection, would hold all of it for ever."""
    settings = {"inbox_bytes": 4 * MIB, "max_unread_bytes": MIB}
    small = start(settings=settings)
    connection = Connection(small.address, window=0)
    stream = announce(connection, 250_000, 250_000, "/t.T/Talk")
    id = small.wait_for(CALL)[1]
    small.edge.more(id, 15)
    for _ in range(15):
        connection.pour(stream, grpc_message(bytes(250_000)), WAIT_S)
    for _ in range(16):
        small.wait_for(MESSAGE, id=id)
    small.settled(lambda now: now["inbox_bytes"] == 4_000_000)
    for _ in range(15):
        small.edge.reply(id, bytes(5000))
    small.settled(lambda now: now["inbox_bytes"] == 250_000)
    assert len(unary(connect(small), "Echo", bytes(250_000))) == 250_000
    connection.pour(stream, grpc_message(bytes(1000)), 0.5)
    assert not [event for event in small.events if event[0] == MESSAGE]  # none was taken over
    small.edge.reply(id, bytes(MIB))  # the unread are too many with it
    small.settled(lambda now: now["unread_cut"] == 1 and now["inbox_bytes"] == 0)
    connection.close()


def test_a_pipeline_that_gives_way_in_the_line_goes_on(
    small: Canned, connect: Connect, dial: Dial
) -> None:
    held = later(connect(small), "Hold", bytes(6 * MIB))
    hold = small.wait_for(CALL)[1]
    noisy = [dial(small) for _ in range(4)]
    streams = []
    for connection in noisy:  # 32 wait, and the last of all is a pipeline's
        for _ in range(8 if connection is not noisy[-1] else 7):
            announce(connection, MIB, 100)
    pipeline = noisy[-1]
    streams.append(announce(pipeline, MIB, 100, "/t.T/Talk"))
    talk_id = small.wait_for(CALL)[1]
    pipeline.read(0.5)  # until it stands there
    other = later(connect(small), "Echo", bytes(MIB))  # and takes its place
    pipeline.read(1.0)
    for connection in noisy[:3]:
        connection.close()
    small.edge.answer([(hold, b"")])
    assert held.result() == b"" and len(other.result()) == MIB
    pipeline.pour(streams[0], bytes(MIB - 100), WAIT_S)
    assert len(small.wait_for(MESSAGE, id=talk_id)[2]) == MIB
    pipeline.close()
    small.settled(lambda now: now["inbox_bytes"] == 0)


def test_a_slow_line_is_not_cut_for_what_it_wants_itself(small: Canned, dial: Dial) -> None:
    """Its bodies come side by side, each more slowly than one alone would have to."""
    connection = dial(small)
    size = 2 * MIB
    streams = [announce(connection, size, 100) for _ in range(4)]  # the fourth has to wait
    for _ in range(7):
        connection.read(0.5)
        for stream in streams[:3]:
            connection.pour(stream, bytes(5000), WAIT_S)
    assert not connection._ended
    for stream in streams[:3]:
        connection.pour(stream, bytes(size - 35_100), WAIT_S)
    small.settled(lambda now: now["inbox_bytes"] == size)  # they are answered, and it has room
    connection.close()
    small.settled(lambda now: now["inbox_bytes"] == 0)


def test_a_line_where_nothing_comes_is_cut_for_what_it_wants_itself(
    small: Canned, dial: Dial
) -> None:
    connection = dial(small)
    first, *_ = [announce(connection, 5 * MIB, 100) for _ in range(2)]
    told = endings(connection, {first})[first]
    words = b"nothing of the request came in 5 seconds, and others of its connection wait"
    assert told[b"grpc-status"] == REFUSED and told[b"grpc-message"].startswith(words)
    connection.close()
