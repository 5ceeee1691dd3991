# SPDX-License-Identifier: AGPL-3.0-only
"""TLS and mTLS from the outside, and every way to get the files wrong.

The certificates in certs/ are valid from 2020 to 2120. `stranger` is signed by `other_ca`,
everything else by `ca`; `encrypted.key` is `server.key` behind a passphrase.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fila
from server.tests.broker_process import BrokerProcess, run_to_end
from server.tests.rpc.wire import eventually

CERTS = Path(__file__).parent / "certs"
CA = CERTS / "ca.pem"
CALL_S = 60.0
# A broker that must not answer is given less time than one that must.
REFUSED_S = 5.0


def tls_settings(**files: str) -> dict[str, str]:
    return {f"FILA_TLS__{name.upper()}": str(CERTS / file) for name, file in files.items()}


def start(directory: Path, **files: str) -> BrokerProcess:
    settings = tls_settings(cert_file="server.pem", key_file="server.key", **files)
    broker = BrokerProcess(directory, environment=settings)
    broker.start()
    return broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = start(tmp_path_factory.mktemp("tls"))
    yield process
    process.close()


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that wants client certificates."""
    process = start(tmp_path_factory.mktemp("mtls"), ca_file="ca.pem")
    yield process
    process.close()


def round_trip(broker: BrokerProcess, tls: fila.TlsOptions, queue: str = "orders") -> None:
    with fila.Client(broker.address, tls=tls, timeout=CALL_S) as client:
        client.create_queue(queue)
        client.enqueue(queue, {}, b"sealed")
        with client.consume(queue) as consumer:
            message = next(iter(consumer))
            assert message.payload == b"sealed"
            message.ack()
        client.delete_queue(queue)


def is_refused(broker: BrokerProcess, tls: fila.TlsOptions | None) -> None:
    with (
        fila.Client(broker.address, tls=tls, timeout=REFUSED_S) as client,
        pytest.raises((fila.UnavailableError, fila.DeadlineExceededError)),
    ):
        client.list_queues()


def test_messages_travel_through_tls(broker: BrokerProcess) -> None:
    round_trip(broker, fila.TlsOptions(CA))
    round_trip(broker, fila.TlsOptions(CA, server_name="localhost"))


def test_a_client_that_trusts_another_ca_is_not_fooled(broker: BrokerProcess) -> None:
    is_refused(broker, fila.TlsOptions(CERTS / "other_ca.pem"))
    is_refused(broker, fila.TlsOptions(CA, server_name="broker.example"))


def test_plain_text_is_refused(broker: BrokerProcess) -> None:
    is_refused(broker, None)


def test_a_client_certificate_opens_the_door(mutual: BrokerProcess) -> None:
    round_trip(mutual, fila.TlsOptions(CA, CERTS / "client.pem", CERTS / "client.key"))


def test_without_a_certificate_of_the_ca_the_door_stays_shut(mutual: BrokerProcess) -> None:
    is_refused(mutual, fila.TlsOptions(CA))
    is_refused(mutual, fila.TlsOptions(CA, CERTS / "stranger.pem", CERTS / "stranger.key"))


def test_failed_handshakes_leave_the_broker_as_it_was(mutual: BrokerProcess) -> None:
    host, _, port = mutual.address.rpartition(":")
    for rubbish in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 600, b"\0" * 100):
        for _ in range(10):
            with socket.create_connection((host, int(port)), timeout=CALL_S) as connection:
                connection.sendall(rubbish)
    is_refused(mutual, fila.TlsOptions(CA))
    round_trip(mutual, fila.TlsOptions(CA, CERTS / "client.pem", CERTS / "client.key"))
    for line in mutual.log().splitlines():
        json.loads(line)  # strangers write no lines of their own into the log


def test_tls_and_api_keys_work_together(tmp_path: Path) -> None:
    settings = tls_settings(cert_file="server.pem", key_file="server.key")
    key = "bootstrap-key-of-the-tests-0123456789"
    environment = {**settings, "FILA_AUTH__BOOTSTRAP_APIKEY": key}
    broker = BrokerProcess(tmp_path, environment=environment)
    broker.start()
    try:
        tls = fila.TlsOptions(CA)
        with fila.Client(broker.address, tls=tls, api_key=key, timeout=CALL_S) as client:
            client.create_queue("orders")
        with (
            fila.Client(broker.address, tls=tls, timeout=CALL_S) as client,
            pytest.raises(fila.UnauthenticatedError),
        ):
            client.list_queues()
    finally:
        broker.close()


# --- Wrong files ----------------------------------------------------------------------------------

Damage = Callable[[Path], None]


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def _not_pem(path: Path) -> None:
    path.write_bytes(bytes(range(256)))


