# SPDX-License-Identifier: AGPL-3.0-only
"""The bad network, against a server that sends back what it gets."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest
from fila_conformance.ports import LOOPBACK, free_port
from fila_conformance.proxy import Proxy

# Only there to end a test that hangs.
PATIENCE_S = 20.0


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    server = Server((LOOPBACK, 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    proxy = Proxy(f"{LOOPBACK}:{server.server_address[1]}")
    yield proxy
    proxy.close()
    server.shutdown()
    server.server_close()


def connect(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.target.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def echo(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    got = b""
    while len(got) < len(data):
        part = client.recv(65536)
        if not part:
            break
        got += part
    return got


def is_cut(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def is_refused(proxy: Proxy) -> bool:
    try:
        with connect(proxy) as client:
            return is_cut(client)
    except ConnectionError:
        return True  # Reset before connect() returned.


def test_without_a_toxic_bytes_pass(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert echo(client, bytes(range(256)) * 1000) == bytes(range(256)) * 1000
    assert proxy.stats()["connects"] == 1


def test_reset_ends_what_is_open_and_lets_new_ones_in(proxy: Proxy) -> None:
    with connect(proxy) as old:
        echo(old, b"x")
        proxy.apply("reset_peer")
        assert is_cut(old)
    with connect(proxy) as new:
        assert echo(new, b"y") == b"y"


def test_down_counts_and_refuses_until_up(proxy: Proxy) -> None:
    proxy.apply("down")
    assert is_refused(proxy)
    proxy.apply("up")
    with connect(proxy) as client:
        assert echo(client, b"z") == b"z"
    assert proxy.stats()["connects"] == 2


def test_timeout_silences_what_is_open_for_ever(proxy: Proxy) -> None:
    with connect(proxy) as old, connect(proxy) as new:
        echo(old, b"x")
        proxy.apply("timeout")
        proxy.apply("heal")
        old.settimeout(0.3)
        with pytest.raises(TimeoutError):
            echo(old, b"y")
        del new
    with connect(proxy) as later:
        assert echo(later, b"z") == b"z"


def test_timeout_in_one_direction_lets_the_other_pass(proxy: Proxy) -> None:
    with connect(proxy) as client:
        echo(client, b"x")
        proxy.apply("timeout", "upstream")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            echo(client, b"never arrives")


def test_latency_delays(proxy: Proxy) -> None:
    with connect(proxy) as client:
        proxy.apply("latency", "downstream", latency_ms=200)
        began = time.monotonic()
        assert echo(client, b"x") == b"x"
        assert time.monotonic() - began >= 0.2


def test_bandwidth_slows_down(proxy: Proxy) -> None:
    with connect(proxy) as client:
        proxy.apply("bandwidth", "upstream", bytes_per_second=10_000)
        began = time.monotonic()
        assert echo(client, b"x" * 2000) == b"x" * 2000
        assert echo(client, b"x" * 2000) == b"x" * 2000
        assert time.monotonic() - began >= 0.2


def test_slicer_changes_nothing_but_pieces(proxy: Proxy) -> None:
    with connect(proxy) as client:
        proxy.apply("slicer", bytes=1)
        assert echo(client, b"abc" * 100) == b"abc" * 100


def test_a_far_side_that_is_away_ends_the_connection() -> None:
    proxy = Proxy(f"{LOOPBACK}:{free_port()}")
    assert is_refused(proxy)
    proxy.close()
