# SPDX-License-Identifier: AGPL-3.0-only
"""API keys as the broker keeps them: made, changed, revoked, listed, and ended when they expire.

A superadmin may do all of it. Another key may make, see, change and revoke keys that have nothing
it could not grant: it must hold the permission itself, and `admin` beside it. What it asks about
any other key is refused, whether that key exists or not.

A stream lives no longer than the right to it: what a change takes away, ends in the same group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fila.v1 import admin_pb2 as pb
from fila_server.core import records
from fila_server.core.access import (
    CONSUME,
    UNKNOWN_KEY,
    WORDS,
    AclEntry,
    ApiKey,
    is_pattern,
)
from fila_server.core.clock import Now
from fila_server.core.names import shown
from fila_server.core.records_pb2 import StoredApiKey
from fila_server.core.state import State
from fila_server.errors import (
    ApiKeyNotFound,
    FilaError,
    InvalidArgument,
    Overloaded,
    PermissionDenied,
    Unauthenticated,
)
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.commands import Access
    from fila_server.core.effects import Effects

# A key per tenant and service of a large installation; all are kept in memory.
_MAX_KEYS = 10_000
# Beyond this a pattern is the better tool.
_MAX_ENTRIES = 100
_MAX_NAME = 100
# Wall times in nanoseconds are stored in 63 bits: until the year 2262.
_MAX_NS = (1 << 63) - 1


def denial(key: ApiKey, permission: int, queue: str) -> PermissionDenied:
    """Return the refusal of a key that lacks a permission. It is the same for any queue's name."""
    return PermissionDenied(
        f'the API key "{key.name}" has no {WORDS[permission]} permission on queue "{shown(queue)}"'
    )


def administer(state: State, command: Access, now: Now, effects: Effects) -> None:
    """Handle a request about API keys."""
    kind = command.request.__class__
    try:
        caller = state.keyring.caller(command.caller_id, now.wall_ns)
        reader = _READS.get(kind)
        if reader is not None:
            effects.answers.append((command.ticket, reader(state, command.request, caller)))
            return
        answer = _CHANGES[kind](state, command, caller, now, effects)
        effects.durable_answers.append((command.ticket, answer))
    except FilaError as error:
        effects.answers.append((command.ticket, error))


# --- Changes
# ---------------------------------------------------------------------------------------


def _create(state: State, command: Access, caller: ApiKey, now: Now, effects: Effects) -> Any:
    request: pb.CreateApiKeyRequest = command.request  # type: ignore[assignment]
    minted = command.minted
    assert minted is not None and minted.key_id not in state.keyring.keys
    name = request.name
    if not 1 <= len(name) <= _MAX_NAME or not name.isprintable():
        raise InvalidArgument(
            f'key name "{shown(name)}" is not 1 to {_MAX_NAME} printable characters'
        )
    acl = _checked_acl(request.acl)
    if request.superadmin and acl:
        raise InvalidArgument("a superadmin key may do everything, so it takes no acl")
    key = ApiKey(
        minted.key_id,
        name,
        salt=minted.salt,
        digest=minted.digest,
        created_ns=now.wall_ns,
        expires_ns=_expiry(request, now),
        is_superadmin=request.superadmin,
        acl=acl,
    )
    _check_grants(caller, key)
    if caller.expires_ns and not 0 < key.expires_ns <= caller.expires_ns:
        raise PermissionDenied(
            f'the API key "{caller.name}" expires, so it cannot make a key that outlives it'
        )
    if len(state.keyring.keys) >= _MAX_KEYS:
        raise Overloaded(f"there are {_MAX_KEYS} API keys, which is the limit; revoke some")
    _save(state, key, effects)
    return pb.CreateApiKeyResponse(key_id=key.key_id)


def _expiry(request: pb.CreateApiKeyRequest, now: Now) -> int:
    """Return the wall time at which a new key stops working, 0 for never."""
    if not request.HasField("expires_at"):
        return 0
    try:
        expires_ns = request.expires_at.ToNanoseconds()
    except ValueError as error:
        raise InvalidArgument("expires_at is not a time") from error
    if expires_ns <= now.wall_ns:
        raise InvalidArgument("expires_at is not in the future")
    if expires_ns > _MAX_NS:
        raise InvalidArgument("expires_at is after the year 2262; leave it out for never")
    return expires_ns


def _checked_acl(entries: Iterable[pb.AclEntry]) -> list[AclEntry]:
    acl = []
    for at, entry in enumerate(entries):
        if at == _MAX_ENTRIES:
            raise InvalidArgument(f"acl has more than {_MAX_ENTRIES} entries")
        if entry.permission not in WORDS:
            raise InvalidArgument(f"acl[{at}].permission is not produce, consume or admin")
        if not is_pattern(entry.pattern):
            raise InvalidArgument(
                f'acl[{at}].pattern "{shown(entry.pattern)}" is not a queue name,'
                " or the beginning of one and a star"
            )
        acl.append(AclEntry(entry.permission, entry.pattern))
    return acl


def _check_grants(caller: ApiKey, key: ApiKey) -> None:
    """Refuse to give away more than the caller has."""
    if caller.may_manage(key):
        return
    if key.is_superadmin:
        what = "make a superadmin key"
    elif not key.acl:
        what = "leave a key without permissions"
    else:
        what = f"grant {next(entry for entry in key.acl if not caller.may_grant(entry))}"
    raise PermissionDenied(f'the API key "{caller.name}" may not {what}')


