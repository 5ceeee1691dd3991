# SPDX-License-Identifier: AGPL-3.0-only
"""Who may do what: API keys and their permissions, as requests and plain values. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from fila._answers import moment, nothing
from fila._endpoint import Call
from fila.admin import METHOD
from fila.v1 import admin_pb2

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Permission(StrEnum):
    """What an API key may be allowed to do."""

    PRODUCE = "produce"
    CONSUME = "consume"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class AclEntry:
    """One permission on `orders` (one queue), `orders.*` (a prefix) or `*` (all)."""

    permission: Permission | str
    pattern: str


@dataclass(frozen=True, slots=True)
class NewApiKey:
    """A key that was just created. The secret is shown this once, and never by repr()."""

    key_id: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ApiKeyInfo:
    """One API key, without its secret."""

    key_id: str
    name: str
    created_at: datetime | None
    expires_at: datetime | None
    superadmin: bool
    acl: tuple[AclEntry, ...]


@dataclass(frozen=True, slots=True)
class Acl:
    """What an API key may do; a superadmin may do everything."""

    entries: tuple[AclEntry, ...]
    superadmin: bool


def create_api_key(
    name: str, acl: Iterable[AclEntry], expires_at: datetime | None, superadmin: bool
) -> Call[NewApiKey]:
    request = admin_pb2.CreateApiKeyRequest(name=name, superadmin=superadmin, acl=_entries(acl))
    if expires_at is not None:
        if expires_at.tzinfo is None:
            raise ValueError("expires_at needs a time zone, e.g. datetime.now(UTC)")
        expires_at_ms = (expires_at - _EPOCH) // timedelta(milliseconds=1)
        if expires_at_ms <= 0:  # 0 is "never" on the wire
            raise ValueError("expires_at must be after 1970; leave it out for never")
        request.expires_at_ms = expires_at_ms
    return Call(
        METHOD + "CreateApiKey",
        request,
        admin_pb2.CreateApiKeyResponse,
        lambda response: NewApiKey(response.key_id, response.secret),
    )


def revoke_api_key(key_id: str) -> Call[None]:
    request = admin_pb2.RevokeApiKeyRequest(key_id=key_id)
    return Call(METHOD + "RevokeApiKey", request, admin_pb2.RevokeApiKeyResponse, nothing)


def list_api_keys() -> Call[list[ApiKeyInfo]]:
    return Call(
        METHOD + "ListApiKeys",
        admin_pb2.ListApiKeysRequest(),
        admin_pb2.ListApiKeysResponse,
        lambda response: [_read_info(row) for row in response.keys],
    )


def set_acl(key_id: str, acl: Iterable[AclEntry]) -> Call[None]:
    request = admin_pb2.SetAclRequest(key_id=key_id, acl=_entries(acl))
    return Call(METHOD + "SetAcl", request, admin_pb2.SetAclResponse, nothing)


def get_acl(key_id: str) -> Call[Acl]:
    return Call(
        METHOD + "GetAcl",
        admin_pb2.GetAclRequest(key_id=key_id),
        admin_pb2.GetAclResponse,
        lambda response: Acl(_read_entries(response.acl), response.superadmin),
    )


def _entries(acl: Iterable[AclEntry]) -> list[admin_pb2.AclPermission]:
    return [
        admin_pb2.AclPermission(kind=Permission(entry.permission), pattern=entry.pattern)
        for entry in acl
    ]


def _read_entries(permissions: Iterable[admin_pb2.AclPermission]) -> tuple[AclEntry, ...]:
    return tuple(AclEntry(_read_kind(it.kind), it.pattern) for it in permissions)


def _read_kind(kind: str) -> Permission | str:
    try:
        return Permission(kind)
    except ValueError:  # a permission that a newer broker knows stays readable
        return kind


def _read_info(row: admin_pb2.ApiKeyInfo) -> ApiKeyInfo:
    return ApiKeyInfo(
        key_id=row.key_id,
        name=row.name,
        created_at=moment(row, "created_at"),
        expires_at=moment(row, "expires_at"),
        superadmin=row.superadmin,
        acl=_read_entries(row.acl),
    )
