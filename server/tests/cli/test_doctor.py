# SPDX-License-Identifier: AGPL-3.0-only
"""`fila doctor` on made-up machines and directories, and beside a broker that runs."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from fila_server.config import (
    Config,
    LimitsConfig,
    SchedulerConfig,
    ServerConfig,
    StorageConfig,
)
from fila_server.doctor import copies, directory, machine, network
from fila_server.limits import MIB
from server.tests.broker_process import BrokerProcess
from server.tests.torture.volume import volume

from .conftest import Answer, Fila

CERTS = Path(__file__).parents[3] / "conformance" / "certs"


@pytest.fixture
def doctor(offline: Fila, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command where there is no fila.toml, with a free port and a new directory."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, settings: str = "", **environment: str) -> Answer:
        (tmp_path / "fila.toml").write_text(settings)
        usual = ("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
        return offline("doctor", *usual, *words, **environment)

    return run


def checks(answer: Answer) -> dict[str, tuple[str, str, str]]:
    """The worst finding of each check of a --json report."""
    ranks = ("ok", "notice", "warning", "critical")
    found = sorted(json.loads(answer.out)["checks"], key=lambda it: ranks.index(it["severity"]))
    return {it["check"]: (it["severity"], it["what"], it["remedy"]) for it in found}


def test_a_good_start_is_exit_0_and_makes_nothing(doctor: Any, tmp_path: Path) -> None:
    answer = doctor("--json")
    assert answer.json()["is_ready"] is True
    assert {severity for severity, _, _ in checks(answer).values()} <= {"ok", "warning"}
    assert not (tmp_path / "data").exists()
    assert "A start works; " in doctor().ok()


@pytest.mark.parametrize(
    ("settings", "environment", "text"),
    [
        ("[server\n", {}, "fila.toml: is not valid TOML"),
        ("[scheduler]\nquantun = 1\n", {}, "unknown setting scheduler.quantun; the nearest is"),
        ("[storage]\nsync = 'often'\n", {}, "storage.sync = 'often': must be \"always\""),
        ("", {"FILA_STORAGE__SINC": "always"}, "unknown environment variable FILA_STORAGE__SINC"),
        ("[tls]\ncert_file = 'a'\n", {}, "tls.cert_file is set without tls.key_file"),
    ],
)
def test_a_bad_setting_is_named_and_exit_1(
    doctor: Any, settings: str, environment: dict[str, str], text: str
) -> None:
    answer = doctor("--json", settings=settings, **environment)
    assert answer.code == 1
    severity, what, _ = checks(answer)["config"]
    assert severity == "critical" and text in what
    shown = doctor(settings=settings, **environment)
    assert shown.code == 1 and "1 thing would stop a start" in shown.out


def test_a_running_broker_is_recognized_and_left_alone(tmp_path: Path, offline: Fila) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        assert broker.process is not None
        path, own = broker.data, ("FORMAT", "WATERMARK", "fila.lock")
        before = [(path / name).stat().st_mtime_ns for name in own]
        words = ("--data-dir", str(path), "--listen", broker.address)
        answer = offline("doctor", *words, "--json")
        found = checks(answer)
        assert answer.code == 0
        assert f"in use by the broker with process id {broker.process.pid};" in found["data_dir"][1]
        assert found["address"][0] == "notice"
        assert found["watermark"][0] == found["format"][0] == "ok"
        assert offline("doctor", *words).ok().splitlines()[-1].startswith("A broker runs here")
        assert [(path / name).stat().st_mtime_ns for name in own] == before
    finally:
        broker.close()
    assert checks(offline("doctor", *words, "--json"))["data_dir"][0] == "ok"


def test_a_taken_port_names_who_has_it(doctor: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        answer = doctor("--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--json")
    severity, what, remedy = checks(answer)["address"]
    assert (answer.code, severity) == (1, "critical")
    assert f"is taken by process {os.getpid()} (" in what
    assert "--listen HOST:PORT" in remedy


def test_an_address_of_another_machine_is_refused(doctor: Any) -> None:
    answer = doctor("--listen", "192.0.2.1:5555", "--json")
    assert checks(answer)["address"][0] == "critical"


def test_who_listens_is_nobody_without_proc(tmp_path: Path) -> None:
    assert network.who_listens(5555, tmp_path) is None


@pytest.mark.parametrize(
    ("make", "check", "text"),
    [
        (lambda p: p.write_text(""), "data_dir", "is not a directory"),
        (lambda p: p.symlink_to("nowhere"), "data_dir", "is a link that leads nowhere"),
        (lambda p: (p.mkdir(), (p / "thesis.doc").touch()), "format", "(it holds 'thesis.doc')"),
        (lambda p: (p.mkdir(), (p / "FORMAT").write_text("99\n")), "format", "has format 99"),
        (lambda p: (p.mkdir(), (p / "FORMAT").write_text("x\n")), "format", "FORMAT is damaged"),
        (
            lambda p: (p.mkdir(), (p / "FORMAT").write_text("2\n"), (p / "MANIFEST-1").touch()),
            "watermark",
            "WATERMARK is missing",
        ),
        (
            lambda p: (p.mkdir(), (p / "FORMAT").write_text("2\n"), (p / "WATERMARK").touch()),
            "watermark",
            "WATERMARK is damaged",
        ),
    ],
)
def test_a_directory_that_a_start_would_refuse(
    doctor: Any, tmp_path: Path, make: Any, check: str, text: str
) -> None:
    make(tmp_path / "data")
    answer = doctor("--json")
    severity, what, remedy = checks(answer)[check]
    assert (answer.code, severity) == (1, "critical")
    assert text in what and remedy


def test_an_older_format_is_announced(doctor: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "FORMAT").write_text("1\n")
    assert checks(doctor("--json"))["format"][:2] == (
        "notice",
        f"{tmp_path}/data has format 1; a start migrates it to 2",
    )


def test_a_directory_that_others_can_read_is_a_warning(doctor: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o755)
    assert checks(doctor("--json"))["owner"][2] == f"chmod 700 {tmp_path}/data"


def test_a_volume_below_the_floor_is_critical(tmp_path: Path) -> None:
    config = Config(storage=StorageConfig(min_free_bytes=1 << 40))
    (found,) = directory._space(config, tmp_path, 0)
    assert found.severity == "critical"
    assert "storage.min_free_bytes (1,048,576 MiB)" in found.what


def test_certificates(doctor: Any, tmp_path: Path) -> None:
    def tls(cert: str, key: str) -> Any:
        files = f"cert_file = '{CERTS / cert}'\nkey_file = '{CERTS / key}'\n"
        return checks(doctor("--json", settings=f"[tls]\n{files}"))["tls"]

    assert tls("server.pem", "server.key")[0] in ("ok", "warning")
    assert "is valid for another " in tls("server.pem", "server.key")[1]
    severity, what, _ = tls("server.pem", "client.key")
    assert severity == "critical" and "does not belong to the certificate in" in what
    assert "cannot read" in tls("none.pem", "server.key")[1]


def test_strangers_at_the_door_are_a_warning(doctor: Any) -> None:
    answer = doctor("--listen", "0.0.0.0:0", "--json")
    assert answer.code == 0
    assert checks(answer)["access"][0] == "warning"
    asked = {it["what"] for it in json.loads(answer.out)["checks"] if it["check"] == "access"}
    assert len(asked) == 2
    answer = doctor("--listen", "0.0.0.0:0", "--json", FILA_BOOTSTRAP_APIKEY="k" * 40)
    assert not any("asks for no key" in it["what"] for it in json.loads(answer.out)["checks"])
    assert "k" * 40 not in answer.out


def http(address: str, rest: str = "") -> str:
    return f"[http]\nlisten_addr = '{address}'\n{rest}"


def test_the_http_port_is_looked_at_like_the_other_one(doctor: Any) -> None:
    found = checks(doctor("--json", settings=http("127.0.0.1:0")))
    assert found["http"][0] == found["http_access"][0] == "ok"
    assert "http" not in checks(doctor("--json"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = doctor("--json", settings=http(where))
    severity, what, remedy = checks(answer)["http"]
    assert (answer.code, severity) == (1, "critical")
    assert f"{where} is taken by process {os.getpid()} (" in what
    assert "http.listen_addr" in remedy
    away = checks(doctor("--json", settings=http("192.0.2.1:80")))["http"]
    assert away[0] == "critical"


def test_two_ports_at_one_address_are_critical(doctor: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for where in (f"127.0.0.1:{port}", f"0.0.0.0:{port}"):
        answer = doctor("--listen", f"127.0.0.1:{port}", "--json", settings=http(where))
        severity, what, _ = checks(answer)["http"]
        assert (answer.code, severity) == (1, "critical")
        assert "http.listen_addr and server.listen_addr are both" in what
    answer = doctor("--listen", f"127.0.0.1:{port}", "--json", settings=http(f"127.0.0.2:{port}"))
    assert checks(answer)["http"][0] == "ok"


def test_an_http_port_for_everybody_is_a_warning_with_ways_out(doctor: Any) -> None:
    tls = f"[tls]\ncert_file = '{CERTS / 'server.pem'}'\nkey_file = '{CERTS / 'server.key'}'\n"
    key = {"FILA_BOOTSTRAP_APIKEY": "k" * 40}

    def warned(rest: str = "", **environment: str) -> list[str]:
        answer = doctor("--json", settings=http("0.0.0.0:0", rest), **environment)
        assert answer.code == 0
        found = [it for it in json.loads(answer.out)["checks"] if it["check"] == "http_access"]
        assert all("127.0.0.1" in it["remedy"] for it in found if it["severity"] != "ok")
        return [it["what"] for it in found if it["severity"] == "warning"]

    open_to_all, unencrypted = warned()
    assert "asks for no key" in open_to_all and "without TLS" in unencrypted
    assert warned(tls) == [open_to_all]
    assert warned(**key) == [unencrypted]
    assert warned(tls, **key) == []


def test_the_directory_for_backups(doctor: Any, tmp_path: Path) -> None:
    def found(path: Path) -> tuple[str, str, str]:
        answer = doctor("--json", settings=f"[storage]\nbackup_dir = '{path}'\n")
        assert answer.code == 0
        return checks(answer)["backup_dir"]

    assert "backup_dir" not in checks(doctor("--json"))
    path = tmp_path / "backups"
    severity, what, remedy = found(path)
    assert (severity, what) == ("warning", f"{path} does not exist, so backups are refused")
    assert "mount its volume" in remedy and not path.exists()
    path.mkdir()
    severity, what, _ = found(path)
    assert severity == "ok" and "a full backup takes 0 MiB" in what
    (tmp_path / "data").mkdir(mode=0o700)
    severity, what, _ = found(path)
    assert severity == "notice" and "is on the volume of the data" in what
    assert "is inside server.data_dir" in found(tmp_path / "data" / "backups")[1]
    (tmp_path / "file").touch()
    assert "is not a directory" in found(tmp_path / "file")[1]


def test_a_backup_that_would_not_fit_is_a_warning(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with volume(tmp_path, 4 * MIB) as small, (data / "000012.sst").open("wb") as table:
        table.truncate(100 * MIB)
        config = Config(
            server=ServerConfig(data_dir=str(data)),
            storage=StorageConfig(backup_dir=str(small.path)),
        )
        (found,) = copies.backups(config)
    assert found.severity == "warning"
    assert "has 4 MiB free, and a full backup takes 100 MiB" in found.what
    assert "delete old backups" in found.remedy


def test_a_collector_that_does_not_answer_is_a_warning(doctor: Any) -> None:
    def found(endpoint: str) -> tuple[str, str, str]:
        return checks(doctor("--json", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint))["telemetry"]

    with socket.create_server(("127.0.0.1", 0)) as collector:
        endpoint = f"http://127.0.0.1:{collector.getsockname()[1]}"
        assert found(endpoint) == ("ok", f"something listens at {endpoint}", "")
    severity, what, _ = found(endpoint)
    assert severity == "warning" and f"nothing answers at {endpoint}" in what
    for endpoint in ("http://127.0.0.1:99999", "http://127.0.0.1", "http://127.0.0.1:otlp"):
        severity, what, remedy = found(endpoint)
        assert severity == "warning" and "names no host and port" in what and "4317" in remedy


def test_more_connections_than_files_are_a_warning() -> None:
    found = list(machine.limits(Config(limits=LimitsConfig(max_connections=1_000_000))))
    assert found[0].check == "open_files"
    assert found[0].severity in ("ok", "warning")
    small = machine.share(1024, 10_000)
    assert small == 384


def test_more_memory_than_there_is_is_a_warning() -> None:
    config = Config(scheduler=SchedulerConfig(hot_bytes=1 << 40))
    found = machine.memory(config)
    assert found.severity == "warning" and "scheduler.hot_bytes" in found.remedy


def test_a_store_from_the_future_is_a_warning() -> None:
    (found,) = machine.clock(4e9)
    assert found.severity == "warning" and "the clock was set back" in found.what
    (found,) = machine.clock(None)
    assert found.severity == "ok"


def test_the_lock_of_another_file_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "fila.lock").touch()
    locks = tmp_path / "locks"
    lock = (tmp_path / "fila.lock").stat()
    place = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}"
    locks.write_text(f"1: FLOCK  ADVISORY  WRITE 77 {place}:{lock.st_ino + 1} 0 EOF\n")
    assert directory.holder(tmp_path, locks) is None
    locks.write_text(f"2: FLOCK  ADVISORY  WRITE 78 {place}:{lock.st_ino} 0 EOF\n")
    assert directory.holder(tmp_path, locks) == 78
