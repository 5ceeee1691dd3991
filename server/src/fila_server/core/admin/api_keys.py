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
from fila_server.core.access import (
    CONSUME,
    UNKNOWN_KEY,
    WORDS,
    AclEntry,
    ApiKey,
    denial,
    is_pattern,
)
from fila_server.core.admin.change import Change
from fila_server.core.clock import Now
from fila_server.core.names import shown
from fila_server.core.state import State
from fila_server.core.wire import records
from fila_server.core.wire.records_pb2 import StoredApiKey, StoredPermission
from fila_server.errors import (
    ApiKeyNotFound,
    FilaError,
    InvalidArgument,
    Overloaded,
    PermissionDenied,
    Unauthenticated,
)
from fila_server.limits import (
    MAX_ACL_PERMISSIONS,
    MAX_API_KEY_NAME,
    MAX_API_KEYS,
    MAX_WALL_NS,
)
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.commands import Access
    from fila_server.core.schedule.consumer import Consumer
    from fila_server.core.turn import Turn

_NUMBERS = {word: permission for permission, word in WORDS.items()}


def administer(state: State, command: Access, turn: Turn) -> None:
    """Handle a request about API keys."""
    kind = command.request.__class__
    try:
        caller = state.keyring.caller(command.caller_id, turn.now.wall_ns)
        reader = _READS.get(kind)
        if reader is not None:
            turn.effects.answers.append((command.ticket, reader(state, command.request, caller)))
            return
        answer = _CHANGES[kind](state, command, caller, turn)
        turn.effects.durable_answers.append((command.ticket, answer))
    except FilaError as error:
        turn.effects.answers.append((command.ticket, error))


# --- Changes --------------------------------------------------------------------------------------


def _create(state: State, command: Access, caller: ApiKey, turn: Turn) -> Change:
    request: pb.CreateApiKeyRequest = command.request  # type: ignore[assignment]
    minted = command.minted
    assert minted is not None and minted.key_id not in state.keyring.keys
    name = request.name
    if not 1 <= len(name) <= MAX_API_KEY_NAME or not name.isprintable():
        raise InvalidArgument(
            f'key name "{shown(name)}" is not 1 to {MAX_API_KEY_NAME} printable characters'
        )
    acl = _checked_acl(request.acl)
    if request.superadmin and acl:
        raise InvalidArgument("a superadmin key may do everything, so it takes no acl")
    key = ApiKey(
        minted.key_id,
        name,
        salt=minted.salt,
        digest=minted.digest,
        created_ns=turn.now.wall_ns,
        expires_ns=_expiry(request, turn.now),
        is_superadmin=request.superadmin,
        acl=acl,
    )
    _check_grants(caller, key)
    if caller.expires_ns and not 0 < key.expires_ns <= caller.expires_ns:
        raise PermissionDenied(
            f'the API key "{caller.name}" expires, so it cannot make a key that outlives it'
        )
    if len(state.keyring.keys) >= MAX_API_KEYS:
        raise Overloaded(f"there are {MAX_API_KEYS} API keys, which is the limit; revoke some")
    _save(state, key, turn)
    return Change(pb.CreateApiKeyResponse(key_id=key.key_id), None, key)


def _expiry(request: pb.CreateApiKeyRequest, now: Now) -> int:
    """Return the wall time at which a new key stops working, 0 for never."""
    if not request.expires_at_ms:
        return 0
    expires_ns = request.expires_at_ms * 1_000_000
    if expires_ns <= now.wall_ns:
        raise InvalidArgument(
            f"expires_at_ms {request.expires_at_ms} is not in the future;"
            " it counts milliseconds since 1970, 0 is never"
        )
    if expires_ns > MAX_WALL_NS:
        raise InvalidArgument(
            f"expires_at_ms {request.expires_at_ms} is after the year 2262; 0 is never"
        )
    return expires_ns


