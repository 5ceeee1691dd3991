# SPDX-License-Identifier: AGPL-3.0-only
"""FilaAdmin: every request that the caller may make goes to the engine as it came; the core answers
with its response.

The table below says what each RPC needs. docs/guides/security.md shows the same to people.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from fila.v1 import admin_pb2 as pb
from fila_server.core.access import ADMIN
from fila_server.core.commands import Access, Admin
from fila_server.core.queue import DEAD_LETTER_SUFFIX
from fila_server.errors import PermissionDenied
from fila_server.rpc.auth import CALLER, check, check_everywhere, mint, restricted
from fila_server.rpc.status import Handler, decoding, guarded
from fila_server.runtime.engine import Engine

# Raises PermissionDenied for a request that the caller may not make.
Rule = Callable[[Any], None]


def _administers(field: str) -> Rule:
    """Needs admin on the queue that a field names."""
    return lambda request: check(ADMIN, getattr(request, field))


def _redrive(request: pb.RedriveRequest) -> None:
    """Needs admin on both queues: messages leave one and enter the other."""
    check(ADMIN, request.dlq_queue)
    check(ADMIN, request.dlq_queue.removesuffix(DEAD_LETTER_SUFFIX))


def _administers_all(request: Any) -> None:
    """Needs admin on all queues: a runtime setting may concern any of them."""
    check_everywhere(ADMIN)


def _any_key(request: Any) -> None:
    """Needs a key: the answer shows only what the key may know of."""


_METHODS: dict[str, Rule] = {
    "CreateQueue": _administers("name"),
    "UpdateQueue": _administers("queue"),
    "DeleteQueue": _administers("queue"),
    "ListQueues": _any_key,
    "GetStats": _administers("queue"),
    "Redrive": _redrive,
    "Peek": _administers("queue"),
    "Purge": _administers("queue"),
    "Pause": _administers("queue"),
    "Resume": _administers("queue"),
    "Explain": _administers("queue"),
    "CancelMessage": _administers("queue"),
    "SetConfig": _administers_all,
    "GetConfig": _administers_all,
    "DeleteConfig": _administers_all,
    "ListConfig": _administers_all,
}
# The core decides about these: what a key may do to another depends on both.
_KEY_METHODS = ("CreateApiKey", "RevokeApiKey", "ListApiKeys", "SetAcl", "GetAcl")


def handlers(engine: Engine) -> grpc.GenericRpcHandler[Any, Any]:
    """Return FilaAdmin as gRPC registers it."""
    methods = {method: _administer(engine, rule) for method, rule in _METHODS.items()}
    methods |= dict.fromkeys(_KEY_METHODS, _manage_keys(engine))
    return grpc.method_handlers_generic_handler(
        "fila.v1.FilaAdmin",
        {
            method: grpc.unary_unary_rpc_method_handler(
                guarded(handler),
                request_deserializer=decoding(getattr(pb, f"{method}Request").FromString),
                response_serializer=getattr(pb, f"{method}Response").SerializeToString,
            )
            for method, handler in methods.items()
        },
    )


def _administer(engine: Engine, rule: Rule) -> Handler:
    async def administer(request: Any, context: Any) -> Any:
        rule(request)
        response = await engine.ask(lambda ticket: Admin(ticket, request))
        if isinstance(response, pb.ListQueuesResponse):
            return _visible(response)
        return response

    return administer


def _visible(response: pb.ListQueuesResponse) -> pb.ListQueuesResponse:
    """Return the queues on which the caller has any permission."""
    caller = restricted()
    if caller is None:
        return response
    return pb.ListQueuesResponse(
        queues=[row for row in response.queues if caller.may_see(row.name)]
    )


def _manage_keys(engine: Engine) -> Handler:
    async def manage(request: Any, context: Any) -> Any:
        caller = CALLER.get()
        if caller is None:
            # Or anybody could leave a key behind that works once they are on.
            raise PermissionDenied("API keys are off; set auth.bootstrap_apikey to turn them on")
        key_id = caller.key_id
        if not isinstance(request, pb.CreateApiKeyRequest):
            return await engine.ask(lambda ticket: Access(ticket, request, key_id))
        minted, key = mint()
        response = await engine.ask(lambda ticket: Access(ticket, request, key_id, minted))
        response.secret = key
        return response

    return manage
