# SPDX-License-Identifier: AGPL-3.0-only
"""Starting a broker, and every way in which that fails: one clear line, no traceback, exit 1."""

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fila import Client
from fila_server import __version__
from server.tests.broker_process import COMMAND, READY_PREFIX, BrokerProcess, run_to_end

MakeBroker = Callable[..., BrokerProcess]


def failure(
    tmp_path: Path, *arguments: str, config: str = "", environment: dict[str, str] | None = None
) -> str:
    """Run a broker that cannot start, and return its one line."""
    file = tmp_path / "fila.toml"
    file.write_text(config)
    options = ["--config", str(file)] if "--config" not in arguments else []
    if "--data-dir" not in arguments:
        options += ["--data-dir", str(tmp_path / "data")]
    done = run_to_end(*options, *arguments, environment=environment, cwd=tmp_path)
    assert done.returncode == 1, done
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("fila-server: "), done.stderr
    return lines[0].removeprefix("fila-server: ")


def filled(make_broker: MakeBroker) -> BrokerProcess:
    """Return a stopped broker whose data directory holds a message."""
    broker = make_broker()
    broker.start()
    with Client(broker.address, timeout=30) as client:
        client.create_queue("q")
        client.enqueue("q", None, b"kept" * 1000)
    broker.kill()
    return broker


def test_the_ready_line_has_the_real_address(make_broker: MakeBroker) -> None:
    broker = make_broker()
    broker.start()
    host, _, port = broker.address.rpartition(":")
    assert host == "127.0.0.1" and int(port) > 0
    with Client(broker.address, timeout=30) as client:
        assert client.list_queues() == []
    assert broker.terminate() == 0


def test_the_ready_line_is_all_of_the_output(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    broker = BrokerProcess(tmp_path)
    broker.start()
    process = broker.process
    assert process is not None and process.stdout is not None
    process.terminate()
    assert process.stdout.read() == ""
    assert broker.wait() == 0
    lines = broker.log().splitlines()
    assert all(json.loads(line)["level"] == "info" for line in lines)
    assert Path(data, "FORMAT").exists()
    assert READY_PREFIX not in broker.log()


def test_help_and_version_and_wrong_usage() -> None:
    version = f"fila-server {__version__}, core "
    for option, text in (("--help", "--data-dir"), ("--version", version)):
        done = run_to_end(option)
        assert done.returncode == 0
        assert text in done.stdout
    for wrong in ("--nonsense", "stray"):
        done = run_to_end(wrong)
        assert done.returncode == 2
        assert wrong in done.stderr and "Traceback" not in done.stderr


def test_taken_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = failure(tmp_path, "--listen", address)
    assert line == (
        f"cannot listen on {address}: address already in use; choose another with"
        " --listen HOST:PORT"
    )


@pytest.mark.parametrize("address", ["203.0.113.9:4000", "no.such.host.invalid:4000"])
def test_address_of_another_machine(tmp_path: Path, address: str) -> None:
    line = failure(tmp_path, "--listen", address)
    assert line.startswith(f"cannot listen on {address}: ")


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "127.0.0.1:99999", "::1:80", ":1"])
def test_malformed_address(tmp_path: Path, address: str) -> None:
    line = failure(tmp_path, "--listen", address)
    assert line.startswith(f"server.listen_addr = '{address}': must be host:port")


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("[storage]\nsynk = 1\n", r"unknown setting storage.synk; the nearest is storage.sync"),
        ("[stordge]\n", r"unknown section \[stordge\]; the nearest is \[storage\]"),
        ("sync = 'always'\n", r"sync is in no section; the nearest is storage.sync"),
        ("[storage]\nsync = 'often'\n", r"storage.sync = 'often': must be \"always\""),
        ("[scheduler]\ninbox_max = '5'\n", r"scheduler.inbox_max = '5': must be an integer"),
        ("[scheduler\n", r"is not valid TOML"),
    ],
)
def test_bad_configuration_file(tmp_path: Path, config: str, text: str) -> None:
    line = failure(tmp_path, config=config)
    assert line.startswith(str(tmp_path / "fila.toml"))
    assert re.search(text, line)
    assert not (tmp_path / "data").exists()


