# SPDX-License-Identifier: AGPL-3.0-only
"""gRPC's health service: whether the broker serves, for probes and load balancers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2 as pb

from fila_server.errors import Overloaded
from fila_server.limits import WATCHES_MAX
from fila_server.rpc.method import Method, streaming
from fila_server.transport.grpcio.rim import GrpcioCall

SERVICE = pb.DESCRIPTOR.services_by_name["Health"].full_name


class Health:
    """The status of all services, which is one and the same."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(("", *services))
        self._status = pb.HealthCheckResponse.NOT_SERVING
        self._changed = asyncio.Event()
        self._watches = 0

    def set(self, is_serving: bool) -> None:
        answer = pb.HealthCheckResponse
        self._status = answer.SERVING if is_serving else answer.NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    async def check(self, request: pb.HealthCheckRequest, call: GrpcioCall) -> Any:
        if request.service not in self._services:
            await call.context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return pb.HealthCheckResponse(status=self._status)

    async def list(self, request: pb.HealthListRequest, call: GrpcioCall) -> Any:
        statuses = {name: pb.HealthCheckResponse(status=self._status) for name in self._services}
        return pb.HealthListResponse(statuses=statuses)

    async def watch(self, request: pb.HealthCheckRequest, call: GrpcioCall) -> None:
        """Write the status, and again whenever it changes."""
        if self._watches >= WATCHES_MAX:
            raise Overloaded(f"{WATCHES_MAX} watches are open already; use Check")
        is_known = request.service in self._services
        self._watches += 1
        try:
            while True:
                changed = self._changed
                status = self._status if is_known else pb.HealthCheckResponse.SERVICE_UNKNOWN
                await call.write(pb.HealthCheckResponse(status=status).SerializeToString())
                await changed.wait()
        finally:
            self._watches -= 1


def methods(health: Health) -> list[Method]:
    """Return the health service."""
    decode = pb.HealthCheckRequest.FromString
    path = f"/{SERVICE}/"
    return [
        Method(path + "Check", health.check, decode),
        Method(path + "List", health.list, pb.HealthListRequest.FromString),
        streaming(path + "Watch", health.watch, decode),
    ]
