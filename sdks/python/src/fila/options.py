# SPDX-License-Identifier: AGPL-3.0-only
"""What a user may choose about a connection, checked when it is chosen. Knows nothing of gRPC."""

import os
from dataclasses import dataclass

# Of workers.
DEFAULT_CONCURRENCY = 10
DEFAULT_GRACE_S = 20.0
# Doubling stops long before this; the bound keeps the power small after hours of trying.
_DOUBLINGS_MAX = 30


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Encrypts the connection; with a certificate and its key the client proves itself too (mTLS).

    Files are PEM and are read when a client is created. `ca_file=None` trusts the system's roots.
    `server_name` is the name to expect in the broker's certificate if it is not the target's host.
    """

    ca_file: str | os.PathLike[str] | None = None
    cert_file: str | os.PathLike[str] | None = None
    key_file: str | os.PathLike[str] | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("tls cert_file and key_file go together; give both or neither")


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
