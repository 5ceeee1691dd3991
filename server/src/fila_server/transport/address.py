# SPDX-License-Identifier: AGPL-3.0-only
"""Addresses to listen on: sockets that listen there, and what is wrong with those that cannot."""

from __future__ import annotations

import socket

# As many as the system allows to wait until they are accepted.
_BACKLOG = 4096


class ListenError(Exception):
    """The address cannot be listened on."""


def cannot_listen(address: str, cause: str | None) -> str:
    clause = (cause or "it is not an address of this machine").lower()
    return f"cannot listen on {address}: {clause}; choose another with --listen HOST:PORT"


def try_address(address: str) -> None:
    """Raise ListenError with the cause if nothing can listen there; grpcio does not name it."""
    for bound in _bind(address):
        bound.close()


def listen(address: str) -> list[socket.socket]:
    """Return sockets that listen on what an address means, all on one port.

    A second broker cannot share the port. Raises ListenError.
    """
    bound = _bind(address)
    for one in bound:
        one.listen(_BACKLOG)
        one.setblocking(False)
    return bound


def _bind(address: str) -> list[socket.socket]:
    host, _, text = address.rpartition(":")
    port = int(text)
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ListenError(cannot_listen(address, error.strerror)) from error
    bound: list[socket.socket] = []
    failure = OSError()
    for family, kind, protocol, _, where in found:
        one = socket.socket(family, kind, protocol)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # a name may stand for both, and both are bound then
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, len(found) > 1)
            one.bind((where[0], port, *where[2:]))
            port = one.getsockname()[1]  # which may have been any
            bound.append(one)
        except OSError as error:
            one.close()
            failure = error
    if not bound:
        raise ListenError(cannot_listen(address, failure.strerror)) from failure
    return bound
