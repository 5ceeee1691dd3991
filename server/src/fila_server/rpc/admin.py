# SPDX-License-Identifier: AGPL-3.0-only
"""FilaAdmin: every request goes to the engine as it came; the core answers with its response."""

from __future__ import annotations

from typing import Any

import grpc

from fila.v1 import admin_pb2 as pb
from fila_server.core.commands import Admin
from fila_server.rpc.status import guarded
from fila_server.runtime.engine import Engine

_METHODS = (
    "CreateQueue",
    "UpdateQueue",
    "DeleteQueue",
    "ListQueues",
    "GetStats",
    "Redrive",
    "Peek",
    "Purge",
    "Pause",
    "Resume",
    "Explain",
    "CancelMessage",
    "SetConfig",
    "GetConfig",
    "DeleteConfig",
    "ListConfig",
)


def handlers(engine: Engine) -> grpc.GenericRpcHandler[Any, Any]:
    """Return FilaAdmin as gRPC registers it."""

    async def administer(request: Any, context: Any) -> Any:
        return await engine.ask(lambda ticket: Admin(ticket, request))

    return grpc.method_handlers_generic_handler(
        "fila.v1.FilaAdmin",
        {
            method: grpc.unary_unary_rpc_method_handler(
                guarded(administer),
                request_deserializer=getattr(pb, f"{method}Request").FromString,
                response_serializer=getattr(pb, f"{method}Response").SerializeToString,
            )
            for method in _METHODS
        },
    )
