# SPDX-License-Identifier: AGPL-3.0-only
"""A directory that the version before has left: this broker finds in it all that was there."""

import json
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import fila
from fila import Client
from fila_server.core.migration import from_1
from fila_server.storage.api import Reader, Write
from fila_server.storage.directory import FORMAT_VERSION
from fila_server.storage.rocks import RocksStorage
from server.tests.broker_process import BrokerProcess
from server.tests.storage import format_1

HERE = Path(__file__).parent
DATED = (sys.executable, str(HERE / "dated_broker.py"))


@pytest.fixture
def facts() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((HERE / "data" / "format-1.json").read_text())
    return content


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess], facts: dict[str, Any]) -> BrokerProcess:
    """A broker on the directory, at the time of day at which it was left."""
    broker = make_broker(
        config=f'[auth]\nbootstrap_apikey = "{format_1.ADMIN_KEY}"\n',
        environment={"WALL_NS": str(facts["wall_ns"])},
    )
    broker.data.mkdir()
    with tarfile.open(HERE / "data" / "format-1.tar.gz") as archive:
        archive.extractall(broker.data, filter="data")
    return broker


@pytest.mark.parametrize("starts", [1, 2])
def test_everything_in_a_directory_of_format_1_is_found(
    broker: BrokerProcess, facts: dict[str, Any], starts: int
) -> None:
    for _ in range(starts - 1):
        broker.start(DATED)
        broker.kill()
    broker.start(DATED)
    with Client(broker.address, api_key=format_1.ADMIN_KEY, timeout=60) as client:
        found = format_1.found(client)
        for what in found:
            assert found[what] == facts[what], what
        check_settings(client)
        check_promises(client, facts)
    check_keys(broker.address, facts)
    assert broker.terminate() == 0
    assert (broker.data / "FORMAT").read_text() == f"{FORMAT_VERSION}\n"
    assert broker.log().count("migrated from format 1 to 2") == 1


def test_a_step_leaves_alone_what_it_has_changed(broker: BrokerProcess) -> None:
    changed: list[int] = []

    def step(read: Reader) -> Iterator[Sequence[Write]]:
        for batch in from_1(read):
            changed.append(len(batch))
            yield batch

    store = RocksStorage.open(str(broker.data), steps={1: step})
    assert sum(changed) > 2
    assert list(from_1(store)) == []
    store.close()


def check_settings(client: Client) -> None:
    orders = client.stats("orders").config
    assert (orders.max_attempts, orders.visibility_timeout_ms) == (3, format_1.MINUTES_MS)
    hooked = client.stats("hooked").config
    assert hooked.on_enqueue_script == format_1.ON_ENQUEUE
    assert hooked.on_failure_script == format_1.ON_FAILURE
    assert client.stats("slow").config.retry_delay_ms == format_1.MINUTES_MS


def check_promises(client: Client, facts: dict[str, Any]) -> None:
    """What the broker said before the restart still binds it."""
    once = facts["idempotent"]
    assert client.enqueue("orders", None, b"again", idempotency_key=once["key"]) == once["id"]
    for message_id, token in facts["leases"].items():
        client.ack("orders", message_id, token)
    assert client.receive("halted") == []
    client.resume("halted")
    assert [message.payload for message in client.receive("halted")] == [b"halted"]
    payloads = {message.payload for message in client.receive("orders", 100)}
    assert payloads == {b"failed and back in its lane", b"mortal", b"throttled", b"once"}
    client.resume("orders", "frozen")
    assert [message.payload for message in client.receive("orders", 100)] == [b"frozen"]
    assert client.redrive("orders.dlq") == 1
    (back,) = client.receive("orders", 100)
    assert (back.payload, back.attempt_count) == (b"dies of nacks", 0)
    assert len(client.receive("bulk", 100)) == 50


def check_keys(address: str, facts: dict[str, Any]) -> None:
    with Client(address, api_key=facts["superadmin"], timeout=60) as client:
        client.create_queue("made-by-operator")
    with Client(address, api_key=facts["limited"], timeout=60) as client:
        client.enqueue("orders", None, b"allowed")
        with pytest.raises(fila.PermissionDeniedError):
            client.receive("orders")
    with (
        Client(address, api_key="fila_unknown", timeout=60) as client,
        pytest.raises(fila.UnauthenticatedError),
    ):
        client.enqueue("orders", None, b"refused")
