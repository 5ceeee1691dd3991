# SPDX-License-Identifier: AGPL-3.0-only
"""Health, readiness, metrics, and where the port is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from server.tests.broker_process import BrokerProcess, run_to_end
from server.tests.http.conftest import BOOTSTRAP
from server.tests.http.web import Web
from server.tests.rpc.wire import eventually

Start = Callable[..., BrokerProcess]


def test_the_port_is_off_unless_it_is_asked_for(start: Start) -> None:
    assert start(http__listen_addr="").http_address == ""


def test_a_broker_that_serves_is_alive_and_ready(web: Web) -> None:
    for path in ("/healthz", "/readyz"):
        reply = web.get(path)
        assert (reply.status, reply.body) == (200, b"ok\n")


def test_probes_need_no_key(guarded: BrokerProcess) -> None:
    web = Web(guarded.http_address)
    assert web.get("/healthz").status == web.get("/readyz").status == 200


def test_a_volume_without_room_is_not_ready_and_says_why(start: Start) -> None:
    web = Web(start(storage__min_free_bytes=str(1 << 40)).http_address)
    eventually(lambda: web.get("/readyz").status == 503)
    assert b"storage.min_free_bytes" in web.get("/readyz").body
    assert web.get("/healthz").status == 200


def test_an_address_in_use_stops_the_start_with_one_line(broker: BrokerProcess) -> None:
    done = run_to_end(
        *("--listen", "127.0.0.1:0", "--data-dir", str(broker.directory / "second")),
        environment={"FILA_HTTP__LISTEN_ADDR": broker.http_address},
    )
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line == (
        f"fila-server: cannot listen on {broker.http_address}: address already in use;"
        " choose another http.listen_addr"
    )


def test_listening_beyond_loopback_is_warned_of(start: Start) -> None:
    broker = start(http__listen_addr="0.0.0.0:0")
    told = [json.loads(line)["message"] for line in broker.log().splitlines()]
    assert [line for line in told if line.startswith("listening on 0.0.0.0")]
    assert Web(f"127.0.0.1:{broker.http_address.rpartition(':')[2]}").get("/healthz").status == 200


def test_metrics_are_those_of_the_broker(web: Web) -> None:
    reply = web.get("/metrics")
    assert reply.status == 200
    assert b"\nfila_connections " in reply.body


def test_metrics_need_a_key_that_administers_all_queues(
    guarded: BrokerProcess, new_key: Callable[..., Any]
) -> None:
    web = Web(guarded.http_address)
    assert web.get("/metrics").status == 401
    assert web.get("/metrics", authorization="Bearer wrong").status == 401
    some = new_key("admin:orders").secret
    assert web.get("/metrics", authorization=f"Bearer {some}").status == 403
    every = new_key("admin:*").secret
    assert web.get("/metrics", authorization=f"Bearer {every}").status == 200
    assert web.get("/metrics", authorization=f"Bearer {BOOTSTRAP}").status == 200
