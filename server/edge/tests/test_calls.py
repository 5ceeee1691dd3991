# SPDX-License-Identifier: AGPL-3.0-only
"""Calls of every kind, from grpcio's own client to canned answers and back."""

from __future__ import annotations

import queue
import threading
from typing import Any

import grpc
import pytest
from fila_edge import CALL, GONE, HALF_CLOSED, MESSAGE, TAKEN

from server.edge.tests.calls import later, refused, stream, talk, unary
from server.edge.tests.canned import Canned
from server.edge.tests.conftest import Connect, Start

STATUS = grpc.StatusCode


@pytest.mark.parametrize("size", [0, 1, 1000, 16_384, 65_536, 300_000, 4_000_000])
def test_a_unary_call_is_answered(channel: grpc.Channel, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert unary(channel, "Echo", body) == body


def test_a_failure_has_its_text_and_its_reason(channel: grpc.Channel) -> None:
    refusal = refused(lambda: unary(channel, "Fail"))
    assert refusal == (STATUS.FAILED_PRECONDITION, "100 % é", "HOOK_FAILED")


def test_what_does_not_exist_is_unimplemented(channel: grpc.Channel) -> None:
    refusal = refused(lambda: unary(channel, "Nothing"))
    assert refusal == (STATUS.UNIMPLEMENTED, "Method not found!", "")


def test_metadata_is_handed_over(canned: Canned, channel: grpc.Channel) -> None:
    metadata = (("authorization", "Bearer é"), ("x-other", "1"))
    call = later(channel, "Hold", b"x", metadata=(("traceparent", "00-1"), *metadata[1:]))
    event = canned.wait_for(CALL)
    assert event[2:] == (2, b"x", (None, "00-1"))
    canned.edge.answer([(event[1], b"y")])
    assert call.result() == b"y"


def test_many_callers_are_answered_each_with_their_own(canned: Canned, connect: Connect) -> None:
    channels = [connect(canned) for _ in range(8)]
    bodies = [str(n).encode() for n in range(2000)]
    calls = [later(channels[n % 8], "Echo", body) for n, body in enumerate(bodies)]
    assert [call.result() for call in calls] == bodies
    figures = canned.edge.figures()
    assert figures["calls"] == 2000 and figures["takes"] <= figures["wakes"] + 1
    canned.settled(lambda now: now["calls_under_way"] == 0 and now["inbox_bytes"] == 0)


def test_a_row_that_is_no_answer_does_not_lose_the_others(
    canned: Canned, channel: grpc.Channel
) -> None:
    calls = [later(channel, "Hold", str(n).encode()) for n in range(3)]
    ids = {event[3]: event[1] for event in (canned.wait_for(CALL) for _ in range(3))}
    rows: Any = [(ids[b"0"], b"a"), (ids[b"1"], "text"), (ids[b"2"], b"c")]
    with pytest.raises(TypeError, match="reply 1 is no"):
        canned.edge.answer(rows)
    assert (calls[0].result(), calls[2].result()) == (b"a", b"c")
    canned.edge.end(ids[b"1"], 13, "defect", "INTERNAL")
    assert refused(calls[1].result).status is STATUS.INTERNAL


def test_answers_to_calls_that_are_over_are_ignored(canned: Canned, channel: grpc.Channel) -> None:
    for id in (0, 1, 999, 2**64 - 1):
        canned.edge.answer([(id, b"x")])
        canned.edge.open(id)
        canned.edge.write(id, b"x")
        canned.edge.finish(id, b"x")
        canned.edge.reply(id, b"x")
        canned.edge.more(id, 1)
        canned.edge.end(id, 0, "", "")
    assert unary(channel, "Echo", b"on") == b"on"


# --- Streams --------------------------------------------------------------------------------------


def test_a_stream_opens_flows_and_ends(canned: Canned, channel: grpc.Channel) -> None:
    call = stream(channel, b"q")
    _, id, route, body, _ = canned.wait_for(CALL)
    assert (route, body) == (3, b"q")
    canned.edge.open(id)
    assert call.initial_metadata() is not None
    for n in range(10):
        canned.edge.write(id, str(n).encode())
        assert next(call) == str(n).encode()
        assert canned.wait_for(TAKEN) == (TAKEN, id)
    canned.edge.end(id, 14, "over", "SHUTTING_DOWN")
    assert refused(lambda: next(call)) == (STATUS.UNAVAILABLE, "over", "SHUTTING_DOWN")
    canned.settled(lambda now: now["calls_under_way"] == 0)
    assert not canned.events


def test_a_last_frame_ends_the_call_and_is_told_once(canned: Canned, channel: grpc.Channel) -> None:
    call = stream(channel, b"q")
    id = canned.wait_for(CALL)[1]
    canned.edge.finish(id, b"all")
    assert list(call) == [b"all"]
    assert call.code() is grpc.StatusCode.OK
    assert canned.wait_for(TAKEN) == (TAKEN, id)
    canned.edge.end(id, 13, "too late", "")
    canned.settled(lambda now: now["calls_under_way"] == 0)
    assert not canned.events


def test_frames_are_taken_only_while_the_reader_has_room(
    canned: Canned, channel: grpc.Channel
) -> None:
    call = stream(channel, b"q")
    id = canned.wait_for(CALL)[1]
    frame = bytes(1_000_000)
    for _ in range(60):
        canned.edge.write(id, frame)
    taken = 0
    threading.Event().wait(1.0)
    taken = sum(event[0] == TAKEN for event in canned.events)
    assert 1 <= taken < 30
    received = [next(call) for _ in range(60)]
    assert all(one == frame for one in received)
    for _ in range(60):
        canned.wait_for(TAKEN)
    canned.edge.end(id, 0, "", "")
    assert list(call) == []


def test_a_reader_that_leaves_is_told_although_nothing_is_written(
    canned: Canned, channel: grpc.Channel
) -> None:
    for opened in (True, False):
        call = stream(channel, b"q")
        id = canned.wait_for(CALL)[1]
        if opened:
            canned.edge.open(id)
            assert call.initial_metadata() is not None
        call.cancel()
        assert canned.wait_for(GONE) == (GONE, id)
        canned.edge.write(id, b"late")
        canned.edge.end(id, 0, "", "")
    canned.settled(lambda now: now["calls_under_way"] == 0)
    assert not canned.events


def test_a_connection_that_goes_takes_all_its_calls_along(canned: Canned, connect: Connect) -> None:
    channel = connect(canned)
    calls = [stream(channel) for _ in range(50)] + [later(channel, "Hold") for _ in range(50)]
    ids = {canned.wait_for(CALL)[1] for _ in calls}
    channel.close()
    assert {canned.wait_for(GONE)[1] for _ in calls} == ids
    canned.settled(lambda now: now["connections"] == 0 and now["calls_under_way"] == 0)


def test_a_caller_that_leaves_before_python_looks_is_never_shown(
    start: Start, connect: Connect
) -> None:
    canned = start(pause_s=0.5)
    channel = connect(canned)
    unary(channel, "Echo")
    calls = [later(channel, "Hold") for _ in range(20)]
    canned.settled(lambda now: now["calls"] == 21)
    for call in calls:
        call.cancel()
    canned.settled(lambda now: now["calls_under_way"] == 0)
    # Those that were shown were also told to be gone.
    shown = [event[1] for event in canned.events if event[0] == CALL]
    gone = [event[1] for event in canned.events if event[0] == GONE]
    assert shown == gone


# --- Both ways ------------------------------------------------------------------------------------


def test_a_conversation_goes_at_the_pace_of_python(canned: Canned, channel: grpc.Channel) -> None:
    said: queue.Queue[bytes | None] = queue.Queue()
    call = talk(channel, iter(said.get, None))
    event = canned.wait_for(CALL)
    id = event[1]
    assert event[2:4] == (4, None)
    for n in range(5):
        said.put(str(n).encode())
    assert canned.wait_for(MESSAGE) == (MESSAGE, id, b"0")
    threading.Event().wait(0.2)
    assert not canned.events  # no credit, no message
    canned.edge.more(id, 2)
    assert [canned.wait_for(MESSAGE)[2] for _ in range(2)] == [b"1", b"2"]
    canned.edge.write(id, b"two")
    assert next(call) == b"two"
    canned.edge.more(id, 10)
    assert [canned.wait_for(MESSAGE)[2] for _ in range(2)] == [b"3", b"4"]
    said.put(None)
    assert canned.wait_for(HALF_CLOSED) == (HALF_CLOSED, id)
    canned.edge.write(id, b"last")
    canned.edge.end(id, 0, "", "")
    assert list(call) == [b"last"]
    canned.settled(lambda now: now["calls_under_way"] == 0 and now["inbox_bytes"] == 0)


def test_a_reply_lets_the_next_message_come_and_is_not_told(
    canned: Canned, channel: grpc.Channel
) -> None:
    said: queue.Queue[bytes | None] = queue.Queue()
    call = talk(channel, iter(said.get, None))
    id = canned.wait_for(CALL)[1]
    canned.edge.more(id, 1)
    for n in range(5):
        said.put(str(n).encode())
    for n in range(5):
        assert canned.wait_for(MESSAGE)[2] == str(n).encode()
        if n == 1:
            threading.Event().wait(0.2)
            assert not canned.events  # two were let come, and one was answered since
        if n:
            canned.edge.reply(id, str(n - 1).encode())
            assert next(call) == str(n - 1).encode()
    said.put(None)
    assert canned.wait_for(HALF_CLOSED) == (HALF_CLOSED, id)
    canned.edge.reply(id, b"4")
    canned.edge.end(id, 0, "", "")
    assert list(call) == [b"4"]
    canned.settled(lambda now: now["calls_under_way"] == 0 and now["inbox_bytes"] == 0)
    assert not canned.events


def test_a_conversation_may_be_ended_while_the_caller_talks(
    canned: Canned, channel: grpc.Channel
) -> None:
    said: queue.Queue[bytes | None] = queue.Queue()
    said.put(b"x")
    call = talk(channel, iter(said.get, None))
    id = canned.wait_for(CALL)[1]
    canned.wait_for(MESSAGE)
    canned.edge.end(id, 9, "enough", "HOOK_FAILED")
    assert refused(lambda: next(call)) == (STATUS.FAILED_PRECONDITION, "enough", "HOOK_FAILED")
    said.put(None)
    assert unary(channel, "Echo", b"on") == b"on"
    canned.settled(lambda now: now["calls_under_way"] == 0 and now["inbox_bytes"] == 0)


def test_a_giant_message_ends_a_conversation_after_what_came_before_it(
    start: Start, connect: Connect
) -> None:
    canned = start(settings={"max_request_bytes": 1000})
    said: queue.Queue[bytes | None] = queue.Queue()
    said.put(b"x")
    call = talk(connect(canned), iter(said.get, None))
    id = canned.wait_for(CALL)[1]
    canned.wait_for(MESSAGE)
    canned.edge.more(id, 5)
    said.put(bytes(1001))
    assert canned.wait_for(HALF_CLOSED) == (HALF_CLOSED, id)
    canned.edge.reply(id, b"y")
    canned.edge.end(id, 0, "", "")
    assert next(call) == b"y"
    refusal = refused(lambda: next(call))
    assert refusal == (STATUS.RESOURCE_EXHAUSTED, "a request of 1001 bytes exceeds 1000", "")
    said.put(None)


# --- Deadlines ------------------------------------------------------------------------------------


def test_a_deadline_ends_a_call_of_every_kind(canned: Canned, channel: grpc.Channel) -> None:
    def opened() -> Any:
        call = stream(channel, timeout=0.3)
        id = canned.wait_for(CALL)[1]
        canned.edge.write(id, b"x")
        assert next(call) == b"x"
        canned.wait_for(TAKEN)
        return next(call)

    for call, is_shown in (
        (lambda: unary(channel, "Hold", timeout=0.3), True),
        (lambda: next(stream(channel, timeout=0.3)), True),
        (opened, False),
    ):
        assert refused(call).status is STATUS.DEADLINE_EXCEEDED
        if is_shown:
            canned.wait_for(CALL)
        canned.wait_for(GONE)
    canned.settled(lambda now: now["calls_under_way"] == 0)
