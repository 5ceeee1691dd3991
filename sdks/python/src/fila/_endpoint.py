# SPDX-License-Identifier: AGPL-3.0-only
"""What both kinds of client share of a connection: how its channel is set up, and what failures
mean. It makes no calls; `_connection.py` does.

What a channel is made of may change while the client lives: files of certificates are replaced,
names get other numbers. Then another channel takes its place; calls and streams of the former one
go on, and when the last of them has ended nobody holds it any more, and it is closed.
"""

import os
import random
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message as ProtobufMessage

from fila import errors
from fila._address import Addresses, Target
from fila._key import AsyncApiKey, KeyRing
from fila._link import Link
from fila._tls import Certificates, Material
from fila._version import __version__
from fila.errors import ClientClosedError, DeadlineExceededError, FilaError, UnavailableError
from fila.options import Backoff, ConnectionEvent, TlsOptions

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 5.0
# The broker keeps single payloads below 4 MiB; frames and pages hold many of them.
DEFAULT_MESSAGE_BYTES_MAX = 64 * 1024 * 1024

# Below the 60 s after which NAT tables and load balancers forget idle connections, and above the
# interval from which the broker takes pings for a flood.
_KEEPALIVE_TIME_MS = 20_000
# With the above, a silent peer is noticed before a default lease of 30 s ends.
_KEEPALIVE_TIMEOUT_MS = 5_000
# The time limit of one attempt to connect, TLS handshake included. gRPC calls it a minimum backoff.
_CONNECT_TIMEOUT_MS = 5_000
# How often calls look whether what a channel is made of has changed. A look is a few system calls.
LOOK_S = 1.0

_REASON_TRAILER = "fila-reason"


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One unary call that is ready to be sent, and how to read its answer."""

    method: str
    request: ProtobufMessage
    response: type[ProtobufMessage]
    read: Callable[[Any], T]
    # What an error should name.
    queue: str | None = None
    message_id: str | None = None


class Retry:
    """When, within one call's deadline, to send again what may be sent again."""

    def __init__(self, backoff: Backoff, timeout: float) -> None:
        self._backoff = backoff
        self._deadline = time.monotonic() + timeout
        self._attempts = 0

    @property
    def remaining(self) -> float:
        return self._deadline - time.monotonic()

    def pause(self) -> float | None:
        """How long to wait before the next attempt; None when the deadline would pass first."""
        delay = self._backoff.delay(self._attempts, random.random())
        self._attempts += 1
        return delay if delay < self.remaining else None


class Route(NamedTuple):
    """What a channel is made of."""

    target: str
    material: Material | None


class Line:
    """One channel and the calls that it can make."""

    def __init__(self, channel: Any, route: Route) -> None:
        self.channel = channel
        self.route = route
        self.stubs: dict[str, Any] = {}

    def stub(self, method: str, response: Any) -> Any:
        """The unary call of a method; `response` has `FromString`."""
        stub = self.channel.unary_unary(method, None, response.FromString)
        self.stubs[method] = stub
        return stub

    def stream(self, method: str, response: Any) -> Any:
        """A call that gives a stream of answers."""
        return self.channel.unary_stream(method, None, response.FromString)


