# SPDX-License-Identifier: AGPL-3.0-only
"""`fila.testing` starts a real broker. These tests do too; without `fila-server` they fail."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fila
import fila.testing

PATIENCE_S = 60


def is_alive(pid):
    """Whether a process is there and is not just waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid):
    deadline = time.monotonic() + PATIENCE_S
    while is_alive(pid):
        assert time.monotonic() < deadline, "the broker outlived the process that started it"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def real():
    with fila.testing.broker() as broker:
        yield broker


@pytest.fixture
def client(real):
    with fila.Client(real.address) as client:
        client.wait_ready()
        yield client


def test_messages_go_through_a_real_broker(client):
    client.create_queue("orders")
    client.enqueue("orders", json={"n": 1})
    (message,) = client.receive("orders", wait_ms=5_000)
    assert message.json() == {"n": 1}
    assert client.extend_many([message], 60_000) == [message.lease_expires_at]
    message.ack()
    assert client.ping() > 0


def test_ensure_queue_agrees_with_a_real_broker(client):
    settings = {
        "max_attempts": 3,
        "visibility_timeout_ms": 0,  # the default
        "on_failure_script": "",
        "on_hook_error": "default",
    }
    for _ in range(2):
        assert client.ensure_queue("mail", **settings) == "mail.dlq"
    assert client.ensure_queue("mail") == "mail.dlq"
    with pytest.raises(fila.QueueAlreadyExistsError, match="max_attempts is 3, not 4"):
        client.ensure_queue("mail", max_attempts=4)


async def test_it_may_be_awaited_and_takes_more_configuration():
    async with fila.testing.broker("[limits]\nmax_payload_bytes = 100\n") as broker:
        folder = broker._folder
        async with fila.AsyncClient(broker.address) as client:
            await client.create_queue("orders")
            assert await client.enqueue("orders", payload=b"x" * 100)
            with pytest.raises(fila.MessageTooLargeError):
                await client.enqueue("orders", payload=b"x" * 101)
    assert broker.address == "" and not folder.exists()


def test_settings_of_the_machines_own_broker_are_not_taken_over(monkeypatch):
    monkeypatch.setenv("FILA_SERVER__LISTEN", "nowhere")
    monkeypatch.setenv("FILA_DATA_DIR", "/dev/null/data")
    with fila.testing.broker() as broker, fila.Client(broker.address) as client:
        assert client.ping() > 0
        with pytest.raises(RuntimeError, match="runs already"):
            broker.start()


def test_it_starts_empty_again(real):
    broker = fila.testing.broker()
    for _ in range(2):
        with broker, fila.Client(broker.address) as client:
            assert client.list_queues() == []
            client.create_queue("orders")
    broker.stop()
    broker.stop()


@pytest.mark.parametrize("ending", [signal.SIGKILL, None])
def test_it_does_not_outlive_the_process_that_started_it(ending):
    script = (
        "import fila.testing, sys\n"
        "broker = fila.testing.broker()\n"
        "broker.start()\n"
        "print(broker._process.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    assert is_alive(pid)
    if ending is not None:
        process.send_signal(ending)
    process.communicate()
    wait_until_gone(pid)


def test_a_broker_that_does_not_start_says_why_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"(?s)fila-server ended: .*nonsense"):
        fila.testing.broker("[nonsense]\n").start()
    assert list(tmp_path.iterdir()) == []


def test_without_a_server_the_error_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setenv("FILA_SERVER", str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError, match=r'missing", which FILA_SERVER names, is not there'):
        fila.testing.broker().start()
    monkeypatch.delenv("FILA_SERVER")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(FileNotFoundError, match="pip install fila-server"):
        fila.testing.broker().start()


def test_the_server_that_is_named_is_started(monkeypatch, tmp_path):
    named = tmp_path / "mine"
    named.write_text("#!/bin/sh\necho so that it is me >&2\nexit 3\n")
    named.chmod(0o755)
    monkeypatch.setenv("FILA_SERVER", os.fspath(named))
    with pytest.raises(RuntimeError, match="fila-server ended: so that it is me"):
        fila.testing.broker().start()
