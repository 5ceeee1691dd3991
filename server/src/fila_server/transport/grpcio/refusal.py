# SPDX-License-Identifier: AGPL-3.0-only
"""How grpcio ends a call that is refused, and the check of API keys that runs before a body is
read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc

from fila_server.errors import FilaError, Unauthenticated
from fila_server.rpc.auth import CALLER, OPEN, Authenticator
from fila_server.rpc.status import REASON_KEY, STATUS

Context = grpc.aio.ServicerContext[Any, Any]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


async def refuse(context: Context, error: FilaError) -> NoReturn:
    """End the call with the error's status, its text and its reason."""
    await context.abort(
        STATUS[error.reason], error.message, trailing_metadata=((REASON_KEY, error.reason),)
    )


class KeyCheck(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # only in the stubs
    """Lets calls in that carry a valid key, and remembers the key while the call is under way."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        method = handler_call_details.method
        if not method.startswith(OPEN):
            authenticator = self._authenticator
            try:
                CALLER.set(authenticator.caller(handler_call_details.invocation_metadata))
            except Unauthenticated as error:
                authenticator.refusals.tell(method, error)
                return _refusal(error)
        return await continuation(handler_call_details)


def _refusal(error: FilaError) -> grpc.RpcMethodHandler[Any, Any]:
    """Return a handler that refuses a call of any kind.

    It takes a stream of requests, because only such a handler runs before a request is read.
    """

    async def run(requests: Any, context: Context) -> None:
        await refuse(context, error)

    return grpc.stream_stream_rpc_method_handler(run)
