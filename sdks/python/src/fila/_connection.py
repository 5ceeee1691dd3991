# SPDX-License-Identifier: AGPL-3.0-only
# ruff: noqa: ASYNC109 - a deadline travels with the request, so it is an argument
"""One gRPC channel: how it is set up, what every call carries, and what its failures mean.

`Endpoint` is what both kinds of client share; `Connection` blocks, `AsyncConnection` awaits.
Nothing here knows which calls exist or what they are for.
"""

import asyncio
import os
import random
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message as ProtobufMessage

from fila import errors, tracing
from fila._latch import Latch
from fila._version import __version__
from fila.errors import ClientClosedError, DeadlineExceededError, FilaError, UnavailableError
from fila.options import Backoff, TlsOptions

T = TypeVar("T")
Metadata = tuple[tuple[str, str], ...]

DEFAULT_TARGET = "127.0.0.1:5555"
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

_REASON_TRAILER = "fila-reason"
_REDACTED = "[redacted]"
_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:")


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


class Endpoint:
    """A broker's address with everything that calls to it have in common."""

    def __init__(
        self,
        target: str,
        *,
        tls: TlsOptions | None,
        api_key: str | None,
        timeout: float,
        max_message_bytes: int,
        backoff: Backoff,
    ) -> None:
        if timeout <= 0:
            raise ValueError(f"timeout must be positive, got {timeout}")
        self.target = _checked_target(target)
        self.timeout = timeout
        self.backoff = backoff
        self.closing = False  # takes no more calls
        self.closed = False  # and answers none
        self.is_forked = False
        self.has_workers = False
        self.readers: set[Any] = set()  # of consumers and workers, while they read
        self.has_grants = True  # see _grants
        self.credentials = None if tls is None else _credentials(tls)
        self.options = _channel_options(tls, max_message_bytes, backoff)
        self._api_key = _checked_api_key(api_key)
        self._metadata: Metadata = (
            () if api_key is None else (("authorization", f"Bearer {api_key}"),)
        )
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

    def metadata(self, trace: Mapping[str, str]) -> Metadata:
        """What travels beside a request: the API key and the trace context."""
        return (*self._metadata, *trace.items()) if trace else self._metadata

    def failure(
        self, error: grpc.RpcError, queue: str | None = None, message_id: str | None = None
    ) -> FilaError:
        """What a failed call means. Its cause is kept, unless the peer's text holds the API key."""
        if self.closed:
            return self.closed_error(queue, message_id)
        text = error.details() or ""
        is_secret = self._api_key is not None and self._api_key in text
        if is_secret:
            text = text.replace(str(self._api_key), _REDACTED)
        # Pairs in both of gRPC's APIs, which its type stubs do not know.
        trailers: Any = error.trailing_metadata() or ()
        reason = next((value for key, value in trailers if key == _REASON_TRAILER), None)
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


