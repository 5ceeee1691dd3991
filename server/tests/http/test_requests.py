# SPDX-License-Identifier: AGPL-3.0-only
"""What pages may ask for: the same rules and the same log as for calls through gRPC."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from server.tests.broker_process import BrokerProcess
from server.tests.http.conftest import BOOTSTRAP
from server.tests.http.web import Web
from server.tests.rpc.wire import Wire

Root = Callable[[Any], Any]


# --- Files and headers ----------------------------------------------------------------------------


def test_every_answer_keeps_the_page_to_itself(web: Web) -> None:
    for path in ("/", "/healthz", "/api/overview", "/nowhere", "/assets/nothing.js"):
        headers = web.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"


def test_a_file_that_has_not_changed_is_not_sent_again(web: Web) -> None:
    first = web.get("/")
    assert first.status == 200 and first.headers["Content-Type"].startswith("text/html")
    again = web.get("/", If_None_Match=first.headers["ETag"])
    assert (again.status, again.body) == (304, b"")
    assert web.get("/", If_None_Match='"other"').status == 200


def test_there_are_no_files_but_the_pages(web: Web) -> None:
    for path in ("../app.py", "%2e%2e/app.py", "/etc/passwd", "..%2fapp.py", "", "js", "index"):
        assert web.get(f"/assets/{path}").status == 404
    assert web.send("PUT", "/").status == 405


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example"])
def test_a_name_that_is_not_the_brokers_is_refused_while_keys_are_off(host: str, web: Web) -> None:
    reply = web.get("/api/overview", Host=host)
    assert reply.status == 403
    assert "http.host_names" in reply.error()["message"]
    assert web.get("/healthz", Host=host).status == 200


def test_names_can_be_added(start: Callable[..., BrokerProcess]) -> None:
    web = Web(start(http__host_names="fila.internal, other").http_address)
    for host in ("fila.internal", "Other:8080", "localhost", "[::1]:80", "10.1.2.3"):
        assert web.get("/api/overview", Host=host).status == 200


def test_with_keys_any_name_will_do(guarded: BrokerProcess) -> None:
    web = Web(guarded.http_address)
    web.login(BOOTSTRAP)
    assert web.get("/api/overview", Host="fila.example").status == 200


# --- Views ----------------------------------------------------------------------------------------


def test_the_overview_has_every_queue_and_its_letters(web: Web, wire: Wire) -> None:
    queue = wire.queue(max_attempts=1)
    wire.dead_letter(queue, 3)
    wire.enqueue(queue)
    row = next(it for it in _overview(web, queue)["queues"] if it["name"] == queue)
    assert (row["depth"], row["dead_letters"], row["active_consumers"]) == (1, 3, 0)
    assert row["dead_letter_of"] == "" and row["paused"] is False


def _overview(web: Web, match: str) -> Any:
    return web.get(f"/api/overview?match={match}").json()


def test_queues_in_trouble_come_first(web: Web, wire: Wire) -> None:
    idle, stuck = wire.queue(), wire.queue()
    wire.enqueue(stuck)
    names = [row["name"] for row in web.get("/api/overview?match=q").json()["queues"]]
    assert names.index(stuck) < names.index(idle)


def test_a_queue_shows_its_keys_limits_and_settings(web: Web, wire: Wire) -> None:
    queue = wire.queue(max_attempts=7)
    wire.call(pb.SetConfigRequest(key="throttle:provider:rate", value="5"))
    wire.enqueue(queue, fairness_key="acme", weight=3, throttle_keys=["provider"])
    shown = web.get(f"/api/queue?name={queue}").json()
    assert [(row["key"], row["weight"]) for row in shown["per_key_stats"]] == [("acme", 3)]
    assert [row["rate_per_second"] for row in shown["per_throttle_stats"]] == [5.0]
    assert shown["config"]["max_attempts"] == 7
    assert shown["counters"]["enqueued"] == 1


def test_a_queue_says_who_waits_for_which_limit(web: Web, wire: Wire) -> None:
    queue = wire.queue()
    limits = {"bank": "acme", "post": "globex"}
    for limit, key in limits.items():
        wire.call(pb.SetConfigRequest(key=f"throttle:{limit}:rate", value="0.001"))
        for _ in range(3):
            wire.enqueue(queue, fairness_key=key, throttle_keys=[limit])
    wire.enqueue(queue, fairness_key="free")
    assert len(wire.receive(queue, 10)) == 3  # a burst of one each, and what has no limit
    shown = web.get(f"/api/queue?name={queue}").json()
    assert sorted(shown["waiters"], key=lambda row: row["key"]) == [
        {"key": "acme", "throttled": 2, "throttle_keys": ["bank"]},
        {"key": "globex", "throttled": 2, "throttle_keys": ["post"]},
    ]


def test_a_queue_that_does_not_exist_is_named(web: Web) -> None:
    reply = web.get("/api/queue?name=nowhere")
    assert reply.status == 404
    assert reply.error() == {
        "reason": "QUEUE_NOT_FOUND",
        "message": 'queue "nowhere" does not exist',
    }


# --- Calls ----------------------------------------------------------------------------------------


def test_calls_do_what_they_do_through_grpc(web: Web, wire: Wire) -> None:
    queue = wire.queue()
    web.call("Pause", queue=queue, fairness_key="acme").json()
    wire.enqueue(queue, fairness_key="acme")
    answer = web.call("Explain", queue=queue, fairness_key="acme").json()
    assert answer["reasons"][0]["kind"] == "paused"
    web.call("Resume", queue=queue, fairness_key="acme").json()
    web.call("SetConfig", entries=[{"key": f"weight:{queue}:acme", "value": "4"}]).json()
    assert wire.stats(queue).per_key_stats[0].weight == 4
    found = web.call("ListConfig", prefix=f"weight:{queue}:").json()
    assert [row["value"] for row in found["entries"]] == ["4"]


def test_letters_are_seen_redriven_and_dropped(web: Web, wire: Wire) -> None:
    queue = wire.queue(max_attempts=1)
    wire.dead_letter(queue, 3)
    letters = web.call("Peek", queue=f"{queue}.dlq").json()["messages"]
    assert [row["last_error"] for row in letters] == ["boom"] * 3
    assert all("payload_text" not in row for row in letters)
    one = web.call("Peek", queue=f"{queue}.dlq", limit=1).json()["messages"][0]
    assert (one["payload_text"], one["payload_bytes"]) == ("x", 1)
    ids = [row["id"] for row in letters]
    web.call("CancelMessage", queue=f"{queue}.dlq", message_id=ids[0]).json()
    redriven = web.call("Redrive", dlq_queue=f"{queue}.dlq", message_ids=ids[1:2]).json()
    assert redriven == {"redriven": "1"}
    assert [wire.stats(name).depth for name in (f"{queue}.dlq", queue)] == [1, 1]


def test_a_payload_that_is_no_text_is_shown_in_base64_and_cut(web: Web, wire: Wire) -> None:
    queue = wire.queue()
    wire.enqueue(queue, b"\xff" * 10_000, headers={"tenant": "a"})
    one = web.call("Peek", queue=queue, limit=1).json()["messages"][0]
    assert len(one["payload_base64"]) < 6000
    assert (one["payload_bytes"], one["headers"]) == (10_000, {"tenant": "a"})


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("DeleteQueue", {"queue": "x"}),
        ("Purge", {"queue": "x"}),
        ("Nonsense", {}),
        ("_bound", {}),
        ("Pause", {"queue": 7}),
        ("Pause", {"unknown": "x"}),
        ("Peek", {"queue": "x", "limit": -1}),
        ("Redrive", {"message_ids": "x"}),
    ],
)
def test_what_pages_do_not_use_is_refused(method: str, fields: Any, web: Web) -> None:
    reply = web.call(method, **fields)
    assert reply.status == 400
    assert reply.error()["reason"] == "INVALID_ARGUMENT"


def test_large_bodies_are_refused(web: Web) -> None:
    assert web.call("Pause", queue="x" * 70_000).status == 413
    assert web.call("Pause", queue="x" * 60_000).status == 404


def test_bodies_that_are_no_object_are_refused(web: Web) -> None:
    headers = {"Content-Type": "application/json", "X-Fila-Csrf": "none"}
    for body in (b"", b"[]", b"{", b"[" * 60_000, b"\xff", os.urandom(1000)):
        assert web.send("POST", "/api/call/Pause", body, headers).status == 400
    packed = headers | {"Content-Encoding": "gzip"}
    assert web.send("POST", "/api/call/Pause", b"{}", packed).status == 400


# --- Who may --------------------------------------------------------------------------------------


def test_a_key_sees_and_does_what_it_may(
    guarded: BrokerProcess, root: Root, new_key: Callable[..., Any]
) -> None:
    for name in ("acl.own", "acl.seen", "secret"):
        root(pb.CreateQueueRequest(name=name))
    web = Web(guarded.http_address)
    web.login(new_key("admin:acl.own*", "produce:acl.seen").secret)
    session = web.get("/api/session").json()
    assert (session["administers_all"], session["is_superadmin"]) == (False, False)
    names = {row["name"] for row in web.get("/api/overview").json()["queues"]}
    assert names == {"acl.own", "acl.seen"}
    assert web.get("/api/queue?name=acl.own").status == 200
    for denied in (
        web.get("/api/queue?name=acl.seen"),
        web.get("/api/queue?name=secret"),
        web.get("/api/queue?name=does.not.exist"),
        web.call("Pause", queue="acl.seen"),
        web.call("Pause", throttle_key="provider"),
        web.call("Peek", queue="secret"),
        web.call("SetConfig", key="throttle:x:rate", value="1"),
        web.call("ListConfig"),
        web.call("ListThrottles"),
        web.call("CreateApiKey", name="mine", superadmin=True),
    ):
        assert (denied.status, denied.error()["reason"]) == (403, "PERMISSION_DENIED")
    assert web.call("Pause", queue="acl.own").status == 200
    # One who may sees the same view as another, and one who may not gets none of it.
    other = Web(guarded.http_address)
    other.login(new_key("admin:other").secret)
    assert other.get("/api/overview").json()["queues"] == []
    assert other.get("/api/queue?name=acl.own").status == 403


def test_keys_are_made_shown_once_and_revoked(guarded: BrokerProcess) -> None:
    web = Web(guarded.http_address)
    web.login(BOOTSTRAP)
    acl = [{"kind": "consume", "pattern": "orders"}]
    made = web.call("CreateApiKey", name="worker", acl=acl).json()
    assert made["secret"].startswith("fila_")
    listed = web.call("ListApiKeys").json()["keys"]
    row = next(it for it in listed if it["key_id"] == made["key_id"])
    assert (row["name"], row["acl"]) == ("worker", acl)
    assert made["secret"] not in json.dumps(listed)
    web.call("RevokeApiKey", key_id=made["key_id"]).json()
    assert Web(guarded.http_address).login(made["secret"]).status == 401
    assert made["secret"] not in guarded.log()


def test_without_keys_none_can_be_made(web: Web) -> None:
    assert web.call("CreateApiKey", name="planted").status == 403


def test_the_log_tells_who_changed_what(guarded: BrokerProcess) -> None:
    web = Web(guarded.http_address)
    web.login(BOOTSTRAP)
    web.call("SetConfig", key="throttle:audited:rate", value="5").json()
    lines = [json.loads(line) for line in guarded.log().splitlines()]
    told = [line for line in lines if line.get("settings") == ["throttle:audited:rate"]]
    assert [(line["message"], line["by"]) for line in told] == [("settings changed", "bootstrap")]


# --- What cannot be read --------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["http://[", "//[x]", "null", "http://", "::"])
def test_an_origin_that_is_none_is_refused(origin: str, web: Web, broker: BrokerProcess) -> None:
    reply = web.post("/api/call/ListConfig", {}, Origin=origin)
    assert (reply.status, reply.error()["reason"]) == (403, "PERMISSION_DENIED")
    assert web.post("/api/login", {"key": "k"}, Origin=origin).status == 403
    assert "a defect" not in broker.log()


@pytest.mark.parametrize(
    "body",
    [
        b'{"queue": "q", "state": Infinity}',
        b'{"queue": "q", "state": -1e400}',
        b'{"queue": "q", "state": "\\ud800"}',
        b'{"\\ud800": 1}',
        b'{"queue": "\\ud800"}',
        b'{"limit": NaN}',
        b'{"limit": ' + b"9" * 5000 + b"}",
    ],
)
def test_json_that_fits_no_request_is_refused(body: bytes, web: Web, broker: BrokerProcess) -> None:
    headers = {"Content-Type": "application/json", "X-Fila-Csrf": "none"}
    reply = web.send("POST", "/api/call/Peek", body, headers)
    assert (reply.status, reply.error()["reason"]) == (400, "INVALID_ARGUMENT")
    assert "a defect" not in broker.log()
