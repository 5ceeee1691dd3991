# SPDX-License-Identifier: AGPL-3.0-only
"""Which API key calls, and whether it may. Keys are made and compared here, and nowhere else.

A key looks like `fila_<key id>_<secret>`. The id finds the record, so that one comparison decides.
The secret has 256 random bits: nobody can try them all, so one salted hash is enough and a slow one
would only slow every call down. See docs/internals/decisions/0001-api-keys.md.

The check runs before a request's body is read: a caller without a key costs next to nothing.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar

from fila_server.core.access import BOOTSTRAP, UNKNOWN_KEY, WORDS, ApiKey, Keyring, Minted, denial
from fila_server.errors import PermissionDenied, Unauthenticated
from fila_server.rpc.audit import Refusals

# The key of the call under way; None while API keys are off.
CALLER: ContextVar[ApiKey | None] = ContextVar("caller", default=None)

# Probes have no key, and learn nothing but that the broker serves.
OPEN = "/grpc.health.v1.Health/"
HEADER = "authorization"
_SCHEME = "bearer "
_PREFIX = "fila_"
_KNOWN_MAX = 10_000

_NO_KEY = "no API key was sent; it belongs into the metadata as authorization: Bearer KEY"
_EXPIRED = "the API key has expired"


def mint() -> tuple[Minted, str]:
    """Return what the broker keeps of a new key, and the key itself, to be shown once."""
    key_id = secrets.token_hex(10)
    key = f"{_PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
    salt = secrets.token_bytes(16)
    return Minted(key_id, salt, _digest(salt, key)), key


def _digest(salt: bytes, key: str) -> bytes:
    return hmac.digest(salt, key.encode(errors="replace"), "sha256")


class Authenticator:
    """Knows the key that a call carries."""

    def __init__(
        self, keyring: Keyring, bootstrap: str, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._keyring = keyring
        self._wall_ns = wall_ns
        self.refusals = Refusals()
        self._known: dict[str, ApiKey] = {}  # by header, so that a key is hashed once
        bootstrap_salt = secrets.token_bytes(16)
        self._bootstrap = (bootstrap_salt, _digest(bootstrap_salt, bootstrap))
        # Compared where no key has the id, so that an id cannot be found by the time it takes.
        self._nobody = ApiKey("", "nobody", salt=secrets.token_bytes(16), digest=b"\0" * 32)

    def caller(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> ApiKey:
        """Return the key that a call carries. Raises Unauthenticated if it is none or no good."""
        for name, value in metadata or ():
            if name == HEADER and isinstance(value, str):
                return self.caller_with(value)
        return self.caller_with(None)

    def caller_with(self, value: str | None) -> ApiKey:
        """Return the key that an authorization holds. Raises Unauthenticated as `caller` does."""
        if value is None:
            raise Unauthenticated(_NO_KEY)
        key = self._known.get(value)
        if key is None or (key is not BOOTSTRAP and self._keyring.keys.get(key.key_id) is not key):
            key = self._verify(value)
        if key.expires_ns and key.is_expired(self._wall_ns()):
            raise Unauthenticated(_EXPIRED)
        return key

    def _verify(self, header: str) -> ApiKey:
        self._known.pop(header, None)
        if header[: len(_SCHEME)].lower() != _SCHEME:
            raise Unauthenticated(_NO_KEY)
        presented = header[len(_SCHEME) :].strip()
        salt, digest = self._bootstrap
        is_bootstrap = hmac.compare_digest(_digest(salt, presented), digest)
        key_id = presented.removeprefix(_PREFIX).partition("_")[0]
        key = self._keyring.keys.get(key_id, self._nobody)
        is_valid = hmac.compare_digest(_digest(key.salt, presented), key.digest)
        if is_bootstrap:
            key = BOOTSTRAP
        elif not is_valid or key is self._nobody:
            raise Unauthenticated(UNKNOWN_KEY)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[header] = key
        return key


# --- What the caller may do
# ------------------------------------------------------------------------


def restricted() -> ApiKey | None:
    """Return the caller's key if it may not do everything, else None."""
    caller = CALLER.get()
    return None if caller is None or caller.is_superadmin else caller


def check(permission: int, queue: str) -> None:
    """Raise PermissionDenied unless the caller has a permission on a queue."""
    caller = CALLER.get()
    if caller is not None and not caller.may(permission, queue):
        raise denial(caller, permission, queue)


def check_everywhere(permission: int) -> None:
    """Raise PermissionDenied unless the caller has a permission on all queues."""
    caller = CALLER.get()
    if caller is not None and not caller.may_everywhere(permission):
        raise PermissionDenied(
            f'the API key "{caller.name}" has no {WORDS[permission]} permission on all queues,'
            ' which this call needs; "*" gives it'
        )


def denials(caller: ApiKey, permission: int, queues: Iterable[str]) -> dict[str, PermissionDenied]:
    """Return a refusal for each of the queues on which the caller lacks a permission."""
    return {
        queue: denial(caller, permission, queue)
        for queue in set(queues)
        if not caller.may(permission, queue)
    }
