# SPDX-License-Identifier: AGPL-3.0-only
"""`fila backup`, `verify` and `restore`: what they print, and their exit codes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.tests.broker_process import BrokerProcess
from server.tests.cli.conftest import Fila


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "backups").mkdir()
    broker = BrokerProcess(tmp_path, config=f'[storage]\nbackup_dir = "{tmp_path / "backups"}"\n')
    broker.start()
    yield broker
    broker.close()


def test_a_backup_is_made_verified_and_restored(broker: BrokerProcess, tmp_path: Path) -> None:
    fila = Fila(broker.address)
    fila("queue", "create", "orders").ok()
    fila("enqueue", "orders", "--payload", "hello").ok()
    said = fila("backup", "daily").ok()
    assert said.startswith(f"Backed up 1 message to {tmp_path}/backups/daily/")
    made = fila("--json", "backup", "daily").json()
    assert (made["messages"], sorted(made)) == (1, ["copied_bytes", "messages", "path"])

    found = fila("verify", "--json", made["path"]).json()
    assert found["backup"] is True
    assert found["queues"] == [
        {"name": "orders", "messages": 1},
        {"name": "orders.dlq", "messages": 0},
    ]
    assert "1 message in 2 queues" in fila("verify", made["path"]).ok()
    assert "in use by the broker" in fila("verify", str(broker.data)).error()
    assert "not empty" in fila("restore", made["path"], str(broker.data)).error()

    restored = tmp_path / "restored"
    said = fila("restore", made["path"], str(restored)).ok()
    assert said.endswith(f"Start it: fila-server --data-dir {restored}\n")
    assert broker.terminate() == 0
    broker.data = restored
    broker.start()
    assert Fila(broker.address)("consume", "orders", "--count", "1").ok().count("hello") == 1

    table = max(Path(made["path"]).glob("*.sst"), key=lambda table: table.stat().st_size)
    table.write_bytes(table.read_bytes()[:-1])
    assert f"damaged: {table.name} has" in fila("verify", made["path"]).error()
    assert f"damaged: {table.name} has" in fila("restore", made["path"], "elsewhere").error()


def test_what_cannot_be_done_is_one_line(fila: Fila, tmp_path: Path) -> None:
    assert "set storage.backup_dir" in fila("backup", "daily").error()
    assert "neither a backup nor a data directory" in fila("verify", str(tmp_path)).error()
    assert "does not exist" in fila("verify", str(tmp_path / "nothing")).error(2)
