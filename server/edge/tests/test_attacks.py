# SPDX-License-Identifier: AGPL-3.0-only
"""Peers that speak HTTP/2 to do harm: they are cut off, and whoever is served is still served."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import grpc
import pytest
from fila_edge import CALL, GONE

from server.edge.tests.calls import stream, unary
from server.edge.tests.canned import WAIT_S, Canned
from server.edge.tests.conftest import Connect, Start
from server.edge.tests.http2 import Connection, call_headers, grpc_message
from server.tests.torture import http2
from server.tests.torture.http2 import END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, frame

CALM = 11


def read_goaway(connection: Connection) -> tuple[int, bytes]:
    """Read until the peer says why it goes; return its error code and its words."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for came in connection.read(WAIT_S):
            if came.kind == GOAWAY:
                return int.from_bytes(came.payload[4:8], "big"), came.payload[8:]
    raise AssertionError("no GOAWAY came")


def flood(connection: Connection, bursts: Iterator[bytes]) -> None:
    """Send until the peer has had enough."""
    for burst in bursts:
        try:
            connection.send(burst)
        except OSError:
            return
        if connection.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 1:
            return  # the peer has closed its side


def closed(connection: Connection) -> bool:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            connection.read(0.05)
        except OSError:
            return True  # it answers what it reads, and there is nobody any more
        if connection.is_closed():
            return True
    return False


def dial(canned: Canned, words: bytes) -> socket.socket:
    """Say something, and leave everything else unanswered."""
    host, _, port = canned.address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=WAIT_S)
    connection.sendall(words)
    return connection


def ends(connection: socket.socket) -> bool:
    """Read to the end, and close."""
    with connection:
        try:
            while connection.recv(65_536):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
    return True


# --- Handshakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "greeting",
    [b"", b"PRI * HT", http2.PREFACE, http2.PREFACE + b"\0\0\x06\x04"],
    ids=["silent", "half a preface", "preface", "half a frame"],
)
def test_a_peer_that_does_not_greet_is_closed(start: Start, greeting: bytes) -> None:
    canned = start(settings={"handshake_timeout_ms": 200})
    connections = [dial(canned, greeting) for _ in range(50)]
    assert all(ends(connection) for connection in connections)
    canned.settled(lambda now: now["connections"] == 0)
    assert canned.edge.figures()["handshakes_cut"] == 50


def test_a_peer_that_greeted_may_be_idle(start: Start) -> None:
    canned = start(settings={"handshake_timeout_ms": 200})
    connection = Connection(canned.address)
    connection.read(0.5)
    connection.read(0.5)
    assert not connection.is_closed()
    connection.close()


def test_noise_is_no_greeting(canned: Canned, channel: grpc.Channel) -> None:
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 600, bytes(100)):
        assert ends(dial(canned, noise))
    assert unary(channel, "Echo", b"x") == b"x"


def test_connections_beyond_the_limit_are_closed_as_they_come(
    start: Start, connect: Connect
) -> None:
    canned = start(settings={"max_connections": 20})
    channel = connect(canned)
    unary(channel, "Echo")
    idle = [Connection(canned.address) for _ in range(19)]
    canned.settled(lambda now: now["connections"] == 20)
    for _ in range(10):
        late = Connection(canned.address)
        assert closed(late)
        late.close()
    assert canned.edge.figures()["connections_refused"] == 10
    assert unary(channel, "Echo", b"x") == b"x"
    for connection in idle:
        connection.close()
    canned.settled(lambda now: now["connections"] == 1)
    assert unary(connect(canned), "Echo", b"y") == b"y"


# --- Frames that cost nothing ---------------------------------------------------------------------


def test_pings_that_come_too_soon_are_too_many(canned: Canned, channel: grpc.Channel) -> None:
    connection = Connection(canned.address)
    connection.send(frame(PING, 0, 0, bytes(8)) * 10)
    assert read_goaway(connection) == (CALM, b"too_many_pings")
    assert closed(connection)
    connection.close()
    assert canned.edge.figures()["pings_cut"] == 1
    assert unary(channel, "Echo", b"x") == b"x"


