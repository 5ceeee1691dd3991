# SPDX-License-Identifier: AGPL-3.0-only
"""What is left of a key on disk and in the log, and what the broker says of a door that is open."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fila
from fila import AclEntry
from fila_server.config import AuthConfig, Config, TlsConfig
from fila_server.main import warn_of_exposure, warn_of_short_key
from server.tests.broker_process import BrokerProcess

BOOTSTRAP = "bootstrap-key-of-the-tests-0123456789"
WAIT_S = 60.0  # far more than anything here takes, also on a busy machine


def test_keys_outlive_the_broker_and_no_secret_does(tmp_path: Path) -> None:
    environment = {"FILA_AUTH__BOOTSTRAP_APIKEY": BOOTSTRAP, "FILA_SERVER__LOG_LEVEL": "debug"}
    broker = BrokerProcess(tmp_path, environment=environment)
    broker.start()
    try:
        with fila.Client(broker.address, api_key=BOOTSTRAP, timeout=WAIT_S) as root:
            root.create_queue("orders")
            key = root.create_api_key("kept", [AclEntry("produce", "orders")])
            gone = root.create_api_key("gone", [AclEntry("produce", "orders")])
            root.revoke_api_key(gone.key_id)
            listed = root.list_api_keys()
        assert key.secret not in repr((key, listed))
        broker.kill()
        broker.start()
        with fila.Client(broker.address, api_key=key.secret, timeout=WAIT_S) as client:
            client.enqueue("orders", {}, b"x")
        for bad in (gone.secret, key.secret.swapcase()):
            with (
                fila.Client(broker.address, api_key=bad, timeout=WAIT_S) as client,
                pytest.raises(fila.UnauthenticatedError) as caught,
            ):
                client.enqueue("orders", {}, b"x")
            assert bad not in str(caught.value)
        assert broker.terminate() == 0
        secrets = [key.secret, gone.secret, BOOTSTRAP]
        parts = [secret.split("_", 2)[-1].encode() for secret in secrets]
        for path in tmp_path.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                assert not [part for part in parts if part in content], path
    finally:
        broker.close()


def test_keys_are_not_managed_while_they_are_off(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        with fila.Client(broker.address, timeout=WAIT_S) as client:
            with pytest.raises(fila.PermissionDeniedError, match=r"auth\.bootstrap_apikey"):
                client.create_api_key("planted", superadmin=True)
            with pytest.raises(fila.PermissionDeniedError, match=r"auth\.bootstrap_apikey"):
                client.list_api_keys()
        with fila.Client(broker.address, api_key="anything", timeout=WAIT_S) as client:
            assert client.list_queues() == []
    finally:
        broker.close()


@pytest.mark.parametrize(
    ("address", "settings", "expected"),
    [
        ("0.0.0.0:5555", {}, ["with no authentication", "without TLS: messages can be read"]),
        ("[::]:5555", {"key": BOOTSTRAP}, ["without TLS: messages and API keys can be read"]),
        ("10.0.0.1:5555", {"key": BOOTSTRAP, "tls": ("cert_file", "key_file")}, []),
        ("10.0.0.1:5555", {"tls": ("cert_file", "key_file")}, ["with no authentication"]),
        ("10.0.0.1:5555", {"tls": ("cert_file", "key_file", "ca_file")}, []),
        ("127.0.0.1:5555", {}, []),
        ("[::1]:5555", {}, []),
        ("127.0.0.1:5555", {"key": "sh0rt"}, ["has only 5 characters"]),
    ],
)
def test_exposure_is_warned_of(
    caplog: pytest.LogCaptureFixture,
    logged: Callable[[], list[logging.LogRecord]],
    address: str,
    settings: dict[str, Any],
    expected: list[str],
) -> None:
    config = Config(
        auth=AuthConfig(bootstrap_apikey=settings.get("key", "")),
        tls=TlsConfig(**dict.fromkeys(settings.get("tls", ()), "x.pem")),
    )
    warn_of_short_key(config)
    warn_of_exposure(config, address)
    texts = [record.getMessage() for record in logged()]
    assert len(texts) == len(expected)
    assert all(part in text for part, text in zip(expected, texts, strict=True))
    assert "sh0rt" not in caplog.text
