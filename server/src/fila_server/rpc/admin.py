# SPDX-License-Identifier: AGPL-3.0-only
"""FilaAdmin: every request that the caller may make goes to the engine as it came; the core answers
with its response.

The table below says what each RPC needs. docs/guides/security.md shows the same to people.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from fila.v1 import admin_pb2 as pb
from fila_server.core.access import ADMIN
from fila_server.core.commands import Access, Admin
from fila_server.core.names import shown
from fila_server.core.schedule.queue import DEAD_LETTER_SUFFIX
from fila_server.errors import FilaError, InvalidArgument, PermissionDenied
from fila_server.rpc import audit
from fila_server.rpc.auth import CALLER, check, check_everywhere, mint, restricted
from fila_server.rpc.method import Call, Handler, Method, streaming
from fila_server.runtime.engine import Engine

_PATH = "/fila.v1.FilaAdmin/"

# Raises PermissionDenied for a request that the caller may not make.
Rule = Callable[[Any], None]


def _administers(field: str) -> Rule:
    """Needs admin on the queue that a field names."""
    return lambda request: check(ADMIN, getattr(request, field))


def _redrive(request: pb.RedriveRequest) -> None:
    """Needs admin on both queues: messages leave one and enter the other."""
    check(ADMIN, request.dlq_queue)
    check(ADMIN, request.dlq_queue.removesuffix(DEAD_LETTER_SUFFIX))


def _delete_queue(request: pb.DeleteQueueRequest) -> None:
    """Needs admin on the dead-letter queue, too, where that goes as well."""
    check(ADMIN, request.queue)
    if not request.keep_dead_letters and not request.queue.endswith(DEAD_LETTER_SUFFIX):
        check(ADMIN, request.queue + DEAD_LETTER_SUFFIX)


def _stop_or_go(request: pb.PauseRequest | pb.ResumeRequest) -> None:
    """Needs admin on the queue, or on all queues for a throttle key: any of them may use it."""
    if request.throttle_key:
        check_everywhere(ADMIN)
    else:
        check(ADMIN, request.queue)


def _administers_all(request: Any) -> None:
    """Needs admin on all queues: a runtime setting may concern any of them."""
    check_everywhere(ADMIN)


def _any_key(request: Any) -> None:
    """Needs a key: the answer shows only what the key may know of."""


_METHODS: dict[str, Rule] = {
    "CreateQueue": _administers("name"),
    "UpdateQueue": _administers("queue"),
    "DeleteQueue": _delete_queue,
    "ListQueues": _any_key,
    "GetStats": _administers("queue"),
    "Redrive": _redrive,
    "Peek": _administers("queue"),
    "Purge": _administers("queue"),
    "Pause": _stop_or_go,
    "Resume": _stop_or_go,
    "Explain": _administers("queue"),
    "CancelMessage": _administers("queue"),
    "ListThrottles": _administers_all,
    "SetConfig": _administers_all,
    "GetConfig": _administers_all,
    "DeleteConfig": _administers_all,
    "ListConfig": _administers_all,
    "GetStatus": _administers_all,
}
# The core decides about these: what a key may do to another depends on both.
_KEY_METHODS = ("CreateApiKey", "RevokeApiKey", "ListApiKeys", "SetAcl", "GetAcl")


def methods(engine: Engine, back_up: Handler) -> list[Method]:
    """Return FilaAdmin. `back_up` serves Backup, by rules of its own."""
    unary = [
        Method(_PATH + name, _handler(engine, name), getattr(pb, f"{name}Request").FromString)
        for name in (*_METHODS, *_KEY_METHODS)
    ]
    return [*unary, streaming(_PATH + "Backup", back_up, pb.BackupRequest.FromString)]


def _handler(engine: Engine, method: str) -> Handler:
    async def handle(request: Any, call: Call) -> Any:
        return await perform(engine, method, request)

    return handle


async def perform(engine: Engine, method: str, request: Any) -> Any:
    """Do what the caller asks for, if it may, and log it. Every port comes through here.

    Raises FilaError.
    """
    if not audit.only_reads(request):
        # A caller that leaves meanwhile does not undo the change, so it is told all the same. The
        # engine holds on to the future that the task waits for, and so to the task.
        return await asyncio.shield(asyncio.ensure_future(_change(engine, method, request)))
    if method in _KEY_METHODS:
        return await _manage_keys(engine, request)
    permit(method, request)
    # Answers that are put together at the same time would be in memory at the same time.
    async with engine.peeks if isinstance(request, pb.PeekRequest) else nullcontext():
        response = await engine.ask(lambda ticket: Admin(ticket, request))
    if isinstance(response, pb.ListQueuesResponse):
        return _visible(response)
    if isinstance(response, pb.GetStatusResponse):
        engine.status.complete(response)
    return response


async def _change(engine: Engine, method: str, request: Any) -> Any:
    """Make a change and log it; log that it was refused if it was."""
    caller = CALLER.get()
    try:
        if method in _KEY_METHODS:
            return await _manage_keys(engine, request)
        permit(method, request)
        answer = await engine.ask(lambda ticket: Admin(ticket, request))
    except FilaError as error:
        audit.refused(caller, request, error)
        raise
    return audit.tell(caller, request, answer)


def permit(method: str, request: Any) -> None:
    """Raise PermissionDenied unless the caller may make a request; InvalidArgument if none may."""
    rule = _METHODS.get(method)
    if rule is None:
        raise InvalidArgument(f"this broker does not know the call {shown(method)}")
    rule(request)


def _visible(response: pb.ListQueuesResponse) -> pb.ListQueuesResponse:
    """Return the queues on which the caller has any permission."""
    caller = restricted()
    if caller is None:
        return response
    return pb.ListQueuesResponse(
        queues=[row for row in response.queues if caller.may_see(row.name)],
        cluster_node_count=response.cluster_node_count,
    )


async def _manage_keys(engine: Engine, request: Any) -> Any:
    caller = CALLER.get()
    if caller is None:
        # Or anybody could leave a key behind that works once they are on.
        raise PermissionDenied("API keys are off; set auth.bootstrap_apikey to turn them on")
    key_id = caller.key_id
    minted, key = mint() if isinstance(request, pb.CreateApiKeyRequest) else (None, "")
    response = await engine.ask(lambda ticket: Access(ticket, request, key_id, minted))
    if not audit.only_reads(request):
        response = audit.tell(caller, request, response)
    if minted is not None:
        response.secret = key
    return response
