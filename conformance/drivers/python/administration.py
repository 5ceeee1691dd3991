# SPDX-License-Identifier: AGPL-3.0-only
"""Requests that operate a broker, written once for both clients: the feature `admin`."""

import inspect
from base64 import b64encode
from typing import Any

import fila

Fields = dict[str, Any]

_SETTINGS = (
    *("visibility_timeout_ms", "max_attempts", "retry_delay_ms", "max_messages"),
    *("default_ttl_ms", "idempotency_window_ms"),
)


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def entries_of(given: Fields) -> list[fila.AclEntry]:
    return [fila.AclEntry(**entry) for entry in given.get("acl", ())]


class Administration:
    """One method per request; Operations has the clients."""

    def _client(self, given: Fields) -> Any:
        raise NotImplementedError

    async def do_update_queue(self, given: Fields) -> Fields:
        call = self._client(given).update_queue(given["queue"], **given["settings"])
        now = await settled(call)
        return {"settings": {name: getattr(now, name) for name in _SETTINGS}}

    async def do_peek(self, given: Fields) -> Fields:
        page = await settled(self._client(given).peek(**given))
        return {
            "messages": [
                {
                    "id": row.message.id,
                    "payload": b64encode(row.message.payload).decode(),
                    "fairness_key": row.message.fairness_key,
                    "state": row.state,
                    "position": row.position,
                }
                for row in page.messages
            ],
            "next_position": page.next_position,
            "end_position": page.end_position,
        }

    async def do_purge(self, given: Fields) -> Fields:
        return {"purged": await settled(self._client(given).purge(**given))}

    async def do_pause(self, given: Fields) -> None:
        await settled(self._client(given).pause(**given))

    async def do_resume(self, given: Fields) -> None:
        await settled(self._client(given).resume(**given))

    async def do_cancel_message(self, given: Fields) -> None:
        await settled(self._client(given).cancel(**given))

    async def do_explain(self, given: Fields) -> Fields:
        found = await settled(self._client(given).explain(**given))
        names = ("summary", "fairness_key", "pending_count", "ahead", "state")
        reasons = [reason.kind for reason in found.reasons]
        return {name: getattr(found, name) for name in names} | {"reasons": reasons}

    async def do_delete_config(self, given: Fields) -> None:
        await settled(self._client(given).delete_config(given["key"]))

    async def do_list_config(self, given: Fields) -> Fields:
        return {"entries": await settled(self._client(given).list_config(**given))}

    async def do_revoke_api_key(self, given: Fields) -> None:
        await settled(self._client(given).revoke_api_key(given["key_id"]))

    async def do_list_api_keys(self, given: Fields) -> Fields:
        keys = await settled(self._client(given).list_api_keys())
        return {
            "keys": [
                {
                    "key_id": key.key_id,
                    "name": key.name,
                    "expires_at_ms": key.expires_at and round(key.expires_at.timestamp() * 1000),
                    "superadmin": key.superadmin,
                    "acl": _listed(key.acl),
                }
                for key in keys
            ]
        }

    async def do_set_acl(self, given: Fields) -> None:
        await settled(self._client(given).set_acl(given["key_id"], entries_of(given)))

    async def do_get_acl(self, given: Fields) -> Fields:
        found = await settled(self._client(given).get_acl(given["key_id"]))
        return {"acl": _listed(found.entries), "superadmin": found.superadmin}


def _listed(acl: tuple[fila.AclEntry, ...]) -> list[Fields]:
    return [{"permission": entry.permission, "pattern": entry.pattern} for entry in acl]
