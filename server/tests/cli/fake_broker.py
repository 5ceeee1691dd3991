# SPDX-License-Identifier: AGPL-3.0-only
"""A broker that answers as a test tells it: real gRPC over loopback, for what a real one cannot be
made to say at will. It notes the name of every call."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from fila.v1 import admin_pb2, service_pb2

Answer = Callable[[Any], Any]


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, answers: Mapping[str, Answer], calls: list[str]) -> None:
        self._answers = answers
        self._calls = calls
        self._methods = {
            f"/{service.full_name}/{method.name}": method
            for file in (service_pb2, admin_pb2)
            for service in file.DESCRIPTOR.services_by_name.values()
            for method in service.methods
        }

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = self._methods[details.method]
        answer = self._answers.get(method.name)
        if answer is None:
            return None

        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            self._calls.append(method.name)
            return answer(request)

        return grpc.unary_unary_rpc_method_handler(
            handle,
            method.input_type._concrete_class.FromString,
            method.output_type._concrete_class.SerializeToString,
        )


@contextmanager
def fake_broker(answers: Mapping[str, Answer]) -> Iterator[tuple[str, list[str]]]:
    """Yields the address and the calls so far; a call without an answer is UNIMPLEMENTED."""
    calls: list[str] = []
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((_Handler(answers, calls),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", calls
    finally:
        server.stop(None).wait()
