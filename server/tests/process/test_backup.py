# SPDX-License-Identifier: AGPL-3.0-only
"""Backups of a real broker at work: what they hold, and what is left when one is cut short."""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import fila
from fila import Client, EnqueueMessage
from fila_server.storage.backups import contents
from fila_server.storage.backups.restore import restore
from server.tests.broker_process import BrokerProcess
from server.tests.process.ledger import QUEUE, VISIBILITY_MS, Ledger, Traffic, drain

LIMIT_S = 60.0


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    path = tmp_path / "backups"
    path.mkdir()
    return path


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess], backups: Path) -> BrokerProcess:
    # A small write buffer, so that tables are written and merged while they are copied.
    config = f'[storage]\nwrite_buffer_bytes = 65536\nbackup_dir = "{backups}"\n'
    broker: BrokerProcess = make_broker(config=config)
    broker.start()
    return broker


def silent(phase: str, done: int, total: int) -> None:
    """Tell nobody."""


def fill(address: str, count: int) -> None:
    with Client(address, timeout=60) as client:
        client.create_queue("filled")
        for start in range(0, count, 1000):
            batch = [EnqueueMessage("filled", None, b"%d" % n) for n in range(start, start + 1000)]
            assert all(result.error is None for result in client.enqueue_many(batch))


def worker_of(broker: BrokerProcess) -> int:
    """The process that makes the broker's backup."""
    assert broker.process is not None
    tasks = Path(f"/proc/{broker.process.pid}/task").iterdir()
    (child,) = {int(pid) for task in tasks for pid in (task / "children").read_text().split()}
    return child


def is_there(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def halfway(client: Client, broker: BrokerProcess, backups: Path) -> tuple[object, int]:
    """Begin a backup, and stop the process that makes it while it is at work."""
    for _ in range(20):
        steps = client.backup()
        for step in steps:
            if step.phase == "copy":
                break
        worker = worker_of(broker)
        os.kill(worker, signal.SIGSTOP)
        if list(backups.glob("*.partial")):
            return steps, worker
        os.kill(worker, signal.SIGCONT)
        list(steps)
    raise AssertionError("it was always done already")


@pytest.mark.serial
def test_a_backup_under_load_holds_what_was_promised_and_no_more(
    broker: BrokerProcess, make_broker: Callable[..., BrokerProcess], backups: Path
) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    ledger = Ledger()
    with Client(broker.address, timeout=30) as client:
        client.create_queue(QUEUE, visibility_timeout_ms=VISIBILITY_MS)
        traffic = Traffic(broker.address, ledger, seed)
        wait_until(lambda: len(ledger.acked) > 500)
        for _ in range(2):  # the second shares files with the first
            with ledger.lock:
                confirmed, acked = dict(ledger.confirmed), set(ledger.acked)
            *_, made = client.backup("under load")
        with ledger.lock:
            ack_sent = set(ledger.ack_sent)
    traffic.stop()
    assert broker.terminate() == 0

    restored = make_broker()
    verified = restore(Path(made.path), restored.data, silent)
    assert verified.contents.messages == made.messages
    restored.start()
    found = Ledger(sent=set(ledger.sent))
    drained = drain(restored.address, found)
    lost = confirmed.keys() - ack_sent - drained
    assert not lost, f"{len(lost)} confirmed messages are not in the backup"
    back = acked & drained
    assert not back, f"{len(back)} acked messages came back"
    assert len(drained) == made.messages
    assert all(len(ids) == 1 for ids in found.ids.values())
    assert len(confirmed) > 500
    assert restored.terminate() == 0


def test_a_client_that_leaves_ends_its_backup_and_nothing_is_left(
    broker: BrokerProcess, backups: Path
) -> None:
    fill(broker.address, 20_000)
    with Client(broker.address, timeout=30) as client:
        steps, worker = halfway(client, broker, backups)
        with pytest.raises(fila.OverloadedError, match=f"a backup to {backups} is under way"):
            list(client.backup("another"))
        steps.close()
        os.kill(worker, signal.SIGCONT)
        wait_until(lambda: not is_there(worker))
        assert list(backups.iterdir()) == []
        made: list[fila.BackupProgress] = []

        def begins_another() -> bool:  # once the broker has seen that its worker is gone
            with suppress(fila.OverloadedError):
                made.extend(client.backup())
            return bool(made)

        wait_until(begins_another)
        assert made[-1].messages == 20_000
    assert broker.terminate() == 0


def test_a_broker_that_stops_ends_its_backup(broker: BrokerProcess, backups: Path) -> None:
    fill(broker.address, 20_000)
    with Client(broker.address, timeout=30) as client:
        steps, worker = halfway(client, broker, backups)
        broker.signal(signal.SIGTERM)
        os.kill(worker, signal.SIGCONT)
        with pytest.raises(fila.FilaError):
            list(steps)
    assert broker.wait() == 0
    assert not is_there(worker)
    assert list(backups.iterdir()) == []


@pytest.mark.parametrize("both", [False, True])
def test_kill_9_during_a_backup_leaves_nothing_that_stays(
    broker: BrokerProcess, backups: Path, both: bool
) -> None:
    fill(broker.address, 20_000)
    with Client(broker.address, timeout=30) as client:
        steps, worker = halfway(client, broker, backups)
        broker.kill()
        if both:
            os.kill(worker, signal.SIGKILL)
        else:  # it notices that nobody is there any more
            os.kill(worker, signal.SIGCONT)
        wait_until(lambda: not is_there(worker))
        assert len(list(backups.glob("*.partial"))) == both
        with pytest.raises(fila.FilaError):
            list(steps)
    broker.start()
    with Client(broker.address, timeout=30) as client:
        *_, made = client.backup()
    assert [path.name for path in backups.iterdir()] == [Path(made.path).name]
    assert contents.verify(Path(made.path), silent).contents.messages == 20_000
    assert broker.terminate() == 0


def test_a_broker_can_be_started_on_a_backup_itself(broker: BrokerProcess, backups: Path) -> None:
    fill(broker.address, 1000)
    with Client(broker.address, timeout=30) as client:
        *_, made = client.backup()
    assert broker.terminate() == 0
    broker.data = Path(made.path)
    broker.start()
    with Client(broker.address, timeout=30) as client:
        assert client.stats("filled").depth == 1000
    assert broker.terminate() == 0
