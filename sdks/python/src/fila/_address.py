# SPDX-License-Identifier: AGPL-3.0-only
"""Where a broker is: addresses as users write them, and the target that gRPC takes.

One address is gRPC's business as it is. Several are the members of a cluster, tried in order; gRPC
takes such a list only of numbers, so names in it are looked up here.
"""

import socket
from collections.abc import Sequence

from fila.errors import UnavailableError

DEFAULT_TARGET = "127.0.0.1:5555"
Target = str | Sequence[str]

_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:")


class Addresses:
    """What a client was told, checked."""

    def __init__(self, target: Target) -> None:
        self._each = _split(target)
        self.text = ",".join(self._each)
        self.are_several = len(self._each) > 1

    def target(self) -> str:
        """What gRPC connects to; looks names up, which takes time, where there are several.

        Raises UnavailableError if none of them is known.
        """
        if not self.are_several:
            return self.text
        found: list[tuple[str, int]] = []
        why = ""
        for address in self._each:
            host, _, port = address.rpartition(":")
            try:
                rows = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            except OSError as error:
                why = error.strerror or str(error)
                continue
            # Sorted, because name servers change the order, and another list is another channel.
            found += sorted({(str(row[4][0]), int(port)) for row in rows})
        if not found:
            text = f'no address of "{self.text}" is known: {why}'
            raise UnavailableError(text, code="UNAVAILABLE")
        found = list(dict.fromkeys(found))
        if any(":" in host for host, _ in found):
            mixed = (host if ":" in host else f"::ffff:{host}" for host, _ in found)
            each = (f"[{host}]:{port}" for host, (_, port) in zip(mixed, found, strict=True))
            return "ipv6:" + ",".join(each)
        return "ipv4:" + ",".join(f"{host}:{port}" for host, port in found)


def _split(target: Target) -> tuple[str, ...]:
    if not isinstance(target, str):
        if not isinstance(target, Sequence) or not all(isinstance(it, str) for it in target):
            raise TypeError(f"target must be str or a list of str, not {type(target).__name__}")
        if not target:
            raise ValueError(f'target is an empty list; give it an address: "{DEFAULT_TARGET}"')
        target = ",".join(target)
    if target.startswith(_SCHEMES):
        return (target,)
    each = tuple(address.strip() for address in target.split(","))
    for address in each:
        _check(address)
    return each


def _check(address: str) -> None:
    # Without a port gRPC would quietly take 443, and a URL's scheme for a name to resolve.
    host, _, port = address.rpartition(":")
    is_host = bool(host) and "/" not in host and (":" not in host or host.startswith("["))
    if not is_host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f'target "{address}" is not host:port, for example "{DEFAULT_TARGET}"')
