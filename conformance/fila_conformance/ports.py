# SPDX-License-Identifier: AGPL-3.0-only
"""Ports on loopback that stay ours while nobody listens on them.

They lie below the range from which Linux takes ports for outgoing connections. Otherwise, while a
broker is down, some client's own connection could take its port; a client that dials that port
again and again could even end up connected to itself.
"""

import random
import socket

LOOPBACK = "127.0.0.1"
LOOPBACK_IPV6 = "::1"
_LOWEST, _HIGHEST = 20_000, 32_000
_ATTEMPTS_MAX = 200


def has_ipv6() -> bool:
    """Whether this machine has IPv6's loopback."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind((LOOPBACK_IPV6, 0))
    except OSError:
        return False
    return True


def free_port(loopback: str = LOOPBACK) -> int:
    """A port on which nothing listens now."""
    family = socket.AF_INET6 if ":" in loopback else socket.AF_INET
    for _ in range(_ATTEMPTS_MAX):
        port = random.randrange(_LOWEST, _HIGHEST)
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((loopback, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port from {_LOWEST} to {_HIGHEST}")
