# SPDX-License-Identifier: AGPL-3.0-only
"""Who may do what, as rules on values: patterns of queue names, API keys, and the ring of them.

A pattern is a queue's name, or a beginning and a star: `orders` matches that queue alone,
`orders.*` every name that starts with "orders.", `*` every name. The star stands only at the end,
for any rest, an empty one included.

Nothing here sees a secret. A key carries the salt and the digest of its own; whoever talks to
clients makes and compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from fila_server.core.names import shown
from fila_server.core.schedule.deadlines import Deadlines
from fila_server.core.wire.records_pb2 import StoredPermission
from fila_server.errors import PermissionDenied, Unauthenticated

# Numbers here and in the store, words to clients.
PRODUCE = StoredPermission.KIND_PRODUCE
CONSUME = StoredPermission.KIND_CONSUME
ADMIN = StoredPermission.KIND_ADMIN
WORDS: dict[int, str] = {PRODUCE: "produce", CONSUME: "consume", ADMIN: "admin"}

# The characters of a queue's name, and a star at most, at the end.
_PATTERN = re.compile(r"(?:[A-Za-z0-9._/-]{1,255}|[A-Za-z0-9._/-]{0,255}\*)\Z")

# Says the same for a key that never was, that was revoked, and whose secret is wrong.
UNKNOWN_KEY = "the API key is not valid"


class AclEntry(NamedTuple):
    """One permission on one pattern."""

    permission: int
    pattern: str

    def __str__(self) -> str:
        return f"{WORDS[self.permission]}:{self.pattern}"


class Minted(NamedTuple):
    """What a new key is made of. The secret itself stays with whoever minted it."""

    key_id: str
    salt: bytes
    digest: bytes


def is_pattern(text: str) -> bool:
    return _PATTERN.match(text) is not None


def covers(pattern: str, other: str) -> bool:
    """Return whether every name that `other` matches is matched by `pattern` too."""
    if pattern.endswith("*"):
        return other.removesuffix("*").startswith(pattern[:-1])
    return other == pattern


class ApiKey:
    """A key and what it may do. Never changed: a new ACL makes a new one."""

    __slots__ = (
        "_names",
        "_prefixes",
        "acl",
        "created_ns",
        "digest",
        "expires_ns",
        "is_superadmin",
        "key_id",
        "name",
        "salt",
    )

    def __init__(
        self,
        key_id: str,
        name: str,
        *,
        salt: bytes = b"",
        digest: bytes = b"",
        created_ns: int = 0,
        expires_ns: int = 0,
        is_superadmin: bool = False,
        acl: Iterable[AclEntry] = (),
    ) -> None:
        self.key_id = key_id
        self.name = name
        self.salt = salt
        self.digest = digest
        self.created_ns = created_ns
        self.expires_ns = expires_ns  # wall clock; 0 never
        self.is_superadmin = is_superadmin
        self.acl = tuple(dict.fromkeys(acl))
        # Taken apart once, because `may` runs for every call.
        self._names: dict[int, set[str]] = {permission: set() for permission in WORDS}
        self._prefixes: dict[int, tuple[str, ...]] = dict.fromkeys(WORDS, ())
        for permission, pattern in self.acl:
            if pattern.endswith("*"):
                self._prefixes[permission] += (pattern[:-1],)
            else:
                self._names[permission].add(pattern)

    def with_acl(self, acl: Iterable[AclEntry]) -> ApiKey:
        return ApiKey(
            self.key_id,
            self.name,
            salt=self.salt,
            digest=self.digest,
            created_ns=self.created_ns,
            expires_ns=self.expires_ns,
            is_superadmin=self.is_superadmin,
            acl=acl,
        )

    def is_expired(self, wall_ns: int) -> bool:
        return self.expires_ns != 0 and wall_ns >= self.expires_ns

    def may(self, permission: int, queue: str) -> bool:
        return (
            self.is_superadmin
            or queue in self._names[permission]
            or queue.startswith(self._prefixes[permission])
        )

    def may_see(self, queue: str) -> bool:
        """Return whether the key has any permission on a queue, and so may know of it."""
        return any(self.may(permission, queue) for permission in WORDS)

    def may_everywhere(self, permission: int) -> bool:
        return self.is_superadmin or "" in self._prefixes[permission]

    def may_grant(self, entry: AclEntry) -> bool:
        """Return whether the key may give a permission away: it has it, and administers there."""
        return self.is_superadmin or all(
            any(own == wanted and covers(pattern, entry.pattern) for own, pattern in self.acl)
            for wanted in (ADMIN, entry.permission)
        )

    def may_manage(self, other: ApiKey) -> bool:
        """Return whether the key could have made the other one, and so may change or revoke it."""
        if self.is_superadmin:
            return True
        return not other.is_superadmin and bool(other.acl) and all(map(self.may_grant, other.acl))


def denial(key: ApiKey, permission: int, queue: str) -> PermissionDenied:
    """Return the refusal of a key that lacks a permission. It is the same for any queue's name."""
    return PermissionDenied(
        f'the API key "{key.name}" has no {WORDS[permission]} permission on queue "{shown(queue)}"'
    )


# The key of the configuration. It is in no store and cannot be revoked.
BOOTSTRAP = ApiKey("", "bootstrap", is_superadmin=True)


class Keyring:
    """All API keys that were created and not revoked, by id.

    One owner changes it. Others may look on the owner's thread: a key that is no longer here, or
    here as another object, has changed since they looked.
    """

    def __init__(self) -> None:
        self.keys: dict[str, ApiKey] = {}
        # By the wall clock, which is what expiry means.
        self.expiring: Deadlines[ApiKey] = Deadlines()

    def put(self, key: ApiKey) -> None:
        """Add a key, or replace the one with the same id."""
        before = self.keys.get(key.key_id)
        if before is not None:
            self.expiring.discard(before)
        self.keys[key.key_id] = key
        self.watch(key)

    def watch(self, key: ApiKey) -> None:
        """See to it that a key's end is noticed, again if the clock was set back behind it."""
        if key.expires_ns:
            self.expiring.set(key, key.expires_ns)

    def remove(self, key: ApiKey) -> None:
        del self.keys[key.key_id]
        self.expiring.discard(key)

    def caller(self, key_id: str, wall_ns: int) -> ApiKey:
        """Return the key that a command is asked with. Raises Unauthenticated if it is gone."""
        key = self.keys.get(key_id) if key_id else BOOTSTRAP
        if key is None:
            raise Unauthenticated(UNKNOWN_KEY)
        if key.is_expired(wall_ns):
            raise Unauthenticated("the API key has expired")
        return key
