# SPDX-License-Identifier: AGPL-3.0-only
"""gRPC's reflection service, for tools that learn the contract from the broker.

The answers are grpcio's own. What comes in is decoded here, so that bytes that are no request get a
status and no traceback.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha import reflection_pb2 as pb

from fila_server.errors import MessageTooLarge, Overloaded
from fila_server.limits import REFLECTION_REQUEST_BYTES, REFLECTION_STREAMS_MAX
from fila_server.rpc.method import decoded
from fila_server.transport.grpcio.refusal import Context
from fila_server.transport.grpcio.rim import guard

SERVICE = reflection.SERVICE_NAME


class Reflection:
    """Streams of questions about the contract."""

    def __init__(self, services: Iterable[str]) -> None:
        self._servicer: Any = reflection.aio.ReflectionServicer(services)
        self._streams = 0

    async def info(self, bodies: AsyncIterator[bytes], context: Context) -> None:
        await guard("ServerReflectionInfo", context, self._answer(bodies, context))

    async def _answer(self, bodies: AsyncIterator[bytes], context: Context) -> None:
        if self._streams >= REFLECTION_STREAMS_MAX:
            raise Overloaded(
                f"{REFLECTION_STREAMS_MAX} reflection streams are open already; try again later"
            )
        self._streams += 1
        try:
            async for answer in self._servicer.ServerReflectionInfo(_requests(bodies), context):
                await context.write(answer)
        finally:
            self._streams -= 1


async def _requests(bodies: AsyncIterator[bytes]) -> AsyncIterator[pb.ServerReflectionRequest]:
    async for body in bodies:
        if len(body) > REFLECTION_REQUEST_BYTES:
            raise MessageTooLarge(
                f"a reflection request of {len(body)} bytes exceeds {REFLECTION_REQUEST_BYTES}"
            )
        yield decoded(pb.ServerReflectionRequest.FromString, body)


def handlers(services: Iterable[str]) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the reflection service as gRPC registers it; it shows itself too."""
    handler = grpc.stream_stream_rpc_method_handler(
        Reflection((*services, SERVICE)).info,
        response_serializer=pb.ServerReflectionResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(SERVICE, {"ServerReflectionInfo": handler})
