# SPDX-License-Identifier: AGPL-3.0-only
"""What is beyond a limit is refused, says why, and leaves everybody else alone."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from fila_edge import CALL, GONE, HALF_CLOSED, MESSAGE

from server.edge.tests.calls import later, refused, stream, talk, unary
from server.edge.tests.canned import WAIT_S, Canned
from server.edge.tests.conftest import Connect, Start
from server.edge.tests.http2 import Connection, call_headers, grpc_message

STATUS = grpc.StatusCode
MIB = 1024 * 1024
ROOT = Path(__file__).parents[3]


# --- Sizes ----------------------------------------------------------------------------------------


def test_a_giant_request_is_refused_at_once_and_the_connection_lives(
    start: Start, connect: Connect
) -> None:
    canned = start(settings={"max_request_bytes": MIB})
    channel = connect(canned)
    for _ in range(20):
        refusal = refused(lambda: unary(channel, "Echo", bytes(MIB + 1)))
        text = f"a request of {MIB + 1} bytes exceeds {MIB}"
        assert refusal == (STATUS.RESOURCE_EXHAUSTED, text, "")
    assert len(unary(channel, "Echo", bytes(MIB))) == MIB
    assert canned.edge.figures()["refused"] == 20


def test_what_may_last_is_asked_for_in_few_words(channel: grpc.Channel) -> None:
    refusal = refused(lambda: next(stream(channel, bytes(4097))))
    text = "a request of 4097 bytes exceeds 4096"
    assert refusal == (STATUS.INVALID_ARGUMENT, text, "MESSAGE_TOO_LARGE")


def test_giant_metadata_is_refused_as_grpc_says_it(channel: grpc.Channel) -> None:
    for text in ("v" * 17_000, "v" * 40_000):
        call = later(channel, "Echo", metadata=(("x-large", text),))
        assert refused(call.result).status is STATUS.RESOURCE_EXHAUSTED
    assert unary(channel, "Echo", b"x", metadata=(("x-fine", "v" * 8000),)) == b"x"


def test_more_calls_than_allowed_are_refused_without_python(start: Start, connect: Connect) -> None:
    canned = start(settings={"max_concurrent_calls": 5})
    channel = connect(canned)
    held = [later(channel, "Hold") for _ in range(5)]
    ids = [canned.wait_for(CALL)[1] for _ in held]
    refusal = refused(lambda: unary(channel, "Echo"))
    text = "5 calls are under way already; try again later"
    assert refusal == (STATUS.RESOURCE_EXHAUSTED, text, "OVERLOADED")
    canned.edge.answer([(id, b"") for id in ids])
    assert [call.result() for call in held] == [b""] * 5
    canned.settled(lambda now: now["calls_under_way"] == 0)
    assert unary(channel, "Echo", b"x") == b"x"


# --- The budget -----------------------------------------------------------------------------------


def test_small_requests_beyond_the_budget_are_refused(start: Start, connect: Connect) -> None:
    canned = start(settings={"inbox_bytes": 100_000})
    channel = connect(canned)
    held = later(channel, "Hold", bytes(90_000))
    id = canned.wait_for(CALL)[1]
    refusal = refused(lambda: unary(channel, "Echo", bytes(20_000)))
    text = "requests of 90000 bytes are waiting already; try again later"
    assert refusal == (STATUS.RESOURCE_EXHAUSTED, text, "OVERLOADED")
    assert len(unary(channel, "Echo", bytes(5000))) == 5000
    canned.edge.answer([(id, b"")])
    assert held.result() == b""
    assert len(unary(channel, "Echo", bytes(20_000))) == 20_000


def test_who_does_not_read_its_answers_takes_no_room_from_requests(
    start: Start, connect: Connect
) -> None:
    canned = start(settings={"inbox_bytes": 100_000})
    deaf = Connection(canned.address, window=0)
    deaf.call(call_headers("/t.T/Echo"), grpc_message(bytes(90_000)))
    deaf.read(WAIT_S)
    canned.settled(lambda now: now["inbox_bytes"] == 0)
    assert len(unary(connect(canned), "Echo", bytes(90_000))) == 90_000
    assert canned.edge.figures()["calls_under_way"] == 1
    deaf.close()


def test_large_requests_wait_for_room_and_small_ones_pass(start: Start, connect: Connect) -> None:
    canned = start(settings={"inbox_bytes": 8 * MIB})
    channels = [connect(canned) for _ in range(5)]
    first = later(channels[0], "Hold", bytes(5 * MIB))
    id = canned.wait_for(CALL)[1]
    waiting = [later(channel, "Echo", bytes(3 * MIB)) for channel in channels[1:]]
    assert unary(channels[0], "Echo", bytes(1000))
    threading.Event().wait(0.3)
    assert not any(call.done() for call in waiting)
    assert canned.edge.figures()["inbox_bytes"] == 5 * MIB
    canned.edge.answer([(id, b"")])
    assert first.result() == b""
    assert [len(call.result()) for call in waiting] == [3 * MIB] * 4
    canned.settled(lambda now: now["inbox_bytes"] == 0)


def test_large_requests_that_wait_are_bounded_and_may_leave(start: Start, connect: Connect) -> None:
    canned = start(settings={"inbox_bytes": 8 * MIB})
    holder = connect(canned)
    first = later(holder, "Hold", bytes(6 * MIB))
    id = canned.wait_for(CALL)[1]
    connections = [connect(canned) for _ in range(33)]
    calls = [later(channel, "Echo", bytes(MIB)) for channel in connections]
    refusals = []
    while not refusals:
        refusals = [call for call in calls if call.done()]
    assert refused(refusals[0].result) == (
        STATUS.RESOURCE_EXHAUSTED,
        "32 large requests are waiting already; try again later",
        "OVERLOADED",
    )
    for call in calls[:20]:
        call.cancel()
    canned.edge.answer([(id, b"")])
    assert first.result() == b""
    left = [call for call in calls[20:] if call is not refusals[0]]
    assert all(len(call.result()) == MIB for call in left)
    canned.settled(lambda now: now["inbox_bytes"] == 0 and now["calls_under_way"] == 0)


def test_a_conversation_gives_its_bytes_back_as_they_are_answered(
    start: Start, connect: Connect
) -> None:
    canned = start(settings={"inbox_bytes": 100_000})
    call = talk(connect(canned), [bytes(60_000)] * 20)
    id = canned.wait_for(CALL)[1]
    canned.edge.more(id, 15)
    for n in range(20):
        assert len(canned.wait_for(MESSAGE)[2]) == 60_000
        if not n:
            time.sleep(0.2)
            assert not canned.events  # there is no room, and nobody is refused for that
        canned.edge.reply(id, b"")
    canned.wait_for(HALF_CLOSED)
    canned.edge.end(id, 0, "", "")
    assert list(call) == [b""] * 20


def test_a_body_that_stops_halfway_is_ended(start: Start) -> None:
    canned = start(settings={"arrival_timeout_ms": 300})
    connection = Connection(canned.address)
    silent = connection.open("/t.T/Echo", None)
    halfway = connection.open("/t.T/Echo", None)
    connection.pour(halfway, grpc_message(bytes(1000))[:500], 10)
    ended: set[int] = set()
    while ended != {silent, halfway}:
        ended |= {frame.stream for frame in connection.read(WAIT_S) if frame.kind == 1}
    connection.close()
    canned.settled(lambda now: now["inbox_bytes"] == 0 and now["calls_under_way"] == 0)
    assert canned.edge.figures()["refused"] == 2


@pytest.mark.serial
def test_four_hundred_callers_with_more_than_the_budget_leave_the_process_small() -> None:
    with small_process(pause_s=0.2, settings={"inbox_bytes": 8 * MIB}) as address:
        channels = [
            grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(40)
        ]
        calls = [later(channels[n % 40], "Echo", bytes(100_000)) for n in range(400)]
        outcomes: list[Any] = []
        for call in calls:
            error = call.exception(timeout=WAIT_S)
            outcomes.append("OK" if error is None else error.code())
        assert set(outcomes) <= {"OK", STATUS.RESOURCE_EXHAUSTED}
        assert outcomes.count("OK") >= 80
        for channel in channels:
            channel.close()


@contextmanager
def small_process(**options: Any) -> Iterator[str]:
    """Run an edge in a process that stays small and has given everything back at its end."""
    program = (sys.executable, "-m", "server.edge.tests.canned", json.dumps(options))
    with subprocess.Popen(
        program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        yield process.stdout.readline().strip()
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak_mib = int(status.partition("VmHWM:")[2].split()[0]) // 1024
        assert peak_mib < 128
        process.stdin.close()
        assert json.loads(process.stdout.readline())["inbox_bytes"] == 0
        assert process.wait(WAIT_S) == 0


@pytest.mark.serial
def test_who_does_not_read_its_answers_is_cut_and_the_others_are_not() -> None:
    packed = gzip.compress(bytes(MIB))
    body = b"\1" + len(packed).to_bytes(4, "big") + packed
    headers = call_headers("/t.T/Echo", (b"grpc-encoding", b"gzip"))
    settings = {"inbox_bytes": 8 * MIB, "max_unread_bytes": 32 * MIB}
    with small_process(settings=settings) as address, grpc.insecure_channel(address) as channel:
        sent = 0
        with closing(Connection(address, window=0)) as deaf, suppress(OSError):
            while sent < 500:
                deaf.call(headers, body)
                sent += 1
                assert len(unary(channel, "Echo", bytes(MIB))) == MIB
        assert 20 < sent < 500


# --- Compression ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests_are_inflated(channel: grpc.Channel, kind: grpc.Compression) -> None:
    body = b"fair " * 100_000
    assert unary(channel, "Echo", body, compression=kind) == body


def test_what_inflates_beyond_the_limit_is_refused(start: Start, connect: Connect) -> None:
    canned = start(settings={"max_request_bytes": MIB})
    channel = connect(canned)
    refusal = refused(
        lambda: unary(channel, "Echo", bytes(50 * MIB), compression=grpc.Compression.Gzip)
    )
    assert refusal.status is STATUS.RESOURCE_EXHAUSTED
    canned.settled(lambda now: now["inbox_bytes"] == 0)
    assert unary(channel, "Echo", b"x") == b"x"


@pytest.mark.serial
def test_many_that_inflate_at_once_stay_within_the_budget() -> None:
    packed = gzip.compress(bytes(15 * MIB))
    body = b"\1" + len(packed).to_bytes(4, "big") + packed
    headers = call_headers("/t.T/Fail", (b"grpc-encoding", b"gzip"))
    with small_process(settings={"inbox_bytes": 8 * MIB}) as address:
        connection = Connection(address)
        answers = connection.answers([(headers, body)] * 100)
        outcomes = [answer[b"grpc-status"] for answer in answers]
        assert set(outcomes) <= {b"8", b"9"} and b"8" in outcomes
        connection.close()


def raw_call(canned: Canned, body: bytes, *more: tuple[bytes, bytes]) -> dict[bytes, bytes]:
    """Make a call by hand, and return its trailers-only answer."""
    connection = Connection(canned.address)
    try:
        return connection.answer(call_headers("/t.T/Echo", *more), body)
    finally:
        connection.close()


def test_compression_by_hand(canned: Canned) -> None:
    packed = gzip.compress(b"x" * 100)
    body = b"\1" + len(packed).to_bytes(4, "big") + packed
    assert raw_call(canned, body, (b"grpc-encoding", b"gzip"))[b"grpc-status"] == b"0"
    packed = zlib.compress(b"x" * 100)
    noise = b"\1" + len(packed).to_bytes(4, "big") + packed
    assert raw_call(canned, noise, (b"grpc-encoding", b"gzip"))[b"grpc-status"] == b"3"
    assert raw_call(canned, body)[b"grpc-status"] == b"13"
    unknown = raw_call(canned, body, (b"grpc-encoding", b"snappy"))
    assert unknown[b"grpc-status"] == b"12"
    assert unknown[b"grpc-accept-encoding"] == b"identity,deflate,gzip"


# --- Not quite gRPC -------------------------------------------------------------------------------


def test_what_is_not_grpc_is_refused_as_http(canned: Canned) -> None:
    for kind in (b"application/json", b"application/grpc-web", b""):
        connection = Connection(canned.address)
        answer = connection.answer(call_headers("/t.T/Echo", kind=kind), b"")
        assert answer[b":status"] == b"415", kind
        connection.close()
    connection = Connection(canned.address)
    answer = connection.answer(call_headers("/t.T/Echo", method=b"GET"), b"")
    assert answer[b":status"] == b"405"
    assert raw_call(canned, grpc_message(b"x"))[b"grpc-status"] == b"0"
    connection.close()


def test_a_call_without_a_whole_message_is_told_so(canned: Canned) -> None:
    for body in (b"", b"\0\0", b"\0\0\0\0\x05abc"):
        answer = raw_call(canned, body)
        assert answer[b"grpc-status"] == b"3"
        assert answer[b"grpc-message"] == b"the call ended before its request"
        assert answer[b"fila-reason"] == b"INVALID_ARGUMENT"


def test_of_two_messages_the_first_counts(canned: Canned) -> None:
    assert raw_call(canned, grpc_message(b"x") + grpc_message(b"y"))[b"grpc-status"] == b"0"


def test_a_caller_that_leaves_in_the_middle_of_its_body_is_forgotten(canned: Canned) -> None:
    for n in range(20):
        connection = Connection(canned.address)
        stream = connection.open("/t.T/Echo", None)
        connection.pour(stream, grpc_message(bytes(1000))[: 50 * n], 10)
        connection.close()
    canned.settled(lambda now: not now["connections"] and not now["calls_under_way"])
    assert canned.edge.figures()["inbox_bytes"] == 0
    assert not [event for event in canned.events if event[0] == GONE]
