# SPDX-License-Identifier: AGPL-3.0-only
"""Who changed what, from what to what, and what was refused: one log record each.

A record names keys, queues and settings, and has the values that act on the broker: limits,
weights, a queue's settings, permissions. It never holds a secret or anything of a message. A script
is told by its size and the beginning of its digest, and so is a setting that only hooks read, for
it may be a password; that digest is of no use to who guesses.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fila.v1 import admin_pb2 as pb
from fila_server.core.access import ApiKey
from fila_server.core.admin.change import Change
from fila_server.core.clock import NS_PER_MS
from fila_server.core.settings import parse
from fila_server.errors import FilaError, InvalidScript, Unauthenticated

log = logging.getLogger("fila_server.audit")

# Names in one record, of the settings that were set together, the permissions of a key and so on.
_NAMES_MAX = 20
# Anybody can send bad keys, as fast as they like.
_REFUSALS_MAX = 10
_REFUSALS_S = 60.0
_METHOD_CHARS = 100
# As many as the name of a setting has at most. Some names are looked up without having been
# checked, and may be as long as a request.
_TEXT_CHARS = 512
# Two scripts or settings with the same beginning of a digest are not met by chance.
_DIGEST_CHARS = 12
# Without it, whoever reads the log could try passwords until a digest fits.
_SALT = secrets.token_bytes(16)

Facts = dict[str, Any]


class Told(NamedTuple):
    """How a kind of change is told: in words, what it was asked to change, and what came of it."""

    what: str
    target: Callable[[Any], Facts]
    outcome: Callable[[Any], Facts] = lambda response: {}


def _fields(*names: str, **renamed: str) -> Callable[[Any], Facts]:
    """Return what takes these fields of a message; those of a request that are not empty."""
    fields = dict(zip(names, names, strict=True)) | renamed

    def take(message: Any) -> Facts:
        values = {told: getattr(message, field) for told, field in fields.items()}
        if message.DESCRIPTOR.name.endswith("Response"):
            return values
        return {told: _cut(value) for told, value in values.items() if value}

    return take


def _cut(value: Any) -> Any:
    return value[:_TEXT_CHARS] if isinstance(value, str) else value


def _names(request: pb.SetConfigRequest) -> Facts:
    names = [entry.key for entry in request.entries] or [request.key]
    return {"settings": [_cut(name) for name in names[:_NAMES_MAX]], "count": len(names)}


def _letters(request: pb.RedriveRequest) -> Facts:
    facts = _fields("fairness_key", "error_contains", queue="dlq_queue", limit="count")(request)
    ids = request.message_ids
    return facts | ({"message_ids": _some(ids), "count": len(ids)} if ids else {})


_stopped = _fields("queue", "fairness_key", "throttle_key")

# Every request of FilaAdmin is in one of these two tables.
TOLD: dict[type, Told] = {
    pb.CreateQueueRequest: Told("queue created", _fields(queue="name")),
    pb.UpdateQueueRequest: Told("queue changed", _fields("queue")),
    pb.DeleteQueueRequest: Told(
        "queue deleted",
        _fields("queue", "keep_dead_letters"),
        _fields("messages", "dead_letters"),
    ),
    pb.PurgeRequest: Told("queue purged", _fields("queue", "fairness_key"), _fields("purged")),
    pb.RedriveRequest: Told("dead letters redriven", _letters, _fields("redriven")),
    pb.CancelMessageRequest: Told("message cancelled", _fields("queue", "message_id")),
    pb.PauseRequest: Told("deliveries paused", _stopped),
    pb.ResumeRequest: Told("deliveries resumed", _stopped),
    pb.SetConfigRequest: Told("settings changed", _names),
    pb.DeleteConfigRequest: Told(
        "setting removed", lambda request: {"settings": [_cut(request.key)], "count": 1}
    ),
    pb.BackupRequest: Told(
        "backup made", _fields("directory"), _fields("path", "messages", "copied_bytes")
    ),
    pb.CreateApiKeyRequest: Told("API key created", _fields(key_name="name"), _fields("key_id")),
    pb.RevokeApiKeyRequest: Told("API key revoked", _fields("key_id")),
    pb.SetAclRequest: Told("permissions of API key changed", _fields("key_id")),
}
ONLY_READ: frozenset[type] = frozenset(
    (
        pb.ListQueuesRequest,
        pb.GetStatsRequest,
        pb.PeekRequest,
        pb.ExplainRequest,
        pb.ListThrottlesRequest,
        pb.GetConfigRequest,
        pb.ListConfigRequest,
        pb.GetStatusRequest,
        pb.ListApiKeysRequest,
        pb.GetAclRequest,
    )
)


def only_reads(request: Any) -> bool:
    """Return whether there is nothing to tell of a request of FilaAdmin."""
    return request.__class__ in ONLY_READ


def tell(caller: ApiKey | None, request: Any, answer: Any) -> Any:
    """Log a change that was made, and return the response to it."""
    told = TOLD[request.__class__]
    facts = {"by": _who(caller)} | told.target(request)
    response = answer
    if isinstance(answer, Change):
        response = answer.response
        if isinstance(answer.before, ApiKey):
            facts["key_name"] = answer.before.name
        facts |= _values(answer.before, answer.after)
    log.info(told.what, extra={"facts": facts | told.outcome(response)})
    return response


def _who(caller: ApiKey | None) -> str:
    if caller is None:
        return "no key"
    return f"{caller.name} ({caller.key_id})" if caller.key_id else caller.name


# --- Values ---------------------------------------------------------------------------------------


def _values(before: Any, after: Any) -> Facts:
    """Return what may be told of what there was before a change, and of what there is now."""
    old, new = _value(before), _value(after)
    if isinstance(before, pb.QueueConfig | ApiKey) and after is not None:  # only what differs
        names = [name for name in old if old[name] != new[name]]
        old, new = ({name: values[name] for name in names} for values in (old, new))
    elif isinstance(before or after, pb.QueueConfig):  # only what somebody chose
        chosen = [field.name for field, _ in (before or after).ListFields()]
        old, new = (values and {name: values[name] for name in chosen} for values in (old, new))
    return {"old": old, "new": new}


def _value(value: Any) -> Any:
    if isinstance(value, pb.QueueConfig):
        fields = value.DESCRIPTOR.fields
        return {field.name: _queue_setting(field, getattr(value, field.name)) for field in fields}
    if isinstance(value, ApiKey):
        return {
            "superadmin": value.is_superadmin,
            "acl": _some([str(entry) for entry in value.acl]),
            "expires_at_ms": value.expires_ns // NS_PER_MS,
        }
    if isinstance(value, dict):
        names = list(value)[:_NAMES_MAX]
        return {_cut(name): _setting(name, value[name]) for name in names}
    return value


def _queue_setting(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if isinstance(value, str) and value:  # so that `sha256sum` tells whether it is a certain file
        return _digested(value, hashlib.sha256(value.encode()).hexdigest())
    return value


def _setting(name: str, value: str | None) -> Any:
    if value is None or parse(name) is not None:
        return _cut(value)
    return _digested(value, hmac.digest(_SALT, value.encode(), "sha256").hex())


def _digested(text: str, digest: str) -> str:
    return f"{len(text.encode())} bytes, digest {digest[:_DIGEST_CHARS]}"


def _some(texts: Any) -> list[str]:
    some = [_cut(text) for text in texts[:_NAMES_MAX]]
    return some if len(texts) <= _NAMES_MAX else [*some, f"{len(texts) - _NAMES_MAX} more"]


# --- Refusals -------------------------------------------------------------------------------------


class Seldom:
    """Lets a few events through in a period, and counts the others."""

    def __init__(
        self, most: int, period_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._period_s = period_s
        self._clock = clock
        self._ends_s = 0.0
        self._passed = 0
        self._held = 0

    def passes(self) -> bool:
        now_s = self._clock()
        if now_s >= self._ends_s:
            self._ends_s = now_s + self._period_s
            self._passed = 0
        if self._passed < self._most:
            self._passed += 1
            return True
        self._held += 1
        return False

    def held(self) -> int:
        """Return how many did not pass since this was asked last."""
        held, self._held = self._held, 0
        return held


class Refusals:
    """Logs calls that were refused for their key, some of them."""

    def __init__(self) -> None:
        self._seldom = Seldom(_REFUSALS_MAX, _REFUSALS_S)
        self.count = 0

    def tell(self, method: str, error: Unauthenticated) -> None:
        self.count += 1
        if self._seldom.passes():
            facts = {"method": method[:_METHOD_CHARS], "not_logged_before": self._seldom.held()}
            log.warning("call refused: %s", error.message, extra={"facts": facts})


class _RefusedChanges:
    """Logs changes that were asked for and not made, some of them."""

    def __init__(self) -> None:
        self._seldom = Seldom(_REFUSALS_MAX, _REFUSALS_S)

    def tell(self, caller: ApiKey | None, request: Any, error: FilaError) -> None:
        if self._seldom.passes():
            # What Lua has to say quotes the script.
            hidden = isinstance(error, InvalidScript)
            facts = {
                "by": _who(caller),
                "call": request.DESCRIPTOR.name.removesuffix("Request"),
                "reason": error.reason,
                "not_logged_before": self._seldom.held(),
            } | TOLD[request.__class__].target(request)
            text = "a script cannot be loaded" if hidden else error.message
            log.warning("change refused: %s", text, extra={"facts": facts})


# The log is the process's, and so is the bound on what anybody can make it say.
refused = _RefusedChanges().tell