def test_pings_at_their_interval_are_fine(start: Start) -> None:
    canned = start(settings={"min_ping_interval_ms": 10})
    connection = Connection(canned.address)
    for _ in range(20):
        time.sleep(0.02)
        connection.send(frame(PING, 0, 0, bytes(8)))
    connection.read(0.2)
    assert not connection.is_closed()
    assert canned.edge.figures()["pings_cut"] == 0
    connection.close()


def test_pings_between_answers_are_fine(canned: Canned) -> None:
    connection = Connection(canned.address)
    for _ in range(20):
        connection.send(frame(PING, 0, 0, bytes(8)))
        answer = connection.answer(call_headers("/t.T/Echo"), grpc_message(b"x"))
        assert answer[b"grpc-status"] == b"0"
    connection.close()


FLOODS = {
    "settings": frame(http2.SETTINGS, 0, 0) * 100,
    "pongs": frame(PING, http2.ACK, 0, bytes(8)) * 1000,
    "priorities": frame(2, 0, 1, struct.pack(">IB", 0, 16)) * 1000,
    "windows": frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)) * 1000,
    "unknown": frame(77, 0, 0, b"x") * 1000,
    "empty": frame(http2.DATA, 0, 1) * 1000,
}


@pytest.mark.parametrize("kind", FLOODS)
def test_frames_that_cost_nothing_are_bounded(
    canned: Canned, channel: grpc.Channel, kind: str
) -> None:
    connection = Connection(canned.address)
    connection.send(frame(HEADERS, END_HEADERS, 1, call_headers("/t.T/Talk")))
    flood(connection, (FLOODS[kind] for _ in range(300)))
    assert closed(connection)
    connection.close()
    canned.settled(lambda now: now["connections"] <= 1)
    if kind != "empty":  # of those the HTTP/2 library has a count of its own, and a lower one
        assert canned.edge.figures()["floods_cut"] == 1
    assert unary(channel, "Echo", b"x") == b"x"


def test_streams_that_are_reset_at_once_are_bounded(canned: Canned, channel: grpc.Channel) -> None:
    connection = Connection(canned.address)
    reset = http2.CANCEL.to_bytes(4, "big")

    def bursts() -> Iterator[bytes]:
        for first in range(1, 100_000, 200):
            burst = b""
            for number in range(first, first + 200, 2):
                headers = call_headers("/t.T/Echo")
                burst += frame(HEADERS, END_HEADERS, number, headers)
                burst += frame(http2.RST_STREAM, 0, number, reset)
            yield burst
            assert unary(channel, "Echo", b"x") == b"x"

    flood(connection, bursts())
    assert closed(connection)
    connection.close()
    canned.settled(lambda now: now["connections"] <= 1 and now["calls_under_way"] == 0)
    assert not canned.events


def test_a_few_thousand_calls_may_be_given_up(canned: Canned) -> None:
    connection = Connection(canned.address)
    reset = http2.CANCEL.to_bytes(4, "big")
    for number in range(1, 10_000, 2):
        connection.send(frame(HEADERS, END_HEADERS, number, call_headers("/t.T/Echo")))
        connection.send(frame(http2.RST_STREAM, 0, number, reset))
    connection._next = 10_001
    answer = connection.answer(call_headers("/t.T/Echo"), grpc_message(b"x"))
    assert answer[b"grpc-status"] == b"0"
    connection.close()


def test_headers_without_an_end_are_bounded(canned: Canned, channel: grpc.Channel) -> None:
    connection = Connection(canned.address)
    connection.send(frame(HEADERS, 0, 1, call_headers("/t.T/Echo")))
    row = b"\0\x03x-a\x7d" + b"v" * 125
    flood(connection, (frame(9, 0, 1, row * 120) for _ in range(500)))
    assert closed(connection)
    connection.close()
    assert unary(channel, "Echo", b"x") == b"x"


