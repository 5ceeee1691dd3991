# SPDX-License-Identifier: AGPL-3.0-only
"""A gRPC server that writes down what arrives: method, metadata, time left, request.

`Wiretap` passes every call on to a real broker, byte for byte; scripted.py answers by itself. Both
stand where the broker would, so an SDK cannot tell. Pipelines are UNIMPLEMENTED here: a client
sends calls then, one by one to be looked at.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import grpc

from fila_conformance.admin import METHODS, as_json, channel_to, request_type
from fila_conformance.broker import Broker
from fila_conformance.ports import LOOPBACK, free_port

_MESSAGE_BYTES_MAX = 64 * 1024 * 1024
# Streams and calls that hang hold a thread each.
_THREADS_MAX = 64
# gRPC reports a call without a deadline as one of some hundred years.
_FOR_EVER_S = 1_000_000.0


class Answerer(Protocol):
    """Where the answers come from."""

    def unary(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes: ...

    def stream(
        self, method: str, request: bytes, context: grpc.ServicerContext
    ) -> Iterator[bytes]: ...


class RecordingServer(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """Serves the whole contract on a port of its own."""

    def __init__(
        self,
        answerer: Answerer,
        credentials: grpc.ServerCredentials | None = None,
        loopback: str = LOOPBACK,
    ) -> None:
        self._answerer = answerer
        self._lock = threading.Lock()
        self._calls: list[dict[str, Any]] = []
        self._under_way: Counter[str] = Counter()
        self._concurrent_max: Counter[str] = Counter()
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
            # Clients ping after 20 s of silence; by default gRPC takes that for a flood.
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
            ("grpc.keepalive_permit_without_calls", 1),
        ]
        self._server = grpc.server(ThreadPoolExecutor(_THREADS_MAX), [self], options=options)
        host = f"[{loopback}]" if ":" in loopback else loopback
        self.target = f"{host}:{free_port(loopback)}"
        if credentials is None:
            self._server.add_insecure_port(self.target)
        else:
            self._server.add_secure_port(self.target, credentials)
        self._server.start()

    def calls(self, method: str | None) -> list[dict[str, Any]]:
        """What arrived, in order; of one method, or of all."""
        with self._lock:
            return [call for call in self._calls if method in (None, call["method"])]

    def concurrent_max(self, method: str) -> int:
        """The most calls of a method that were under way at the same time."""
        with self._lock:
            return self._concurrent_max[method]

    def stop(self) -> None:
        self._server.stop(None).wait()

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = handler_call_details.method.rpartition("/")[2]
        if method not in METHODS or METHODS[method].client_streaming:
            return None

        def unary(request: bytes, context: grpc.ServicerContext) -> bytes:
            with self._recorded(method, request, context):
                return self._answerer.unary(method, request, context)

        def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            with self._recorded(method, request, context):
                yield from self._answerer.stream(method, request, context)

        if METHODS[method].server_streaming:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)

    @contextmanager
    def _recorded(
        self, method: str, request: bytes, context: grpc.ServicerContext
    ) -> Iterator[None]:
        left = context.time_remaining()
        has_deadline = left is not None and left < _FOR_EVER_S
        call = {
            "method": method,
            "metadata": {key: str(value) for key, value in context.invocation_metadata()},
            "deadline_ms": round(left * 1000) if has_deadline else None,
            "peer": context.peer(),
            "request": as_json(request_type(method).FromString(request)),
        }
        with self._lock:
            self._calls.append(call)
            self._under_way[method] += 1
            most = max(self._under_way[method], self._concurrent_max[method])
            self._concurrent_max[method] = most
        try:
            yield
        finally:
            with self._lock:
                self._under_way[method] -= 1


class Wiretap:
    """Passes calls on to a broker."""

    def __init__(self, broker: Broker) -> None:
        self._channel = channel_to(broker)

    def close(self) -> None:
        self._channel.close()

    def unary(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        stub = self._channel.unary_unary(_path(method), None, None)
        call = stub.future(request, timeout=_left(context), metadata=_metadata(context))
        context.add_callback(call.cancel)
        try:
            return bytes(call.result())
        except grpc.RpcError as error:
            _relay(error, context)
        except grpc.FutureCancelledError:
            context.abort(grpc.StatusCode.CANCELLED, "the caller left")
        raise AssertionError("abort raises")

    def stream(self, method: str, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        stub = self._channel.unary_stream(_path(method), None, None)
        call = stub(request, timeout=_left(context), metadata=_metadata(context))
        context.add_callback(call.cancel)
        try:
            yield from call
        except grpc.RpcError as error:
            _relay(error, context)


def _path(method: str) -> str:
    return f"/{METHODS[method].containing_service.full_name}/{method}"


def _left(context: grpc.ServicerContext) -> float | None:
    left = context.time_remaining()
    return left if left is not None and left < _FOR_EVER_S else None


def _metadata(context: grpc.ServicerContext) -> tuple[tuple[str, str], ...]:
    # The rest belongs to the connection, not to the call.
    return tuple(
        (key, str(value))
        for key, value in context.invocation_metadata()
        if key != "user-agent" and not key.startswith("grpc-")
    )


def _relay(error: Any, context: grpc.ServicerContext) -> None:
    trailers = error.trailing_metadata() or ()
    context.set_trailing_metadata(
        tuple((key, value) for key, value in trailers if key == "fila-reason")
    )
    context.abort(error.code(), error.details() or "")
