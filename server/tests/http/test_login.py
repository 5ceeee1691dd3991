# SPDX-License-Identifier: AGPL-3.0-only
"""Logging in, staying so, and what other sites cannot do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila_server.http.sessions import Attempts, Sessions
from server.tests.broker_process import BrokerProcess
from server.tests.http.conftest import BOOTSTRAP
from server.tests.http.web import Web
from server.tests.rpc.wire import eventually

Root = Callable[[Any], Any]


@pytest.fixture
def web(guarded: BrokerProcess) -> Web:
    return Web(guarded.http_address)


def test_without_a_login_nothing_is_shown(web: Web) -> None:
    assert web.get("/api/session").json() == {"needs_login": True}
    for reply in (
        web.get("/api/overview"),
        web.get("/api/queue?name=orders"),
        web.call("ListConfig"),
        web.post("/api/logout", {}),
    ):
        assert reply.status == 401
        assert reply.error()["reason"] == "UNAUTHENTICATED"


def test_a_key_opens_a_session(web: Web) -> None:
    reply = web.login(BOOTSTRAP)
    cookie = reply.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie
    assert "Secure" not in cookie  # the connection is not, and the browser would drop it
    assert BOOTSTRAP not in cookie
    assert web.get("/api/session").json()["name"] == "bootstrap"
    assert web.get("/api/overview").json()["queue_count"] >= 0


def test_a_wrong_key_opens_none(web: Web) -> None:
    for key in ("", "wrong", "fila_0123_4567", f"{BOOTSTRAP}x", "line\nbreak", "é\ud800"):
        assert web.login(key).status == 401
    assert web.cookies == {}
    assert web.post("/api/login", {"key": 7}).status == 400


def test_a_logout_ends_the_session(web: Web) -> None:
    web.login(BOOTSTRAP)
    cookies = dict(web.cookies)
    assert web.post("/api/logout", {}).json() == {"needs_login": True}
    web.cookies = cookies
    assert web.get("/api/overview").status == 401


def test_a_revoked_key_ends_its_sessions(web: Web, root: Root, new_key: Callable[..., Any]) -> None:
    key = new_key("admin:*")
    web.login(key.secret)
    assert web.get("/api/overview").status == 200
    root(pb.RevokeApiKeyRequest(key_id=key.key_id))
    assert web.get("/api/overview").status == 401


def test_permissions_that_are_taken_away_are_gone_at_once(
    web: Web, root: Root, new_key: Callable[..., Any]
) -> None:
    root(pb.CreateQueueRequest(name="login.a"))
    key = new_key("admin:login.*")
    web.login(key.secret)
    assert web.get("/api/queue?name=login.a").status == 200
    acl = [pb.AclPermission(kind="produce", pattern="other")]
    root(pb.SetAclRequest(key_id=key.key_id, acl=acl))
    assert web.get("/api/queue?name=login.a").status == 403
    assert web.get("/api/overview").json()["queues"] == []


def test_a_session_without_anybody_ends(start: Callable[..., BrokerProcess]) -> None:
    web = Web(start(http__session_ms="1000", auth__bootstrap_apikey=BOOTSTRAP).http_address)
    web.login(BOOTSTRAP)
    eventually(lambda: web.get("/api/overview").status == 401)


@pytest.mark.parametrize(
    "headers",
    [
        {"X_Fila_Csrf": ""},
        {"X_Fila_Csrf": "none"},
        {"X_Fila_Csrf": "guessed"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_another_site_cannot_post(web: Web, headers: dict[str, str]) -> None:
    web.login(BOOTSTRAP)
    reply = web.post("/api/call/Pause", {"queue": "orders"}, **headers)
    assert reply.status == 403
    assert reply.error()["reason"] == "PERMISSION_DENIED"


def test_a_post_must_be_json(web: Web) -> None:
    web.login(BOOTSTRAP)
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        assert web.post("/api/call/Pause", {}, Content_Type=kind).status == 400


def test_another_site_cannot_log_somebody_in(web: Web) -> None:
    body = json.dumps({"key": BOOTSTRAP}).encode()
    assert web.send("POST", "/api/login", body).status == 403
    assert web.post("/api/login", {"key": BOOTSTRAP}, Origin="http://evil.example").status == 403


def test_failed_logins_are_limited_and_logged(start: Callable[..., BrokerProcess]) -> None:
    broker = start(auth__bootstrap_apikey=BOOTSTRAP)
    web = Web(broker.http_address)
    statuses = [web.login("wrong").status for _ in range(11)]
    assert statuses == [401] * 10 + [429]
    reply = web.login(BOOTSTRAP)
    assert reply.status == 429
    assert 1 <= int(reply.headers["Retry-After"]) <= 61
    refused = [line for line in broker.log().splitlines() if "POST /api/login" in line]
    assert len(refused) == 10
    assert BOOTSTRAP not in broker.log()


# --- Without a broker -----------------------------------------------------------------------------


def test_polls_do_not_keep_a_session() -> None:
    now_s = 0.0
    sessions = Sessions(60, lambda: now_s)
    token, _ = sessions.open("key")
    now_s = 50
    assert sessions.find(token, is_active=False) is not None
    assert sessions.find(token, is_active=True) is not None
    now_s = 100
    assert sessions.find(token, is_active=False) is not None
    now_s = 111
    assert sessions.find(token, is_active=True) is None


def test_a_session_ends_however_busy_it_is() -> None:
    now_s = 0.0
    sessions = Sessions(3600, lambda: now_s)
    token, _ = sessions.open("key")
    lasted = 0
    while sessions.find(token, is_active=True) is not None:
        lasted += 1
        now_s += 1800
    assert lasted == 24


def test_sessions_are_bounded_and_one_key_pushes_out_its_own() -> None:
    sessions = Sessions(60, lambda: 0.0)
    first, _ = sessions.open("other")
    for _ in range(2000):
        sessions.open("greedy")
    assert sessions.find(first, is_active=False) is not None
    assert len(sessions) == 101
    for number in range(2000):
        sessions.open(f"key{number}")
    assert len(sessions) == 1000


def test_a_network_of_addresses_is_one_stranger() -> None:
    now_s = 0.0
    attempts = Attempts(lambda: now_s)
    for number in range(10):
        assert attempts.wait_s("2001:db8::1") == 0
        attempts.failed(f"2001:db8::{number}")
    assert attempts.wait_s("2001:db8::ffff") == 60
    assert attempts.wait_s("2001:db8:0:1::1") == 0
    now_s = 60
    assert attempts.wait_s("2001:db8::1") == 0


def test_failures_of_many_addresses_are_bounded() -> None:
    attempts = Attempts(lambda: 0.0)
    for number in range(5000):
        if not attempts.wait_s(f"10.0.{number // 256}.{number % 256}"):
            attempts.failed(f"10.0.{number // 256}.{number % 256}")
    assert attempts.wait_s("192.0.2.1") > 0