class Connection(Endpoint):
    """A channel for threads. Safe to share among them, and not to be carried over a fork."""

    def __init__(self, target: str, **settings: Any) -> None:
        super().__init__(target, **settings)
        self._cut = Latch()
        self._stubs: dict[str, Any] = {}
        if self.credentials is None:
            self._channel = grpc.insecure_channel(self.target, options=self.options)
        else:
            self._channel = grpc.secure_channel(self.target, self.credentials, options=self.options)

    def call(self, call: Call[T], timeout: float | None) -> T:
        """Sends one call and reads its answer. Raises what it failed with."""
        self.check_open()
        request = call.request.SerializeToString()
        try:
            response = self.send(
                call.method, request, call.response, self.seconds(timeout), tracing.current()
            )
        except FilaError as error:
            raise errors.about(error, call.queue, call.message_id) from error.__cause__
        return call.read(response)

    def send(
        self,
        method: str,
        request: bytes,
        response: type[ProtobufMessage],
        timeout: float,
        trace: Mapping[str, str],
    ) -> Any:
        """Sends one encoded request and waits for the answer."""
        self.check_not_closed()
        self.check_time(timeout)
        stub = self._stubs.get(method)
        if stub is None:
            stub = self._channel.unary_unary(method, None, response.FromString)
            self._stubs[method] = stub
        return self._guarded(lambda: stub(request, timeout=timeout, metadata=self.metadata(trace)))

    def _guarded(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except grpc.RpcError as error:
            failure = self.failure(error)
            raise failure from failure.__cause__
        except ValueError:
            # What gRPC says of a channel that was closed in the meantime.
            self.check_not_closed()
            raise

    def stream(
        self, method: str, request: bytes, response: type[ProtobufMessage], wait_for_ready: bool
    ) -> Any:
        """Opens a stream of answers, with no deadline; failures come from iterating it."""
        self.check_open()
        metadata = self.metadata(tracing.current())
        stub = self._channel.unary_stream(method, None, response.FromString)
        return self._guarded(
            lambda: stub(request, metadata=metadata, wait_for_ready=wait_for_ready)
        )

    def retrying(self, send: Callable[[float], T], is_repeatable: bool, timeout: float | None) -> T:
        """Calls `send` with the time that remains; again if the broker is away and it is safe."""
        retry = Retry(self.backoff, self.seconds(timeout))
        while True:
            try:
                return send(retry.remaining)
            except UnavailableError:
                pause = retry.pause() if is_repeatable else None
                if pause is None:
                    raise
            self.pause(pause)

    def pause(self, seconds: float) -> None:
        """Waits, unless the connection is closed."""
        self._cut.wait(seconds)

    def close(self) -> None:
        """Cuts off whatever is under way."""
        self.closing = self.closed = True
        self._cut.open()
        if not self.is_forked:
            self._channel.close()


class AsyncConnection(Endpoint):
    """A channel for one event loop: the one that runs when it is first used."""

    def __init__(self, target: str, **settings: Any) -> None:
        super().__init__(target, **settings)
        self._stubs: dict[str, Any] = {}
        self._channel: grpc.aio.Channel | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._cut = asyncio.Event()

    def _open_channel(self) -> "grpc.aio.Channel":
        # Not in the constructor: clients are often created before their loop runs.
        if self._channel is None:
            if self.credentials is None:
                self._channel = grpc.aio.insecure_channel(self.target, options=self.options)
            else:
                self._channel = grpc.aio.secure_channel(
                    self.target, self.credentials, options=self.options
                )
        return self._channel

    async def call(self, call: Call[T], timeout: float | None) -> T:
        """Sends one call and reads its answer. Raises what it failed with."""
        self.check_open()
        request = call.request.SerializeToString()
        try:
            response = await self.send(
                call.method, request, call.response, self.seconds(timeout), tracing.current()
            )
        except FilaError as error:
            raise errors.about(error, call.queue, call.message_id) from error.__cause__
        return call.read(response)

    async def send(
        self,
        method: str,
        request: bytes,
        response: type[ProtobufMessage],
        timeout: float,
        trace: Mapping[str, str],
    ) -> Any:
        """Sends one encoded request and waits for the answer."""
        self.check_not_closed()
        self.check_time(timeout)
        stub = self._stubs.get(method)
        if stub is None:
            stub = self._open_channel().unary_unary(method, None, response.FromString)
            self._stubs[method] = stub
        try:
            return await stub(request, timeout=timeout, metadata=self.metadata(trace))
        except grpc.RpcError as error:
            failure = self.failure(error)
            raise failure from failure.__cause__
        except asyncio.CancelledError:
            # gRPC says this too when the channel is closed; then nobody has cancelled the caller.
            task = asyncio.current_task()
            if self.closed and task is not None and not task.cancelling():
                raise self.closed_error() from None
            raise

    def stream(
        self, method: str, request: bytes, response: type[ProtobufMessage], wait_for_ready: bool
    ) -> Any:
        """Opens a stream of answers, with no deadline; failures come from reading it."""
        self.check_open()
        stub = self._open_channel().unary_stream(method, None, response.FromString)
        metadata = self.metadata(tracing.current())
        return stub(request, metadata=metadata, wait_for_ready=wait_for_ready)

    async def retrying(
        self, send: Callable[[float], Awaitable[T]], is_repeatable: bool, timeout: float | None
    ) -> T:
        """Calls `send` with the time that remains; again if the broker is away and it is safe."""
        retry = Retry(self.backoff, self.seconds(timeout))
        while True:
            try:
                return await send(retry.remaining)
            except UnavailableError:
                pause = retry.pause() if is_repeatable else None
                if pause is None:
                    raise
            await self.pause(pause)

    async def pause(self, seconds: float) -> None:
        """Waits, unless the connection is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._cut.wait()

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Runs something in the background. Closing cuts it short."""
        task = asyncio.get_running_loop().create_task(work)
        # The loop itself keeps only weak references.
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def close(self) -> None:
        """Cuts off whatever is under way."""
        self.closing = self.closed = True
        self._cut.set()
        if self._channel is not None and not self.is_forked:
            await self._channel.close(None)
        if self._background and not self.is_forked:
            await asyncio.wait(self._background)


def _checked_target(target: str) -> str:
    if not isinstance(target, str):
        raise TypeError(f"target must be str, not {type(target).__name__}")
    if target.startswith(_SCHEMES):
        return target
    # Without a port gRPC would quietly take 443, and a URL's scheme for a name to resolve.
    host, _, port = target.rpartition(":")
    is_host = bool(host) and "/" not in host and (":" not in host or host.startswith("["))
    if not is_host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f'target "{target}" is not host:port, for example "{DEFAULT_TARGET}"')
    return target


def _checked_api_key(api_key: str | None) -> str | None:
    # gRPC refuses other characters too, but with a text that repeats the key.
    if api_key is not None and not (api_key and all("!" <= char <= "~" for char in api_key)):
        raise ValueError("api_key must be printable ASCII without spaces, and not empty")
    return api_key


def _credentials(tls: TlsOptions) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=_pem("ca_file", tls.ca_file),
        private_key=_pem("key_file", tls.key_file),
        certificate_chain=_pem("cert_file", tls.cert_file),
    )


def _pem(option: str, path: str | os.PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        why = error.strerror or str(error)
        raise ValueError(f'cannot read tls {option} "{path}": {why.lower()}') from error
    # gRPC reports a file of another kind only in its own log, and then fails to connect.
    if b"-----BEGIN " not in content:
        raise ValueError(f'tls {option} "{path}" is not a PEM file')
    return content


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
