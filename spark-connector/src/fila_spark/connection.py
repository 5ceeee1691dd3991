# SPDX-License-Identifier: AGPL-3.0-only
"""Clients of the broker: one per process and set of options, and what to do when calls fail.

Spark forks its Python workers and uses them for many partitions, so a client is made where it is
needed, never carried in a pickled object, and kept for the next one that needs it.
"""

import random
import time
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import fila
from fila_spark.options import Connection, OptionError

T = TypeVar("T")

_BACKOFF = fila.Backoff(initial=0.1, maximum=5.0)


@lru_cache(maxsize=16)
def client_of(connection: Connection) -> fila.Client:
    """The process's client for these options. Raises OptionError where they cannot work."""
    return fila.Client(
        connection.address,
        tls=connection.tls_options(),
        api_key=connection.api_key(),
        timeout=connection.timeout_ms / 1000,
    )


class Patience:
    """How long to go on trying one thing: pauses that double, each a random part of its ceiling."""

    def __init__(self, connection: Connection) -> None:
        self._deadline = time.monotonic() + connection.retry_for_ms / 1000
        self.retries = 0

    def pause(self) -> bool:
        """Waits before the next try. False, at once, when the time for trying is over."""
        delay = _BACKOFF.delay(self.retries, random.random())
        if time.monotonic() + delay > self._deadline:
            return False
        self.retries += 1
        time.sleep(delay)
        return True


def is_passing(error: fila.FilaError) -> bool:
    """Whether the same request may well succeed later.

    Nothing here cancels a call, so one that was cancelled met a broker that was going away.
    """
    return error.retryable or isinstance(error, fila.CancelledError)


def patiently(connection: Connection, call: Callable[[], T]) -> T:
    """Makes a call that may be repeated, again and again while the broker is away or overloaded."""
    patience = Patience(connection)
    while True:
        try:
            return call()
        except fila.FilaError as error:
            if not is_passing(error) or not patience.pause():
                raise


def check_broker(connection: Connection, queue: str | None) -> None:
    """Tells apart, when Spark plans, what would otherwise fail in every task: which option is it?

    A key that may not look at a queue cannot be told whether it exists; then the first request of
    the Spark job tells.
    """
    try:
        client = client_of(connection)
    except ValueError as error:
        raise OptionError(_blamed(connection, error)) from None
    try:
        if queue is None:
            client.list_queues()
        else:
            client.stats(queue, max_keys=1)
    except fila.QueueNotFoundError:
        raise OptionError(f'option "queue": queue "{queue}" does not exist') from None
    except fila.UnauthenticatedError:
        name = "apiKeyFile" if connection.api_key_file else "apiKeySecret"
        raise OptionError(f'option "{name}": the broker does not accept the API key') from None
    except (fila.UnavailableError, fila.DeadlineExceededError) as error:
        raise OptionError(
            f'option "address": no answer from "{connection.address}": {error.message}'
        ) from None
    except fila.PermissionDeniedError:
        pass


def _blamed(connection: Connection, error: ValueError) -> str:
    if isinstance(error, OptionError):
        return str(error)
    text = str(error)
    if text.startswith("api_key"):
        name = "apiKeyFile" if connection.api_key_file else "apiKeySecret"
        return f'option "{name}": {text}'
    for field, name in (
        ("tls ca ", "tlsCaFile"),
        ("tls cert ", "tlsCertFile"),
        ("tls key ", "tlsKeyFile"),
    ):
        if field in text:
            return f'option "{name}": {text}'
    return f'option "address": {text}'