def test_missing_configuration_file(tmp_path: Path) -> None:
    line = failure(tmp_path, "--config", str(tmp_path / "none.toml"))
    assert line == f"{tmp_path / 'none.toml'}: cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("FILA_STORAGE__SYNK", "x", "unknown environment variable FILA_STORAGE__SYNK"),
        ("FILA_STORAGE__SYNC", "often", "storage.sync = 'often': must be"),
        ("FILA_SCHEDULER__INBOX_MAX", "many", "scheduler.inbox_max = 'many': must be"),
        ("FILA_SERVER__REFLECTION", "maybe", "server.reflection = 'maybe': must be true or false"),
    ],
)
def test_bad_environment_override(tmp_path: Path, variable: str, value: str, text: str) -> None:
    line = failure(tmp_path, environment={variable: value})
    assert variable in line and text in line


def test_environment_overrides_the_file_and_options_override_both(
    make_broker: MakeBroker,
) -> None:
    broker = make_broker(
        config="[server]\nlisten_addr = '203.0.113.9:1'\n[scheduler]\nvisibility_timeout_ms = 1\n",
        environment={
            "FILA_SERVER__LISTEN_ADDR": "203.0.113.9:2",
            "FILA_SCHEDULER__VISIBILITY_TIMEOUT_MS": "77000",
        },
    )
    broker.start()
    with Client(broker.address, timeout=30) as client:
        client.create_queue("q")
        client.enqueue("q")
        (message,) = client.receive("q")
    assert message.lease_expires_at is not None and message.enqueued_at is not None
    lease = message.lease_expires_at - message.enqueued_at
    assert 77 <= lease.total_seconds() < 177
    assert broker.terminate() == 0


def test_locked_data_directory(make_broker: MakeBroker, tmp_path: Path) -> None:
    broker = make_broker()
    broker.start()
    assert broker.process is not None
    line = failure(tmp_path, "--listen", "127.0.0.1:0", "--data-dir", str(broker.data))
    assert line == (
        f"{broker.data}: in use by the broker with process id {broker.process.pid}; "
        "stop it, or set server.data_dir to another directory"
    )
    with Client(broker.address, timeout=30) as client:
        client.create_queue("unharmed")
    assert broker.terminate() == 0


def test_data_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    line = failure(tmp_path, "--listen", "127.0.0.1:0")
    assert "not a directory; set server.data_dir to a directory" in line


def test_data_directory_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "photos").write_text("")
    line = failure(tmp_path, "--listen", "127.0.0.1:0")
    assert "no Fila data directory, and not empty (it holds 'photos')" in line
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["fila.lock", "photos"]


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"999\n", "written by a newer Fila (format 999"), (b"\xff\xff", "FORMAT is damaged")],
)
def test_data_directory_of_another_format(
    make_broker: MakeBroker, tmp_path: Path, content: bytes, text: str
) -> None:
    broker = filled(make_broker)
    (broker.data / "FORMAT").write_bytes(content)
    assert text in failure(tmp_path, "--listen", "127.0.0.1:0", "--data-dir", str(broker.data))


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*"])
def test_damaged_data_directory(make_broker: MakeBroker, tmp_path: Path, name: str) -> None:
    broker = filled(make_broker)
    (victim,) = broker.data.glob(name)
    content = victim.read_bytes()
    victim.write_bytes(bytes(len(content)))
    line = failure(tmp_path, "--listen", "127.0.0.1:0", "--data-dir", str(broker.data))
    assert str(broker.data) in line and "damaged" in line
    victim.write_bytes(content)
    broker.start()
    with Client(broker.address, timeout=30) as client:
        assert client.stats("q").depth == 1


def test_a_log_that_lost_its_end_is_refused_until_the_loss_is_accepted(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    broker = filled(make_broker)
    log = max(broker.data.glob("*.log"), key=lambda path: path.stat().st_size)
    content = log.read_bytes()
    log.write_bytes(content[:-100])
    arguments = ["--listen", "127.0.0.1:0", "--data-dir", str(broker.data)]
    line = failure(tmp_path, *arguments)
    assert "was confirmed as durable" in line and "--accept-data-loss" in line
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in broker.data.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    (copy / log.name).write_bytes(content)
    (copy / "options").mkdir()
    restored = BrokerProcess(tmp_path)
    restored.data = copy
    restored.start()
    with Client(restored.address, timeout=30) as client:
        assert client.stats("q").depth == 1
    restored.close()
    (broker.directory / "accept").mkdir()
    accepting = BrokerProcess(broker.directory / "accept")
    accepting.data = broker.data
    accepting.start([*COMMAND, "--accept-data-loss"])
    with Client(accepting.address, timeout=30) as client:
        assert client.stats("q").depth == 0
    accepting.close()