def _checked_acl(permissions: Iterable[pb.AclPermission]) -> list[AclEntry]:
    acl = []
    for at, (kind, pattern) in enumerate((it.kind, it.pattern) for it in permissions):
        if at == MAX_ACL_PERMISSIONS:
            raise InvalidArgument(f"acl has more than {MAX_ACL_PERMISSIONS} entries")
        if kind not in _NUMBERS:
            raise InvalidArgument(
                f'acl[{at}].kind "{shown(kind)}" is not produce, consume or admin'
            )
        if not is_pattern(pattern):
            raise InvalidArgument(
                f'acl[{at}].pattern "{shown(pattern)}" is not a queue name,'
                " or the beginning of one and a star"
            )
        acl.append(AclEntry(_NUMBERS[kind], pattern))
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


def _set_acl(state: State, command: Access, caller: ApiKey, turn: Turn) -> Change:
    request: pb.SetAclRequest = command.request  # type: ignore[assignment]
    acl = _checked_acl(request.acl)
    before = _managed(state, request.key_id, caller)
    if before.is_superadmin:
        raise InvalidArgument(f'"{before.name}" is a superadmin key, which takes no acl')
    key = before.with_acl(acl)
    _check_grants(caller, key)
    _save(state, key, turn)
    for queue, consumer in _streams(state, key.key_id):
        if not key.may(CONSUME, queue):
            _end(state, consumer, denial(key, CONSUME, queue), turn)
    return Change(pb.SetAclResponse(), before, key)


def _revoke(state: State, command: Access, caller: ApiKey, turn: Turn) -> Change:
    request: pb.RevokeApiKeyRequest = command.request  # type: ignore[assignment]
    key = _managed(state, request.key_id, caller)
    state.keyring.remove(key)
    turn.batch.delete(Column.STATE, records.API_KEY + key.key_id.encode())
    _end_streams(state, key, Unauthenticated(UNKNOWN_KEY), turn)
    return Change(pb.RevokeApiKeyResponse(), key, None)


def expire(state: State, turn: Turn, limit: int) -> None:
    """End the streams of keys whose time has come. The keys stay, so that people see why."""
    for key in state.keyring.expiring.due(turn.now.wall_ns, limit):
        turn.units += 1
        _end_streams(state, key, Unauthenticated("the API key has expired"), turn)


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


def _end_streams(state: State, key: ApiKey, error: FilaError, turn: Turn) -> None:
    for _, consumer in _streams(state, key.key_id):
        _end(state, consumer, error, turn)


def _end(state: State, consumer: Consumer, error: FilaError, turn: Turn) -> None:
    state.end_consumer(consumer.number)
    turn.effects.closed.append((consumer.number, error))


def _streams(state: State, key_id: str) -> list[tuple[str, Consumer]]:
    """Return the consumers that a key opened, each with its queue's name."""
    return [(consumer.queue.name, consumer) for consumer in state.consumers_of.get(key_id, ())]


# --- Looking --------------------------------------------------------------------------------------


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


def _wire_acl(key: ApiKey) -> list[pb.AclPermission]:
    return [pb.AclPermission(kind=WORDS[number], pattern=text) for number, text in key.acl]


_READS: dict[type, Callable[[State, Any, ApiKey], Any]] = {
    pb.ListApiKeysRequest: _list,
    pb.GetAclRequest: _get_acl,
}
_CHANGES: dict[type, Callable[[State, Any, ApiKey, Any], Change]] = {
    pb.CreateApiKeyRequest: _create,
    pb.SetAclRequest: _set_acl,
    pb.RevokeApiKeyRequest: _revoke,
}


# --- The store ------------------------------------------------------------------------------------


def _save(state: State, key: ApiKey, turn: Turn) -> None:
    state.keyring.put(key)
    stored = StoredApiKey(
        name=key.name,
        salt=key.salt,
        digest=key.digest,
        created_at_ns=key.created_ns,
        expires_at_ns=key.expires_ns,
        superadmin=key.is_superadmin,
        acl=[StoredPermission(kind=number, pattern=text) for number, text in key.acl],  # type: ignore[arg-type]
    )
    record = stored.SerializeToString()
    turn.batch.put(Column.STATE, records.API_KEY + key.key_id.encode(), record)


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
                    AclEntry(entry.kind, entry.pattern)
                    for entry in stored.acl
                    if entry.kind in WORDS
                ],
            )
        )
