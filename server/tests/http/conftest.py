# SPDX-License-Identifier: AGPL-3.0-only
"""Brokers with the HTTP port on: one that anybody may use, one with API keys."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from server.tests.broker_process import BrokerProcess
from server.tests.http.web import Web
from server.tests.rpc.wire import Wire

BOOTSTRAP = "bootstrap-key-of-the-tests-0123456789"
ON = {"FILA_HTTP__LISTEN_ADDR": "127.0.0.1:0"}
KEYS_ON = {**ON, "FILA_AUTH__BOOTSTRAP_APIKEY": BOOTSTRAP}
ROOT = (("authorization", f"Bearer {BOOTSTRAP}"),)


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("open"), environment=ON)
    broker.start()
    yield broker
    broker.close()


@pytest.fixture(scope="package")
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    wire = Wire(broker.address)
    yield wire
    wire.close()


@pytest.fixture
def web(broker: BrokerProcess) -> Web:
    return Web(broker.http_address)


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with API keys."""
    broker = BrokerProcess(tmp_path_factory.mktemp("guarded"), environment=KEYS_ON)
    broker.start()
    yield broker
    broker.close()


@pytest.fixture(scope="package")
def root(guarded: BrokerProcess) -> Iterator[Callable[[Any], Any]]:
    """Makes calls with the bootstrap key."""
    wire = Wire(guarded.address)
    yield lambda request: wire.call(request, metadata=ROOT)
    wire.close()


@pytest.fixture
def new_key(root: Callable[[Any], Any]) -> Callable[..., Any]:
    """Creates an API key with permissions such as "admin:orders"."""

    def create(*acl: str, **fields: Any) -> Any:
        entries = [
            pb.AclPermission(kind=kind, pattern=pattern)
            for kind, _, pattern in (entry.partition(":") for entry in acl)
        ]
        return root(pb.CreateApiKeyRequest(name="somebody", acl=entries, **fields))

    return create


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Start a broker of the test's own."""
    started: list[BrokerProcess] = []

    def run(**settings: str) -> BrokerProcess:
        directory = tmp_path / f"broker{len(started)}"
        directory.mkdir()
        variables = {f"FILA_{name.upper()}": value for name, value in settings.items()}
        started.append(BrokerProcess(directory, environment={**ON, **variables}))
        started[-1].start()
        return started[-1]

    yield run
    for broker in started:
        broker.close()
