# SPDX-License-Identifier: AGPL-3.0-only
"""The native edge as the transport.

Theory of operation. The edge has sockets, HTTP/2, TLS and limits on a thread of its own, without
the interpreter lock. It wakes the event loop once for all that has happened, and that is taken here
in one go. Calls about few messages each become few commands (`sharing`), every other call is a task
of its own (`calls`). Answers go back in batches, too.

An authorization is looked at before a body is read, once: the edge remembers those that were let
in. Every call is checked again when it is handled, so a key that is revoked or expires is refused
at once.
"""

from __future__ import annotations

import asyncio

import fila_edge
from fila_edge import CALL, GONE, HALF_CLOSED, KEY, MESSAGE, TAKEN

from fila_server.config import Config
from fila_server.errors import Unauthenticated
from fila_server.limits import (
    ARRIVAL_MS,
    CONCURRENT_STREAMS,
    REFLECTION_STREAMS_MAX,
    STREAM_REQUEST_BYTES,
    UNREAD_BYTES,
    WATCHES_MAX,
)
from fila_server.rpc.auth import HEADER, Authenticator
from fila_server.rpc.method import Kind, Metadata
from fila_server.runtime.engine import Engine
from fila_server.transport.address import listen
from fila_server.transport.edge import reflection
from fila_server.transport.edge.calls import Calls
from fila_server.transport.edge.refusal import code
from fila_server.transport.edge.sharing import Sharing
from fila_server.transport.served import Served
from fila_server.transport.tls import Certificates

# Events of one round. More wait for the next, behind what the loop has to do meanwhile.
_TAKEN_MAX = 1000
_KINDS = {
    Kind.UNARY: fila_edge.UNARY,
    Kind.STREAMING: fila_edge.SERVER_STREAM,
    Kind.BIDI: fila_edge.BIDI,
}
# What of a call's metadata somebody here looks at; the authorization stands first.
_METADATA = (HEADER, "traceparent", "tracestate")


class EdgeTransport:
    """Calls through the native edge. Everything here happens on the event loop's thread."""

    def __init__(
        self,
        served: Served,
        engine: Engine,
        authenticator: Authenticator | None,
        certificates: Certificates | None,
    ) -> None:
        self._served = served
        self._engine = engine
        self._authenticator = authenticator
        self._certificates = certificates
        self._methods = [method for _, methods in served.services for method in methods]

    async def listen(self, address: str) -> int:
        sockets = listen(address)
        port: int = sockets[0].getsockname()[1]
        config = self._served.config
        services = [name for name, _ in self._served.services]
        edge = self._edge = fila_edge.Edge(
            listeners=[one.detach() for one in sockets],
            routes=[(method.path, _KINDS[method.kind]) for method in self._methods],
            metadata=list(_METADATA),
            settings=_settings(config, self._served.max_connections),
            certificates=self._certificates,
            needs_key=self._authenticator is not None,
            services=services,
            reflection=reflection.answers(services) if config.server.reflection else None,
        )
        self._sharing = Sharing(self._methods, self._engine, edge, self._authenticator)
        self._calls = Calls(edge, self._authenticator, self._sharing)
        asyncio.get_running_loop().add_reader(edge.fileno(), self._take)
        return port

    def set_serving(self, is_serving: bool) -> None:
        self._edge.serving(is_serving)

    def reload(self, certificates: Certificates) -> None:
        self._edge.reload(certificates)

    async def stop(self, grace_s: float) -> None:
        self._edge.drain()
        await asyncio.gather(self._calls.finish(grace_s), self._sharing.finish(grace_s))
        asyncio.get_running_loop().remove_reader(self._edge.fileno())
        self._edge.close()

    def _take(self) -> None:
        """Take what has happened at the edge. This runs per call."""
        calls = self._calls
        sharing = self._sharing
        for event in self._edge.take(_TAKEN_MAX):
            kind = event[0]
            if kind == CALL:
                _, number, route, body, metadata = event
                method = self._methods[route]
                authorization = metadata[0]
                if body is None or not sharing.add(method, number, body, authorization):
                    calls.begin(number, method, body, authorization, _given(metadata))
            elif kind == MESSAGE:
                calls.message(event[1], event[2])
            elif kind == TAKEN:
                calls.taken(event[1])
            elif kind == GONE:
                calls.gone(event[1])
            elif kind == HALF_CLOSED:
                calls.message(event[1], None)
            elif kind == KEY:
                self._judge(event[1], event[2])
        sharing.hand_in()

    def _judge(self, authorization: str | None, path: str) -> None:
        """Say whether calls with an authorization may send their bodies."""
        authenticator = self._authenticator
        assert authenticator is not None
        try:
            authenticator.caller_with(authorization)
        except Unauthenticated as error:
            authenticator.refusals.tell(path, error)
            self._edge.reject(authorization, code(error), error.message, error.reason)
        else:
            self._edge.admit(authorization or "")


def _given(values: tuple[str | None, ...]) -> Metadata:
    return [
        (name, value) for name, value in zip(_METADATA, values, strict=True) if value is not None
    ]


def _settings(config: Config, max_connections: int) -> dict[str, int]:
    limits = config.limits
    return {
        "max_request_bytes": limits.max_request_bytes,
        "max_stream_request_bytes": STREAM_REQUEST_BYTES,
        "max_metadata_bytes": limits.max_metadata_bytes,
        "max_connections": max_connections,
        "max_concurrent_streams": CONCURRENT_STREAMS,
        "max_concurrent_calls": limits.max_concurrent_rpcs,
        "inbox_bytes": config.scheduler.inbox_bytes,
        "max_unread_bytes": UNREAD_BYTES,
        "handshake_timeout_ms": limits.handshake_timeout_ms,
        "arrival_timeout_ms": ARRIVAL_MS,
        "keepalive_time_ms": limits.keepalive_time_ms,
        "keepalive_timeout_ms": limits.keepalive_timeout_ms,
        "min_ping_interval_ms": limits.min_ping_interval_ms,
        "watches_max": WATCHES_MAX,
        "reflection_streams_max": REFLECTION_STREAMS_MAX,
    }
