# SPDX-License-Identifier: AGPL-3.0-only
"""What a user may choose about a connection, checked when it is chosen. Knows nothing of gRPC."""

import os
from dataclasses import dataclass, field
from typing import Literal

# Of workers.
DEFAULT_CONCURRENCY = 10
DEFAULT_GRACE_S = 20.0
# Doubling stops long before this; the bound keeps the power small after hours of trying.
_DOUBLINGS_MAX = 30


# A file's path, or PEM: bytes, or text that begins as PEM does.
Pem = str | bytes | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Encrypts the connection; with a certificate and its key the client proves itself too (mTLS).

    `ca`, `cert` and `key` are paths of PEM files, or PEM itself. A file may be replaced at any
    time: connections that are made afterwards use what is in it then. `ca=None` trusts the system's
    roots. `server_name` is the name to expect in the broker's certificate if it is not the target's
    host.
    """

    ca: Pem | None = None
    cert: Pem | None = None
    key: Pem | None = field(default=None, repr=False)
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            missing = "cert" if self.cert is None else "key"
            raise ValueError(f"tls cert and key go together, and {missing} is missing")


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """The connection has changed: `connected`, `lost` or `unreachable`, and why if that is known.

    `lost` is the end of one that was there; `unreachable` that there was none to be had.
    """

    kind: Literal["connected", "lost", "unreachable"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait between attempts, in seconds.

    The ceiling starts at `initial` and doubles up to `maximum`; each wait is a random part of it,
    so that the clients of a broker that restarts do not all come back in the same instant.
    """

    initial: float = 0.1
    maximum: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.initial <= self.maximum:
            raise ValueError(
                f"backoff needs 0 < initial <= maximum, got {self.initial} and {self.maximum}"
            )

    def delay(self, attempt: int, chance: float) -> float:
        """The wait before retry number `attempt`, counted from 0; `chance` is from 0 to 1."""
        doublings = min(attempt, _DOUBLINGS_MAX)
        return chance * float(min(self.maximum, self.initial * 2**doublings))