@pytest.mark.parametrize("setting", ["cert_file", "key_file", "ca_file"])
@pytest.mark.parametrize("damage", [Path.unlink, _empty, _cut, _not_pem])
def test_a_file_of_no_use_is_named(tmp_path: Path, setting: str, damage: Damage) -> None:
    files = {"cert_file": "server.pem", "key_file": "server.key", "ca_file": "ca.pem"}
    copies = {name: tmp_path / file for name, file in files.items()}
    for copy in copies.values():
        shutil.copy(CERTS / copy.name, copy)
    damage(copies[setting])
    settings = {f"FILA_TLS__{name.upper()}": str(path) for name, path in copies.items()}
    line = refusal(tmp_path, settings)
    assert line.startswith(f"fila-server: tls.{setting}: ")
    assert str(copies[setting]) in line


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"key_file": "client.key"}, "client.key does not belong to the certificate in "),
        ({"key_file": "encrypted.key"}, "encrypted.key is encrypted; "),
        ({"key_file": "server.pem"}, "no private key in PEM form"),
        ({"cert_file": "server.key"}, "server.key holds no certificate in PEM form"),
        ({"ca_file": "server.key"}, "server.key holds no certificate in PEM form"),
        ({"ca_file": "."}, "is a directory"),
    ],
)
def test_files_that_do_not_fit_are_explained(
    tmp_path: Path, files: dict[str, str], text: str
) -> None:
    both = {"cert_file": "server.pem", "key_file": "server.key", **files}
    line = refusal(tmp_path, tls_settings(**both))
    assert text in line


def test_a_client_ca_alone_is_refused(tmp_path: Path) -> None:
    line = refusal(tmp_path, tls_settings(ca_file="ca.pem"))
    assert "tls.ca_file is set without tls.cert_file" in line


def refusal(directory: Path, settings: dict[str, str]) -> str:
    """The one line with which a broker refuses to start; it has not touched its data."""
    (directory / "fila.toml").touch()
    done = run_to_end(
        *("--config", str(directory / "fila.toml"), "--data-dir", str(directory / "data")),
        *("--listen", "127.0.0.1:0"),
        environment=settings,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "PRIVATE KEY" not in done.stderr
    assert not (directory / "data").exists()
    return done.stderr


# --- New certificates while it runs ---------------------------------------------------------------


class Renewable:
    """A broker on copies of the certificates, to be changed under it."""

    def __init__(self, directory: Path, **files: str) -> None:
        self.directory = directory
        self.put(**files)
        lines = [f'{name} = "{directory / name}"\n' for name in files]
        self.broker = BrokerProcess(directory, config="[tls]\n" + "".join(lines))
        self.broker.start()

    def put(self, **files: str) -> None:
        for name, file in files.items():
            shutil.copy(CERTS / file, self.directory / name)

    def reload(self) -> str:
        """Send SIGHUP, and return the line that it adds to the log."""
        before = len(self.broker.log().splitlines())
        self.broker.signal(signal.SIGHUP)
        eventually(lambda: len(self.broker.log().splitlines()) > before)
        line: str = json.loads(self.broker.log().splitlines()[before])["message"]
        return line

    def shown(self) -> str:
        """Return the certificate that a new connection is shown."""
        host, _, port = self.broker.address.rpartition(":")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, int(port)), timeout=CALL_S) as connection,
            context.wrap_socket(connection) as wrapped,
        ):
            certificate = wrapped.getpeercert(binary_form=True)
        assert certificate is not None
        return ssl.DER_cert_to_PEM_cert(certificate).strip()


def pem(file: str) -> str:
    text = (CERTS / file).read_text()
    return text[text.index("-----BEGIN") :].strip()


@pytest.fixture
def renewable(tmp_path: Path) -> Iterator[Renewable]:
    renewable = Renewable(tmp_path, cert_file="server.pem", key_file="server.key")
    yield renewable
    renewable.broker.close()


def test_sighup_shows_new_certificates_to_new_connections(renewable: Renewable) -> None:
    assert renewable.shown() == pem("server.pem")
    with fila.Client(renewable.broker.address, tls=fila.TlsOptions(CA), timeout=CALL_S) as before:
        before.create_queue("orders")
        renewable.put(cert_file="stranger.pem", key_file="stranger.key")
        assert renewable.shown() == pem("server.pem")
        assert renewable.reload().startswith("reloaded certificates, and the log level info")
        assert [renewable.shown() for _ in range(3)] == [pem("stranger.pem")] * 3
        before.enqueue("orders")  # connections outlive the change
    renewable.put(cert_file="server.pem", key_file="server.key")
    renewable.reload()
    round_trip(renewable.broker, fila.TlsOptions(CA, server_name="localhost"), "fresh")
    assert renewable.broker.terminate() == 0


def test_sighup_keeps_the_old_certificates_if_the_new_ones_do_not_fit(
    renewable: Renewable,
) -> None:
    renewable.put(key_file="client.key")
    line = renewable.reload()
    assert line.startswith("nothing was reloaded: tls.key_file: ")
    assert "does not belong to the certificate" in line
    renewable.broker.config_file.write_text("")
    line = renewable.reload()
    assert line == "nothing was reloaded: tls.cert_file: turning TLS on or off needs a restart"
    assert renewable.shown() == pem("server.pem")
    assert renewable.broker.terminate() == 0


def test_sighup_changes_whom_the_broker_trusts(tmp_path: Path) -> None:
    files = {"cert_file": "server.pem", "key_file": "server.key", "ca_file": "ca.pem"}
    renewable = Renewable(tmp_path, **files)
    stranger = fila.TlsOptions(CA, CERTS / "stranger.pem", CERTS / "stranger.key")
    try:
        is_refused(renewable.broker, stranger)
        renewable.put(ca_file="other_ca.pem")
        renewable.reload()
        round_trip(renewable.broker, stranger)
        is_refused(
            renewable.broker, fila.TlsOptions(CA, CERTS / "client.pem", CERTS / "client.key")
        )
    finally:
        renewable.broker.close()