def test_more_streams_than_allowed_are_refused_one_by_one(start: Start) -> None:
    canned = start(settings={"max_concurrent_streams": 10})
    connection = Connection(canned.address)
    connection.read(1.0)  # its settings
    streams = [connection.open("/t.T/Hold", grpc_message(b"x")) for _ in range(15)]
    reset = set()
    while len(reset) < 5:
        reset |= {came.stream for came in connection.read(WAIT_S) if came.kind == 3}
    assert reset == set(streams[10:])
    assert len([canned.wait_for(CALL) for _ in range(10)]) == 10
    connection.close()


# --- Silence --------------------------------------------------------------------------------------


def test_a_peer_that_went_silent_is_noticed(start: Start) -> None:
    canned = start(settings={"keepalive_time_ms": 200, "keepalive_timeout_ms": 200})
    idle, busy = Connection(canned.address), Connection(canned.address)
    busy.open("/t.T/Stream", grpc_message(b"x"))
    id = canned.wait_for(CALL)[1]
    assert canned.wait_for(GONE) == (GONE, id)
    canned.settled(lambda now: now["connections"] == 0)
    for connection in (idle, busy):
        connection.close()


def test_a_peer_that_answers_pings_stays(start: Start) -> None:
    canned = start(settings={"keepalive_time_ms": 100, "keepalive_timeout_ms": 10_000})
    connection = Connection(canned.address)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        connection.read(0.05)
    assert canned.edge.figures()["connections"] == 1
    connection.close()


def test_a_peer_that_never_reads_holds_little(canned: Canned, channel: grpc.Channel) -> None:
    connection = Connection(canned.address, window=2**31 - 1)
    connection.send(frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1 - 65_535)))
    for _ in range(20):
        connection.open("/t.T/Stream", grpc_message(b"x"))
    ids = [canned.wait_for(CALL)[1] for _ in range(20)]
    for id in ids:
        for _ in range(50):
            canned.edge.write(id, bytes(100_000))
    time.sleep(1.0)
    taken = sum(event[0] == 3 for event in canned.events)
    # A stream's buffer, a frame more, and what the two sockets hold.
    assert taken <= 20 * 2 + 100
    assert unary(channel, "Echo", b"x") == b"x"
    connection.close()
    assert {canned.wait_for(GONE)[1] for _ in ids} == set(ids)
    canned.settled(lambda now: now["calls_under_way"] == 0)


def test_a_window_that_never_opens_takes_nothing(canned: Canned) -> None:
    connection = Connection(canned.address, window=0)
    connection.open("/t.T/Stream", grpc_message(b"x"))
    id = canned.wait_for(CALL)[1]
    canned.edge.write(id, b"x")
    connection.read(0.3)
    assert not canned.events
    connection.close()
    assert canned.wait_for(GONE) == (GONE, id)


@pytest.mark.parametrize("send", ["write", "finish"])
def test_a_deadline_passes_although_the_window_never_opens(canned: Canned, send: str) -> None:
    connection = Connection(canned.address, window=0)
    headers = call_headers("/t.T/Stream", (b"grpc-timeout", b"300m"))
    body = frame(http2.DATA, END_STREAM, 1, grpc_message(b"x"))
    connection.send(frame(HEADERS, END_HEADERS, 1, headers) + body)
    id = canned.wait_for(CALL)[1]
    getattr(canned.edge, send)(id, b"x")
    assert canned.wait_for(GONE) == (GONE, id)
    connection.close()


# --- Many -----------------------------------------------------------------------------------------


@pytest.mark.serial
@pytest.mark.parametrize("count", [64, 256])
def test_many_connections_are_served(canned: Canned, connect: Connect, count: int) -> None:
    channels = [connect(canned) for _ in range(count)]
    for n, channel in enumerate(channels):
        body = str(n).encode()
        assert unary(channel, "Echo", body) == body
    streams = [stream(channel) for channel in channels]
    ids = [canned.wait_for(CALL)[1] for _ in streams]
    for id in ids:
        canned.edge.write(id, b"x")
        canned.edge.end(id, 0, "", "")
    assert all(list(one) == [b"x"] for one in streams)
    assert canned.edge.figures()["connections"] == count
