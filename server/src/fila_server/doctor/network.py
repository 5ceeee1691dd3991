# SPDX-License-Identifier: AGPL-3.0-only
"""Addresses: whether a broker could listen there, who does already, and who could reach them; and
the collector that it would send to.

A probe binds and lets go, and never listens, so it takes nothing from a broker that starts at the
same time. Who holds a port is read from /proc, where there is one.
"""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from fila_server.config import Config
from fila_server.doctor.finding import CRITICAL, NOTICE, OK, WARNING, Finding

_LOOPBACK = ("127.", "localhost:", "[::1]")
_LISTENING = "0A"
# A collector is near; who waits for one that is not there should not wait for long.
_ANSWER_S = 2.0


class Holder(NamedTuple):
    """A process, as far as this user may see it; the number is 0 when it may not."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name})" if self.pid else "another process"


class Place(NamedTuple):
    """An address to listen on, and what to change to get another."""

    check: str
    where: str
    setting: str
    remedy: str


def places(config: Config) -> Iterator[Place]:
    """Where a broker would listen."""
    remedy = "choose another with --listen HOST:PORT"
    yield Place("address", config.server.listen_addr, "server.listen_addr", remedy)
    if config.http.listen_addr:
        remedy = "choose another for http.listen_addr, or leave it empty to have no such port"
        yield Place("http", config.http.listen_addr, "http.listen_addr", remedy)


def addresses(config: Config, broker_pid: int | None) -> Iterator[Finding]:
    """Whether each address is free; `broker_pid` is whoever holds the data directory."""
    own, *others = places(config)
    yield _address(own, broker_pid)
    for place in others:
        if _collides(own.where, place.where):
            text = f"{place.setting} and {own.setting} are both {place.where}"
            yield Finding(place.check, CRITICAL, text, place.remedy)
        else:
            yield _address(place, broker_pid)


def _collides(one: str, other: str) -> bool:
    """Whether two addresses cannot be listened on at once."""
    (host, _, port), (other_host, _, other_port) = one.rpartition(":"), other.rpartition(":")
    is_any = {host, other_host} & {"0.0.0.0", "[::]"}
    return int(port) != 0 and int(port) == int(other_port) and (host == other_host or bool(is_any))


def _address(place: Place, broker_pid: int | None) -> Finding:
    check, where, setting, remedy = place
    host, _, port = where.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        text = f"{where}: {(error.strerror or 'it cannot be resolved').lower()}"
        return Finding(check, CRITICAL, text, f"set {setting} to one of this machine")
    refusals = [_probe(entry) for entry in found]
    if not all(refusals):
        return Finding(check, OK, f"{where} is free" if int(port) else "any free port")
    holder = who_listens(int(port))
    if holder is None:
        return Finding(check, CRITICAL, f"{where}: {refusals[-1]}", remedy)
    if holder.pid and holder.pid == broker_pid:
        text = f"{where} is served by the broker that uses the data directory ({holder})"
        return Finding(check, NOTICE, text)
    return Finding(check, CRITICAL, f"{where} is taken by {holder}", f"stop it, or {remedy}")


def _probe(entry: tuple[object, ...]) -> str:
    """Why nothing can listen there; empty when something can."""
    family, kind, protocol, _, where = entry
    try:
        with socket.socket(family, kind, protocol) as probe:  # type: ignore[arg-type]
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)  # type: ignore[arg-type]
    except OSError as error:
        return (error.strerror or "it cannot be listened on").lower()
    return ""


def who_listens(port: int, proc: Path = Path("/proc")) -> Holder | None:
    """Whoever listens on the port, on whichever address; None when nobody does."""
    inodes = {
        fields[9]
        for table in ("tcp", "tcp6")
        for fields in _sockets(proc / "net" / table)
        if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port
    }
    if not inodes:
        return None
    for folder in sorted(proc.glob("[0-9]*")):
        if _has_socket(folder, inodes):
            return Holder(int(folder.name), (folder / "comm").read_text().strip())
    return Holder(0, "")


def _sockets(table: Path) -> Iterator[list[str]]:
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if len(fields) > 9:
            yield fields


def _has_socket(folder: Path, inodes: set[str]) -> bool:
    try:
        for link in (folder / "fd").iterdir():
            target = str(link.readlink())
            if target.startswith("socket:[") and target[8:-1] in inodes:
                return True
    except OSError:  # another user's, or gone
        pass
    return False


def exposure(config: Config) -> Iterator[Finding]:
    """What a stranger could do who reaches an address."""
    for place in places(config):
        yield from _exposure(config, place)


def _exposure(config: Config, place: Place) -> Iterator[Finding]:
    where, is_http = place.where, place.check == "http"
    check = "http_access" if is_http else "access"
    if where.startswith(_LOOPBACK):
        yield Finding(check, OK, f"{where} is reached from this machine only")
        return
    away = f"set {place.setting} to 127.0.0.1:{where.rpartition(':')[2]}"
    if not config.auth.bootstrap_apikey and not config.tls.ca_file:
        what = "change limits and cancel messages" if is_http else "read and delete messages"
        yield Finding(
            check,
            WARNING,
            f"{where} is reached from other machines and asks for no key: anybody who reaches it "
            f"can {what}",
            f"set auth.bootstrap_apikey (FILA_BOOTSTRAP_APIKEY) or tls.ca_file, or {away}",
        )
    else:
        yield Finding(check, OK, f"{where} asks for a key or a client certificate")
    if not config.tls.cert_file:
        what = "API keys and sessions" if is_http else "messages"
        yield Finding(
            check,
            WARNING,
            f"{where} is reached from other machines without TLS: {what} can be read on the way",
            f"set tls.cert_file and tls.key_file, or let a proxy end TLS and {away}",
        )


def collector(config: Config) -> Iterator[Finding]:
    """Whether anybody takes the metrics and spans that the broker would send."""
    endpoint = config.telemetry.otlp_endpoint
    if not endpoint:
        return
    try:
        found = urlsplit(endpoint)
        host, port = found.hostname, found.port
    except ValueError:  # no number, or too large a one
        host = port = None
    if not host or not port:
        text = f"telemetry.otlp_endpoint = {endpoint!r} names no host and port to send to"
        yield Finding("telemetry", WARNING, text, "write http://HOST:4317, or the port it has")
        return
    try:
        socket.create_connection((host, port), _ANSWER_S).close()
    except OSError as error:
        text = f"nothing answers at {endpoint}: {(error.strerror or str(error)).lower()}"
        remedy = (
            "start a collector there, or correct telemetry.otlp_endpoint; the broker works without"
            " it, and what it would send is lost"
        )
        yield Finding("telemetry", WARNING, text, remedy)
    else:
        yield Finding("telemetry", OK, f"something listens at {endpoint}")
