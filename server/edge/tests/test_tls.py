# SPDX-License-Identifier: AGPL-3.0-only
"""TLS and mTLS with the broker's test certificates: who gets in, and how that changes."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import grpc
import pytest

from server.edge.tests.calls import later, refused, unary
from server.edge.tests.canned import WAIT_S, Canned
from server.edge.tests.conftest import Start

CERTS = Path(__file__).parents[2] / "tests/rpc/certs"
REFUSED_S = 5.0


def file(name: str) -> bytes:
    return (CERTS / name).read_bytes()


def files(name: str = "server", ca: str | None = None) -> tuple[bytes, bytes, bytes | None]:
    return file(f"{name}.pem"), file(f"{name}.key"), file(f"{ca}.pem") if ca else None


def secure(canned: Canned, who: str | None = None, ca: str = "ca") -> grpc.Channel:
    chain, key = (file(f"{who}.pem"), file(f"{who}.key")) if who else (None, None)
    credentials = grpc.ssl_channel_credentials(file(f"{ca}.pem"), key, chain)
    options = [("grpc.use_local_subchannel_pool", 1)]
    port = canned.address.rpartition(":")[2]
    return grpc.secure_channel(f"localhost:{port}", credentials, options=options)


def is_served(canned: Canned, who: str | None = None, ca: str = "ca") -> bool:
    with secure(canned, who, ca) as channel:
        try:
            return unary(channel, "Echo", bytes(200_000), timeout=REFUSED_S) == bytes(200_000)
        except grpc.RpcError as error:
            assert error.code() in (  # type: ignore[attr-defined]
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
            )
            return False


def shown(canned: Canned) -> str:
    """Return the certificate that a new connection is shown."""
    host, _, port = canned.address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port)), timeout=WAIT_S) as connection,
        context.wrap_socket(connection) as wrapped,
    ):
        assert wrapped.selected_alpn_protocol() == "h2"
        certificate = wrapped.getpeercert(binary_form=True)
    assert certificate is not None
    return ssl.DER_cert_to_PEM_cert(certificate).strip()


def pem(name: str) -> str:
    text = (CERTS / name).read_text()
    return text[text.index("-----BEGIN") :].strip()


def test_calls_travel_through_tls(start: Start) -> None:
    canned = start(certificates=files())
    assert is_served(canned)
    assert is_served(canned, "client")  # nobody asked for it
    assert not is_served(canned, ca="other_ca")
    with grpc.insecure_channel(canned.address) as channel:
        assert refused(lambda: unary(channel, "Echo", timeout=REFUSED_S))


def test_a_client_certificate_opens_the_door(start: Start) -> None:
    canned = start(certificates=files(ca="ca"))
    assert is_served(canned, "client")
    assert not is_served(canned)
    assert not is_served(canned, "stranger")
    assert is_served(canned, "client")


def test_new_certificates_are_shown_to_new_connections(start: Start) -> None:
    canned = start(certificates=files())
    with secure(canned) as before:
        assert unary(before, "Echo", b"x") == b"x"
        assert shown(canned) == pem("server.pem")
        canned.edge.reload(files("stranger"))
        assert [shown(canned) for _ in range(3)] == [pem("stranger.pem")] * 3
        assert unary(before, "Echo", b"y") == b"y"  # connections outlive the change


def test_whom_the_edge_trusts_may_change(start: Start) -> None:
    canned = start(certificates=files(ca="ca"))
    canned.edge.reload(files(ca="other_ca"))
    assert is_served(canned, "stranger")
    assert not is_served(canned, "client")


def test_certificates_that_do_not_fit_change_nothing(start: Start) -> None:
    canned = start(certificates=files())
    with pytest.raises(ValueError, match="the key and the certificate cannot be used"):
        canned.edge.reload((file("server.pem"), file("client.key"), None))
    assert shown(canned) == pem("server.pem")
    with pytest.raises(ValueError, match="the edge has no TLS"):
        start().edge.reload(files())


def test_handshakes_that_stop_halfway_are_cut(start: Start) -> None:
    canned = start(certificates=files(), settings={"handshake_timeout_ms": 300})
    host, _, port = canned.address.rpartition(":")
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    for words in (b"", hello, b"\x16\x03\x01" + b"\xff" * 600, b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
            connection.sendall(words)
            try:
                while connection.recv(1000):
                    pass
            except ConnectionResetError:
                pass
    canned.settled(lambda now: now["connections"] == 0 and now["handshakes_cut"] == 4)
    assert is_served(canned)


def test_many_calls_at_once_through_tls(start: Start) -> None:
    canned = start(certificates=files())
    with secure(canned) as channel:
        calls = [later(channel, "Echo", str(n).encode()) for n in range(500)]
        assert [call.result() for call in calls] == [str(n).encode() for n in range(500)]