class Endpoint:
    """A broker's address with everything that calls to it have in common."""

    def __init__(
        self,
        target: Target,
        *,
        tls: TlsOptions | None,
        api_key: AsyncApiKey | None,
        timeout: float,
        max_message_bytes: int,
        backoff: Backoff,
        interceptors: Sequence[Any],
        on_connection: Callable[[ConnectionEvent], object] | None,
    ) -> None:
        if timeout <= 0:
            raise ValueError(f"timeout must be positive, got {timeout}")
        self._addresses = Addresses(target)
        if self._addresses.are_several and tls is not None and tls.server_name is None:
            # gRPC's core holds all addresses of a channel to one name.
            raise ValueError("several addresses with tls need a server_name that all of them have")
        self.target = self._addresses.text
        self.timeout = timeout
        self.backoff = backoff
        self.closing = False  # takes no more calls
        self.closed = False  # and answers none
        self.is_forked = False
        self.has_workers = False
        self.readers: set[Any] = set()  # of consumers and workers, while they read
        self.has_grants = True  # see _grants
        self.link = Link(self.target, on_connection)
        self.options = _channel_options(tls, max_message_bytes, backoff)
        self._interceptors = list(interceptors)
        self._certificates = None if tls is None else Certificates(tls)
        # Whether waiting on one channel could be waiting for the wrong one.
        self.may_change = self._addresses.are_several or bool(
            self._certificates and self._certificates.may_change
        )
        self._line: Line | None = None
        self._lines: weakref.WeakSet[Line] = weakref.WeakSet()  # that are in use
        self._looks_at = 0.0
        self._keys = KeyRing(api_key)
        _ENDPOINTS.add(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target!r})"

    def check_open(self) -> None:
        """Whether a call may begin."""
        if self.closing:
            raise self.closed_error()

    def check_not_closed(self) -> None:
        """Whether a call that has begun may go on."""
        if self.closed:
            raise self.closed_error()

    def closed_error(
        self, queue: str | None = None, message_id: str | None = None
    ) -> ClientClosedError:
        text = _FORKED if self.is_forked else ""
        return ClientClosedError(text, queue=queue, message_id=message_id)

    def forked(self) -> None:
        """This is a child process now: gRPC's threads and ours stayed with the parent."""
        self.closing = self.closed = self.is_forked = True
        for reader in self.readers:
            reader.is_closed = True

    def check_not_forked(self) -> None:
        if self.is_forked:
            raise self.closed_error()

    def check_time(self, timeout: float) -> None:
        # gRPC sends such a request, and with luck gets an answer.
        if timeout <= 0:
            text = "the deadline passed before the request was sent"
            raise DeadlineExceededError(text, code="DEADLINE_EXCEEDED")

    def seconds(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else timeout

    def _needs_look(self) -> bool:
        """Whether it is time to see if what a channel is made of has changed."""
        if self._line is None:
            return True
        return self.may_change and time.monotonic() >= self._looks_at

    def _put_off_look(self) -> None:
        self._looks_at = time.monotonic() + LOOK_S

    def _needs_names(self) -> bool:
        """Whether names have to be looked up, which blocks. Those of a good connection have not."""
        return self._addresses.are_several and not (self._line and self.link.is_up)

    def _names(self) -> str:
        """The target, with names looked up where that is needed."""
        try:
            return self._addresses.target()
        except UnavailableError as error:
            self.link.failed(self.link.losses, error.message)
            raise

    def _look(self, target: str | None) -> Line:
        """The channel to use from now on: another one if the target or a certificate is another."""
        self._put_off_look()
        line = self._line
        material = None if self._certificates is None else self._certificates.refresh()
        if target is None:
            target = line.route.target if line else self._names()
        route = Route(target, material)
        if line is None or line.route != route:
            line = self._line = Line(self._open(route), route)
            self._lines.add(line)
            self.check_not_closed()  # by somebody who did not see this one
        return line

    def _open(self, route: Route) -> Any:
        raise NotImplementedError

    def failure(
        self,
        error: grpc.RpcError,
        queue: str | None = None,
        message_id: str | None = None,
        losses: int | None = None,
    ) -> FilaError:
        """What a failed call means. Its cause is kept, unless the peer's text holds the API key.

        `losses` is the number of losses when the call began; the link learns of its failure.
        """
        if self.closed:
            return self.closed_error(queue, message_id)
        text, is_secret = self._keys.redacted(error.details() or "")
        # Pairs in both of gRPC's APIs, which its type stubs do not know.
        trailers: Any = error.trailing_metadata() or ()
        reason = next((value for key, value in trailers if key == _REASON_TRAILER), None)
        if losses is not None:
            if reason is not None:
                self.link.answered(losses)
            elif error.code() is grpc.StatusCode.UNAVAILABLE:
                self.link.failed(losses, text)
        failure = errors.from_status(
            error.code().name, reason, text, queue=queue, message_id=message_id
        )
        failure.__cause__ = None if is_secret else error
        return failure


_FORKED = "the client was created in another process; create it after the fork"
_ENDPOINTS: weakref.WeakSet[Endpoint] = weakref.WeakSet()


def _after_fork() -> None:
    for endpoint in list(_ENDPOINTS):
        endpoint.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def credentials_of(material: Material) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=material.ca,
        private_key=material.key,
        certificate_chain=material.cert,
    )


def _channel_options(
    tls: TlsOptions | None, max_message_bytes: int, backoff: Backoff
) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.primary_user_agent", f"fila-python/{__version__}"),
        # Otherwise a new client inherits the connection backoff of another one in the process.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", _KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        # Without it a frozen peer goes unnoticed for a minute, whatever the two above say.
        ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # An idle stream carries no data, and by default pings stop after two without any.
        ("grpc.http2.max_pings_without_data", 0),
        # What is sent again is decided in this package, which knows what may be.
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", round(backoff.initial * 1000)),
        ("grpc.max_reconnect_backoff_ms", round(backoff.maximum * 1000)),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),
    ]
    if tls is not None and tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options
