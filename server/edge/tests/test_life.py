# SPDX-License-Identifier: AGPL-3.0-only
"""An edge from its first word to its last: what it is given, draining, closing."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import fila_edge
import grpc
import pytest
from fila_edge import CALL, GONE

from server.edge.tests.calls import later, refused, stream, unary
from server.edge.tests.canned import SETTINGS, Canned
from server.edge.tests.conftest import Connect, Start

STATUS = grpc.StatusCode


def made(**changes: Any) -> fila_edge.Edge:
    """Make an edge that listens nowhere."""
    options: dict[str, Any] = {
        "listeners": [],
        "routes": [("/t.T/Echo", fila_edge.UNARY)],
        "metadata": ["authorization"],
        "settings": SETTINGS,
        "certificates": None,
        "needs_key": False,
        "services": [],
        "reflection": None,
    }
    return fila_edge.Edge(**{**options, **changes})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"settings": {}}, "the setting max_request_bytes is missing"),
        ({"settings": {**SETTINGS, "colour": 1}}, "there is no setting colour"),
        ({"settings": {**SETTINGS, "watches_max": -1}}, "watches_max of -1 is not between"),
        ({"routes": [("/t.T/Echo", 9)]}, "/t.T/Echo: there is no kind 9"),
        ({"metadata": ["Upper"]}, '"Upper" is no lower-case header name'),
        ({"certificates": (b"", b"", None)}, "the certificate holds no certificate in PEM form"),
    ],
)
def test_what_cannot_be_used_is_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        made(**changes)


def test_an_edge_that_nobody_closes_ends_with_its_last_reference() -> None:
    before = threading.active_count(), len(os.listdir("/proc/self/task"))
    edge = made()
    assert edge.take(10) == []
    assert len(os.listdir("/proc/self/task")) == before[1] + 1
    del edge
    assert (threading.active_count(), len(os.listdir("/proc/self/task"))) == before


def test_closing_twice_is_closing(canned: Canned) -> None:
    canned.close()
    canned.close()
    assert canned.edge.take(10) == []
    canned.edge.answer([(1, b"x")])


def test_a_drained_edge_finishes_what_is_under_way(canned: Canned, connect: Connect) -> None:
    channel = connect(canned)
    call, flow = later(channel, "Hold"), stream(channel)
    ids = {event[2]: event[1] for event in (canned.wait_for(CALL) for _ in range(2))}
    canned.edge.write(ids[3], b"1")
    assert next(flow) == b"1"
    canned.edge.drain()
    host, _, port = canned.address.rpartition(":")

    def is_deaf(_: dict[str, int]) -> bool:
        try:
            socket.create_connection((host, int(port)), timeout=30).close()
        except ConnectionRefusedError:
            return True
        return False

    canned.settled(is_deaf)
    assert canned.edge.figures()["connections"] == 1
    canned.edge.answer([(ids[2], b"done")])
    assert call.result() == b"done"
    canned.edge.write(ids[3], b"2")
    canned.edge.end(ids[3], 0, "", "")
    assert list(flow) == [b"2"]
    canned.settled(lambda now: now["connections"] == 0)


def test_last_answers_go_out_before_the_end(start: Start, connect: Connect) -> None:
    canned = start()
    channel = connect(canned)
    calls = [later(channel, "Hold") for _ in range(50)]
    left = stream(channel)
    events = [canned.wait_for(CALL) for _ in range(51)]
    ids = [event[1] for event in events if event[2] == 2]
    canned.edge.answer([(id, b"last") for id in ids])
    canned.edge.close()
    assert [call.result() for call in calls] == [b"last"] * 50
    refusal = refused(lambda: next(left))
    assert refusal == (STATUS.UNAVAILABLE, "the broker is shutting down", "SHUTTING_DOWN")
    assert not [event for event in canned.edge.take(100) if event[0] == GONE]


def test_the_edge_goes_on_while_python_does_not(start: Start, connect: Connect) -> None:
    canned = start(pause_s=1.0)
    channel = connect(canned)
    call = later(channel, "Echo", b"x")
    health = channel.unary_unary("/grpc.health.v1.Health/Check", None, None)
    for _ in range(20):
        assert health(b"", timeout=30) == b"\x08\x01"
    assert call.result() == b"x"
    assert unary(channel, "Echo", b"y") == b"y"
