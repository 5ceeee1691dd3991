# SPDX-License-Identifier: AGPL-3.0-only
"""Whoever has no key costs next to nothing: its body is not read, and Python hears of it once."""

from __future__ import annotations

import grpc
from fila_edge import CALL, KEY

from server.edge.tests.calls import later, refused, unary
from server.edge.tests.canned import Canned
from server.edge.tests.conftest import Connect, Start
from server.edge.tests.http2 import Connection, call_headers, grpc_message
from server.tests.torture.http2 import END_HEADERS, HEADERS, frame

STATUS = grpc.StatusCode
GOOD = (("authorization", "Bearer good"),)


def test_a_key_is_asked_about_once_and_remembered(start: Start, connect: Connect) -> None:
    canned = start(needs_key=True)
    channel = connect(canned)
    calls = [later(channel, "Echo", b"x", metadata=GOOD) for _ in range(20)]
    assert canned.wait_for(KEY)[:2] == (KEY, "Bearer good")
    canned.settled(lambda now: now["calls"] == 20)
    assert not canned.events and canned.edge.figures()["inbox_bytes"] == 0
    canned.edge.admit("Bearer good")
    assert [call.result() for call in calls] == [b"x"] * 20
    assert unary(channel, "Echo", b"y", metadata=GOOD) == b"y"
    held = later(channel, "Hold", metadata=GOOD)
    event = canned.wait_for(CALL)
    assert event[4] == ("Bearer good", None)
    canned.edge.answer([(event[1], b"")])
    assert held.result() == b""
    assert not canned.events


def test_a_refusal_ends_all_that_wait_and_is_asked_anew(start: Start, connect: Connect) -> None:
    canned = start(needs_key=True)
    channel = connect(canned)
    for value in (None, "Bearer bad", None):
        metadata = () if value is None else (("authorization", value),)
        calls = [later(channel, "Echo", metadata=metadata) for _ in range(3)]
        canned.settled(lambda now: now["calls_under_way"] == 3)
        assert canned.wait_for(KEY)[:2] == (KEY, value)
        canned.edge.reject(value, 16, "no API key was sent", "UNAUTHENTICATED")
        for call in calls:
            refusal = refused(call.result)
            assert refusal == (STATUS.UNAUTHENTICATED, "no API key was sent", "UNAUTHENTICATED")
        canned.settled(lambda now: now["calls_under_way"] == 0)


def test_what_is_forgotten_is_asked_anew(start: Start, connect: Connect) -> None:
    canned = start(needs_key=True)
    channel = connect(canned)
    for value in ("Bearer good", None):
        canned.edge.admit("Bearer good")
        assert unary(channel, "Echo", b"x", metadata=GOOD) == b"x"
        canned.edge.forget(value)
        call = later(channel, "Echo", b"x", metadata=GOOD)
        assert canned.wait_for(KEY)[:2] == (KEY, "Bearer good")
        canned.edge.reject("Bearer good", 16, "gone", "UNAUTHENTICATED")
        assert refused(call.result).status is STATUS.UNAUTHENTICATED


def test_the_body_of_a_call_without_a_verdict_stays_with_the_client(start: Start) -> None:
    canned = start(needs_key=True)
    connection = Connection(canned.address)
    headers = call_headers("/t.T/Echo", (b"authorization", b"Bearer slow"))
    connection.send(frame(HEADERS, END_HEADERS, 1, headers))
    connection._windows[1] = 65_535
    sent = connection.pour(1, grpc_message(bytes(1_000_000)), 2.0)
    assert sent <= 65_536  # a window of it
    assert canned.edge.figures()["inbox_bytes"] == 0
    canned.edge.admit("Bearer slow")
    assert connection.pour(1, bytes(1_000_000 - sent), 30.0) == 1_000_000 - sent
    connection.close()


def test_everything_but_health_needs_a_key(start: Start, connect: Connect) -> None:
    canned = start(needs_key=True, reflection=[])
    channel = connect(canned)
    health = channel.unary_unary("/grpc.health.v1.Health/Check", None, None)
    assert health(b"", timeout=30) == b"\x08\x01"
    info = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    for path in (info, "/t.T/Nothing"):
        call = channel.unary_unary(path, None, None).future(b"", timeout=30)
        assert canned.wait_for(KEY)[:2] == (KEY, None)
        canned.edge.reject(None, 16, "no", "UNAUTHENTICATED")
        assert refused(call.result).status is STATUS.UNAUTHENTICATED


def test_keys_that_nobody_decides_on_are_bounded(canned: Canned, start: Start) -> None:
    strict = start(needs_key=True)
    connection = Connection(strict.address)
    for n in range(0, 3000, 2):
        stream = 2 * n + 1
        headers = call_headers("/t.T/Echo", (b"authorization", f"Bearer {n}".encode()))
        reset = frame(3, 0, stream, (8).to_bytes(4, "big"))
        connection.send(frame(HEADERS, END_HEADERS, stream, headers) + reset)
        if n % 100 == 0:
            connection.read(0.05)
    strict.settled(lambda now: now["calls_under_way"] == 0)
    assert sum(event[0] == KEY for event in strict.events) <= 1024
    connection.close()