def _set_acl(state: State, command: Access, caller: ApiKey, now: Now, effects: Effects) -> Any:
    request: pb.SetAclRequest = command.request  # type: ignore[assignment]
    acl = _checked_acl(request.acl)
    before = _managed(state, request.key_id, caller)
    if before.is_superadmin:
        raise InvalidArgument(f'"{before.name}" is a superadmin key, which takes no acl')
    key = before.with_acl(acl)
    _check_grants(caller, key)
    _save(state, key, effects)
    for queue, consumer in _streams(state, key.key_id):
        if not key.may(CONSUME, queue):
            consumer.is_open = False
            effects.closed.append((consumer, denial(key, CONSUME, queue)))
    return pb.SetAclResponse()


def _revoke(state: State, command: Access, caller: ApiKey, now: Now, effects: Effects) -> Any:
    request: pb.RevokeApiKeyRequest = command.request  # type: ignore[assignment]
    key = _managed(state, request.key_id, caller)
    state.keyring.remove(key)
    effects.writes.append((Column.STATE, records.API_KEY + key.key_id.encode(), None))
    _end_streams(state, key, Unauthenticated(UNKNOWN_KEY), effects)
    return pb.RevokeApiKeyResponse()


def expire(state: State, now: Now, effects: Effects) -> None:
    """End the streams of keys whose time has come. The keys stay, so that people see why."""
    for key in state.keyring.expiring.due(now.wall_ns):
        _end_streams(state, key, Unauthenticated("the API key has expired"), effects)


def _managed(state: State, key_id: str, caller: ApiKey) -> ApiKey:
    """Return a key that the caller may change."""
    key = state.keyring.keys.get(key_id)
    if key is not None and caller.may_manage(key):
        return key
    if caller.is_superadmin:
        raise ApiKeyNotFound(f'no API key has the id "{shown(key_id)}"')
    raise PermissionDenied(
        f'the API key "{caller.name}" does not manage a key with the id "{shown(key_id)}"'
    )


def _end_streams(state: State, key: ApiKey, error: FilaError, effects: Effects) -> None:
    for _, consumer in _streams(state, key.key_id):
        consumer.is_open = False
        effects.closed.append((consumer, error))


def _streams(state: State, key_id: str) -> Iterable[tuple[str, Any]]:
    """Yield the consumers that a key opened, each with its queue's name."""
    for name, queue in state.queues.items():
        for consumer in queue.consumers:
            if consumer.key_id == key_id:
                yield name, consumer


# --- Looking
# ---------------------------------------------------------------------------------------


def _list(state: State, request: pb.ListApiKeysRequest, caller: ApiKey) -> Any:
    """Return the keys that the caller manages, and its own, in the order of their creation."""
    response = pb.ListApiKeysResponse()
    for key in sorted(state.keyring.keys.values(), key=lambda key: (key.created_ns, key.key_id)):
        if key is caller or caller.may_manage(key):
            row = response.keys.add(
                key_id=key.key_id,
                name=key.name,
                superadmin=key.is_superadmin,
                acl=_wire_acl(key),
            )
            row.created_at.FromNanoseconds(key.created_ns)
            if key.expires_ns:
                row.expires_at.FromNanoseconds(key.expires_ns)
    return response


def _get_acl(state: State, request: pb.GetAclRequest, caller: ApiKey) -> Any:
    own = request.key_id == caller.key_id and bool(caller.key_id)
    key = caller if own else _managed(state, request.key_id, caller)
    return pb.GetAclResponse(acl=_wire_acl(key), superadmin=key.is_superadmin)


def _wire_acl(key: ApiKey) -> list[pb.AclEntry]:
    return [pb.AclEntry(permission=number, pattern=text) for number, text in key.acl]  # type: ignore[arg-type]


_READS: dict[type, Callable[[State, Any, ApiKey], Any]] = {
    pb.ListApiKeysRequest: _list,
    pb.GetAclRequest: _get_acl,
}
_CHANGES: dict[type, Callable[[State, Any, ApiKey, Now, Any], Any]] = {
    pb.CreateApiKeyRequest: _create,
    pb.SetAclRequest: _set_acl,
    pb.RevokeApiKeyRequest: _revoke,
}


# --- The store
# -------------------------------------------------------------------------------------


def _save(state: State, key: ApiKey, effects: Effects) -> None:
    state.keyring.put(key)
    stored = StoredApiKey(
        name=key.name,
        salt=key.salt,
        digest=key.digest,
        created_at_ns=key.created_ns,
        expires_at_ns=key.expires_ns,
        superadmin=key.is_superadmin,
        acl=_wire_acl(key),
    )
    record = stored.SerializeToString()
    effects.writes.append((Column.STATE, records.API_KEY + key.key_id.encode(), record))


def load(state: State) -> None:
    """Fill the keyring from the store."""
    prefix = records.API_KEY
    for key_id, value in state.read.scan(Column.STATE, prefix, bytes((prefix[0] + 1,))):
        stored = StoredApiKey.FromString(value)
        state.keyring.put(
            ApiKey(
                key_id[len(prefix) :].decode(),
                stored.name,
                salt=stored.salt,
                digest=stored.digest,
                created_ns=stored.created_at_ns,
                expires_ns=stored.expires_at_ns,
                is_superadmin=stored.superadmin,
                # A permission that only a newer broker knows allows nothing here.
                acl=[
                    AclEntry(entry.permission, entry.pattern)
                    for entry in stored.acl
                    if entry.permission in WORDS
                ],
            )
        )
