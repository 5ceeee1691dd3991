# SPDX-License-Identifier: AGPL-3.0-only
"""TLS and client certificates on the HTTP port, as they are on the broker's."""

from __future__ import annotations

import shutil
import signal
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from server.tests.broker_process import BrokerProcess
from server.tests.http.conftest import BOOTSTRAP
from server.tests.http.web import Web
from server.tests.rpc.wire import eventually

CERTS = Path(__file__).parents[1] / "rpc" / "certs"
Start = Callable[..., BrokerProcess]


def files(**names: str) -> dict[str, str]:
    return {f"tls__{name}": str(CERTS / file) for name, file in names.items()}


SERVER = files(cert_file="server.pem", key_file="server.key")


def trusting(ca: str = "ca.pem", client: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(CERTS / ca))
    if client:
        context.load_cert_chain(CERTS / f"{client}.pem", CERTS / f"{client}.key")
    return context


def is_refused(address: str, context: ssl.SSLContext) -> bool:
    try:
        Web(address, context).get("/healthz")
    except (ssl.SSLError, ConnectionError):
        return True
    return False


def test_sessions_are_for_tls_only_under_tls(start: Start) -> None:
    broker = start(auth__bootstrap_apikey=BOOTSTRAP, **SERVER)
    web = Web(broker.http_address, trusting())
    cookie = web.login(BOOTSTRAP).headers["Set-Cookie"]
    assert cookie.startswith("__Host-fila_session_") and "Secure" in cookie
    assert web.get("/api/overview").status == 200
    assert is_refused(broker.http_address, trusting("other_ca.pem"))
    with pytest.raises((ConnectionError, OSError)):
        Web(broker.http_address).get("/healthz")


def test_client_certificates_are_asked_for(start: Start) -> None:
    address = start(**SERVER, **files(ca_file="ca.pem")).http_address
    assert is_refused(address, trusting())
    assert is_refused(address, trusting(client="stranger"))
    assert Web(address, trusting(client="client")).get("/healthz").status == 200


def test_new_certificates_are_taken_over(start: Start, tmp_path: Path) -> None:
    for name in ("server.pem", "server.key"):
        shutil.copy(CERTS / name, tmp_path / name)
    broker = start(
        tls__cert_file=str(tmp_path / "server.pem"), tls__key_file=str(tmp_path / "server.key")
    )
    assert not is_refused(broker.http_address, trusting())
    for kind in ("pem", "key"):
        shutil.copy(CERTS / f"stranger.{kind}", tmp_path / f"server.{kind}")
    broker.signal(signal.SIGHUP)
    eventually(lambda: is_refused(broker.http_address, trusting()))
