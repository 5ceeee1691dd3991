# SPDX-License-Identifier: AGPL-3.0-only
# ruff: noqa: ASYNC109 - a deadline travels with the request, so it is an argument
"""The calls that programs begin with: is the broker there, and is the queue? For both clients.

What is asked, and what follows from the answers, is in generators that know no I/O; the clients
send what they yield and throw into them what that failed with.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Unpack

import fila
from fila import tracing
from fila._connection import AsyncConnection, Connection
from fila._endpoint import Call, Retry
from fila.errors import (
    DeadlineExceededError,
    FilaError,
    QueueAlreadyExistsError,
    QueueNotFoundError,
    UnavailableError,
)

if TYPE_CHECKING:
    import fila.admin
    from fila.admin import QueueSettings

DEFAULT_READY_TIMEOUT_S = 30.0

# gRPC's health service. Its request is empty, for the server as a whole; its answer is one enum.
_CHECK = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"
# Of a setting's value that an error shows; scripts may be long.
_SHOWN_CHARS = 60


class _Status:
    """The answer of a health check, as bytes."""

    FromString = staticmethod(bytes)


def _check_serving(answer: bytes) -> None:
    if answer != _SERVING:
        raise UnavailableError("the broker is not serving", code="UNAVAILABLE")


class _Readiness:
    """How long to go on asking, and what the last attempt said."""

    def __init__(self, connection: Connection | AsyncConnection, timeout: float) -> None:
        self._timeout = timeout
        self._ping_timeout = connection.timeout
        self._retry = Retry(connection.backoff, timeout)

    def ping_timeout(self) -> float:
        return min(self._ping_timeout, self._retry.remaining)

    def pause(self, error: FilaError) -> float:
        """How long to wait after a failure; raises at the end."""
        pause = self._retry.pause()
        if pause is None:
            text = f"the broker was not ready within {self._timeout:g} s: {error.message}"
            raise DeadlineExceededError(text, code="DEADLINE_EXCEEDED") from error
        return pause


def _ensured(name: str, settings: QueueSettings) -> Generator[Call[Any], Any, str]:
    for is_last in (False, True):
        try:
            return str((yield fila.admin.create_queue(name, settings)))
        except QueueAlreadyExistsError:
            pass
        try:
            config = (yield fila.admin.stats(name, 1)).config
        except QueueNotFoundError:  # it was deleted in between
            if is_last:
                raise
            continue
        _check_same(name, settings, config)
        break
    return f"{name}.dlq"  # as the contract names it


def _check_same(name: str, settings: QueueSettings, config: Any) -> None:
    different = [
        f"{setting} is {_shown(getattr(config, setting))}, not {_shown(wanted)}"
        for setting, wanted in settings.items()
        if getattr(config, setting) != wanted
    ]
    if different:
        text = (
            f'queue "{name}" exists with other settings: {"; ".join(different)}; '
            "update_queue changes them"
        )
        reason = "QUEUE_ALREADY_EXISTS"
        raise QueueAlreadyExistsError(text, code="ALREADY_EXISTS", reason=reason, queue=name)


def _shown(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


class ReadyCalls:
    """How a blocking client begins."""

    _connection: Connection

    def ping(self, *, timeout: float | None = None) -> float:
        """Asks the broker whether it serves, and returns how many seconds the answer took.

        Raises UnavailableError if it does not. Needs no permission.
        """
        connection = self._connection
        connection.check_open()
        began = time.monotonic()
        seconds = connection.seconds(timeout)
        _check_serving(connection.send(_CHECK, b"", _Status, seconds, tracing.current()))
        return time.monotonic() - began

    def wait_ready(self, timeout: float = DEFAULT_READY_TIMEOUT_S) -> None:
        """Returns when the broker serves: for tests, and scripts that start beside it.

        Consumers and workers wait by themselves. Raises DeadlineExceededError, with the last
        failure's text, when that takes longer than `timeout` seconds.
        """
        readiness = _Readiness(self._connection, timeout)
        while True:
            try:
                self.ping(timeout=readiness.ping_timeout())
                return
            except (UnavailableError, DeadlineExceededError) as error:
                pause = readiness.pause(error)
            self._connection.pause(pause)

    def ensure_queue(
        self, name: str, *, timeout: float | None = None, **settings: Unpack[QueueSettings]
    ) -> str:
        """Creates a queue if there is none, and returns its dead-letter queue's name.

        Never changes one: raises QueueAlreadyExistsError, which names the differences, if it has
        other settings than those given. What is not given is not compared.
        """
        retry = Retry(self._connection.backoff, self._connection.seconds(timeout))
        steps = _ensured(name, settings)
        call = next(steps)
        try:
            while True:
                try:
                    answer = self._connection.call(call, retry.remaining)
                except FilaError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(answer)
        except StopIteration as end:
            return str(end.value)


class AsyncReadyCalls:
    """How an awaiting client begins."""

    _connection: AsyncConnection

    async def ping(self, *, timeout: float | None = None) -> float:
        """Asks the broker whether it serves, and returns how many seconds the answer took.

        Raises UnavailableError if it does not. Needs no permission.
        """
        connection = self._connection
        connection.check_open()
        began = time.monotonic()
        seconds = connection.seconds(timeout)
        _check_serving(await connection.send(_CHECK, b"", _Status, seconds, tracing.current()))
        return time.monotonic() - began

    async def wait_ready(self, timeout: float = DEFAULT_READY_TIMEOUT_S) -> None:
        """Returns when the broker serves: for tests, and scripts that start beside it.

        Consumers and workers wait by themselves. Raises DeadlineExceededError, with the last
        failure's text, when that takes longer than `timeout` seconds.
        """
        readiness = _Readiness(self._connection, timeout)
        while True:
            try:
                await self.ping(timeout=readiness.ping_timeout())
                return
            except (UnavailableError, DeadlineExceededError) as error:
                pause = readiness.pause(error)
            await self._connection.pause(pause)

    async def ensure_queue(
        self, name: str, *, timeout: float | None = None, **settings: Unpack[QueueSettings]
    ) -> str:
        """Creates a queue if there is none, and returns its dead-letter queue's name.

        Never changes one: raises QueueAlreadyExistsError, which names the differences, if it has
        other settings than those given. What is not given is not compared.
        """
        retry = Retry(self._connection.backoff, self._connection.seconds(timeout))
        steps = _ensured(name, settings)
        call = next(steps)
        try:
            while True:
                try:
                    answer = await self._connection.call(call, retry.remaining)
                except FilaError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(answer)
        except StopIteration as end:
            return str(end.value)
