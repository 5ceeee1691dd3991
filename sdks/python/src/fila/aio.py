# SPDX-License-Identifier: AGPL-3.0-only
# ruff: noqa: ASYNC109 - a deadline travels with the request, so it is an argument
"""The awaiting client: `client.py` with `await`. What is not I/O is shared with it, in the modules
below; a test compares the two method by method."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import fila
from fila import _wire, tracing
from fila._address import DEFAULT_TARGET, Target
from fila._bulk import send_many_async
from fila._calls import (
    DEFAULT_BUFFERED_BYTES_MAX,
    DEFAULT_CLOSE_TIMEOUT_S,
    AsyncCalls,
    not_flushed,
)
from fila._connection import AsyncConnection
from fila._endpoint import DEFAULT_MESSAGE_BYTES_MAX, DEFAULT_TIMEOUT_S, Call
from fila._key import AsyncApiKey
from fila._leases import AsyncKeeper
from fila._reader import AsyncReader
from fila.consumer import DEFAULT_BATCH_SIZE, DEFAULT_IN_FLIGHT_MAX, AsyncConsumer
from fila.message import AsyncConsumeMessage, BytesLike, EnqueueMessage, EnqueueResult
from fila.options import DEFAULT_CONCURRENCY, DEFAULT_GRACE_S, Backoff, ConnectionEvent, TlsOptions
from fila.ready import AsyncReadyCalls
from fila.settle import AsyncSettleCalls
from fila.v1 import service_pb2

if TYPE_CHECKING:
    from grpc.aio import ClientInterceptor

    import fila.access
    import fila.admin
    import fila.backup
    import fila.config
    import fila.status
    import fila.worker
    from fila.access import Acl, AclEntry, ApiKeyInfo, NewApiKey
    from fila.admin import QueueSettings
    from fila.backup import BackupProgress
    from fila.findings import DeletedQueue, Explanation, PeekPage, ThrottlePage
    from fila.queues import QueueConfig, QueueInfo
    from fila.stats import QueueStats
    from fila.status import BrokerStatus
    from fila.worker import AsyncWorker, WorkerEvent


class AsyncClient(AsyncSettleCalls, AsyncReadyCalls):
    """A connection to a broker for programs that await.

    Safe to share among the tasks of one event loop, the one that runs at its first call: concurrent
    calls travel in shared batches. Not across a fork: create it in the child. `timeout` is the
    deadline in seconds of every request, and `timeout=` of a method overrides it for one call;
    streams have none. Single calls hold at most `max_buffered_bytes` at a time: one more waits
    until there is room.

    `target` is host:port, or several of one cluster (a list, or a text with commas), which are
    tried in order. `api_key` may be a function, plain or async: it is asked for each call and
    stream, and must be quick. `interceptors` are those of `grpc.aio`. `on_connection`, a plain
    function, is called with a ConnectionEvent once for each change, and must be quick, too.
    """

    def __init__(
        self,
        target: Target = DEFAULT_TARGET,
        *,
        tls: TlsOptions | None = None,
        api_key: AsyncApiKey | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        max_message_bytes: int = DEFAULT_MESSAGE_BYTES_MAX,
        max_buffered_bytes: int = DEFAULT_BUFFERED_BYTES_MAX,
        close_timeout: float = DEFAULT_CLOSE_TIMEOUT_S,
        backoff: Backoff = Backoff(),  # noqa: B008 - frozen
        interceptors: Sequence[ClientInterceptor] = (),
        on_connection: Callable[[ConnectionEvent], object] | None = None,
    ) -> None:
        self._connection = AsyncConnection(
            target,
            tls=tls,
            api_key=api_key,
            timeout=timeout,
            max_message_bytes=max_message_bytes,
            backoff=backoff,
            interceptors=interceptors,
            on_connection=on_connection,
        )
        self._calls = AsyncCalls(self._connection, max_buffered_bytes)
        self._close_timeout = close_timeout
        self._keeper = AsyncKeeper(self._connection)

    def __repr__(self) -> str:
        return f"AsyncClient({self._connection.target!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def flush(self, timeout: float | None = None) -> None:
        """Returns when every enqueue, ack, nack and extension begun before has been answered.

        Whatever the answers are. Raises DeadlineExceededError when that takes longer than
        `timeout`, which is the client's unless given.
        """
        self._connection.check_open()
        if not await self._calls.flush(self._connection.seconds(timeout)):
            raise not_flushed()

    async def close(self) -> None:
        """Takes no more calls, ends consumers, and lets what was promised be answered.

        That is for up to `close_timeout` seconds; what is left then is cut off. Afterwards every
        call raises ClientClosedError. Harmless twice, and in a signal handler.
        """
        self._connection.closing = True
        await AsyncReader.close_all(list(self._connection.readers))
        if not self._connection.closed:
            await self._calls.flush(self._close_timeout)
        self._keeper.close()
        await self._connection.close()
        self._calls.close()

    # --- Produce ----------------------------------------------------------------------------------

    async def enqueue(
        self,
        queue: str,
        headers: Mapping[str, str] | None = None,
        payload: BytesLike = b"",
        *,
        text: str | None = None,
        json: Any = ...,
        fairness_key: str | None = None,
        weight: int | None = None,
        throttle_keys: Iterable[str] = (),
        throttle_cost: int | None = None,
        delay_ms: int | None = None,
        deliver_at: datetime | None = None,
        ttl_ms: int | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
    ) -> str:
        """Stores one message and returns its id. `text` or `json` may stand for the payload.

        UnavailableError, DeadlineExceededError and StorageFailedError leave open whether it was
        stored. With an idempotency key it is sent again while the broker is away, up to the
        deadline.
        """
        message = EnqueueMessage(
            queue,
            headers,
            payload,
            fairness_key,
            weight,
            throttle_keys,
            throttle_cost,
            delay_ms,
            deliver_at,
            ttl_ms,
            idempotency_key,
            text,
            json,
        )
        result = await self._calls.send(
            self._calls.enqueues,
            lambda: _wire.enqueue_item(message, tracing.current()),
            timeout,
        )
        return result.message_id

    async def enqueue_many(
        self, messages: Iterable[EnqueueMessage], *, timeout: float | None = None
    ) -> list[EnqueueResult]:
        """Stores many messages in order, possibly in several queues; one result per message.

        They travel in as few requests as fit, one after the other, each with its own deadline. A
        request that fails as a whole fails its messages and all that follow; it is sent again while
        the broker is away if all its messages have idempotency keys. A message that cannot be
        encoded raises TypeError or ValueError; requests before its own have been sent by then.
        """
        trace = tracing.current()
        items = (_wire.enqueue_item(message, trace) for message in messages)
        outcomes = await self._calls.see_through(
            lambda: send_many_async(self._connection, _wire.ENQUEUE, items, timeout)
        )
        return [
            outcome if isinstance(outcome, EnqueueResult) else EnqueueResult("", False, outcome)
            for outcome in outcomes
        ]

    # --- Consume ----------------------------------------------------------------------------------

    def consume(
        self,
        queue: str,
        *,
        max_in_flight: int = DEFAULT_IN_FLIGHT_MAX,
        batch_size: int = DEFAULT_BATCH_SIZE,
        visibility_timeout_ms: int | None = None,
        extend_leases: bool = True,
    ) -> AsyncConsumer:
        """Messages of a queue as they become ready, for as long as the consumer is open.

        At most `max_in_flight` are leased to it at a time, and they arrive at most `batch_size`
        together; an unknown queue is reported by the first iteration. Leases of what was not handed
        out yet are extended, unless `extend_leases` is false.
        """
        self._connection.check_open()
        request = _wire.consume_request(queue, max_in_flight, batch_size, visibility_timeout_ms)
        keeper = self._keeper if extend_leases else None
        return AsyncConsumer(self, AsyncReader(self._connection, keeper, queue, request))

    def worker(
        self,
        queue: str,
        handler: Callable[[Any], Awaitable[object]],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        batch_size: int | None = None,
        prefetch: int | None = None,
        visibility_timeout_ms: int | None = None,
        handler_timeout: float | None = None,
        grace: float = DEFAULT_GRACE_S,
        middleware: Sequence[Callable[[Any, Callable[[Any], Any]], Any]] = (),
        on_event: Callable[[WorkerEvent], object] | None = None,
    ) -> AsyncWorker:
        """Runs `handler` for messages of a queue, `concurrency` at a time, until it is stopped.

        A message is acked when its handler returns. When it raises, the message is nacked;
        `Backpressure` puts it off and `DeadLetter` gives it up. Leases are extended meanwhile. With
        `batch_size` the handler gets a list of what is there, up to so many. `handler_timeout` and
        `grace`, which handlers get to finish after a stop, are seconds.
        """
        options = fila.worker.Options(
            queue,
            handler,
            concurrency,
            batch_size,
            prefetch,
            visibility_timeout_ms,
            handler_timeout,
            grace,
            tuple(middleware),
            on_event,
        )
        self._connection.check_open()
        return fila.worker.AsyncWorker(self, options)

    async def receive(
        self,
        queue: str,
        max_messages: int = 1,
        *,
        wait_ms: int = 0,
        visibility_timeout_ms: int | None = None,
        timeout: float | None = None,
    ) -> list[AsyncConsumeMessage]:
        """Leases up to `max_messages`, waiting up to `wait_ms` for the first; may return none."""
        call: Call[list[AsyncConsumeMessage]] = Call(
            _wire.RECEIVE,
            _wire.receive_request(queue, max_messages, wait_ms, visibility_timeout_ms),
            service_pb2.ReceiveResponse,
            lambda response: [
                AsyncConsumeMessage(raw, self, len(response.messages)) for raw in response.messages
            ],
            queue,
        )
        # The broker may use all of the wait before it begins to answer.
        return await self._connection.call(call, wait_ms / 1000 + self._connection.seconds(timeout))

    # --- Queues -----------------------------------------------------------------------------------

    async def create_queue(
        self, name: str, *, timeout: float | None = None, **settings: Unpack[QueueSettings]
    ) -> str:
        """Creates a queue and its dead-letter queue, and returns the latter's name."""
        return await self._connection.call(fila.admin.create_queue(name, settings), timeout)

    async def update_queue(
        self, queue: str, *, timeout: float | None = None, **settings: Unpack[QueueSettings]
    ) -> QueueConfig:
        """Changes the settings that are named, and returns all of them."""
        return await self._connection.call(fila.admin.update_queue(queue, settings), timeout)

    async def delete_queue(
        self, queue: str, *, keep_dead_letters: bool = False, timeout: float | None = None
    ) -> DeletedQueue:
        """Removes a queue with everything in it and its dead letters; returns how many went."""
        call = fila.admin.delete_queue(queue, keep_dead_letters)
        return await self._connection.call(call, timeout)

    async def list_queues(self, *, timeout: float | None = None) -> list[QueueInfo]:
        """All queues by name."""
        return await self._connection.call(fila.admin.list_queues(), timeout)

    async def stats(
        self, queue: str, *, max_keys: int | None = None, timeout: float | None = None
    ) -> QueueStats:
        """Counts, scheduling state and settings of a queue, with its `max_keys` busiest keys."""
        return await self._connection.call(fila.admin.stats(queue, max_keys), timeout)

    async def status(self, *, timeout: float | None = None) -> BrokerStatus:
        """How the broker is doing, what is wrong with it, and what to do about it."""
        return await self._connection.call(fila.status.status(), timeout)

    async def peek(
        self,
        queue: str,
        limit: int = 10,
        *,
        from_position: int = 0,
        until_position: int = 0,
        fairness_key: str | None = None,
        state: str | None = None,
        exclude_payload: bool = False,
        timeout: float | None = None,
    ) -> PeekPage:
        """Shows messages without leasing them, oldest first; `state` is a MessageState."""
        call = fila.admin.peek(
            queue, limit, from_position, until_position, fairness_key, state, exclude_payload
        )
        return await self._connection.call(call, timeout)

    async def purge(
        self, queue: str, fairness_key: str | None = None, *, timeout: float | None = None
    ) -> int:
        """Drops pending and delayed messages, and returns how many."""
        return await self._connection.call(fila.admin.purge(queue, fairness_key), timeout)

    async def pause(
        self, queue: str, fairness_key: str | None = None, *, timeout: float | None = None
    ) -> None:
        """Stops deliveries from a queue, or from one fairness key of it; enqueueing goes on."""
        await self._connection.call(fila.admin.pause(queue, fairness_key), timeout)

    async def resume(
        self, queue: str, fairness_key: str | None = None, *, timeout: float | None = None
    ) -> None:
        """Starts deliveries again."""
        await self._connection.call(fila.admin.resume(queue, fairness_key), timeout)

    async def redrive(
        self,
        dlq: str,
        count: int | None = None,
        *,
        fairness_key: str | None = None,
        error_contains: str | None = None,
        message_ids: Iterable[str] = (),
        timeout: float | None = None,
    ) -> int:
        """Moves dead letters back to where they came from, oldest first, and returns how many."""
        call = fila.admin.redrive(dlq, count, fairness_key, error_contains, message_ids)
        return await self._connection.call(call, timeout)

    async def cancel(self, queue: str, message_id: str, *, timeout: float | None = None) -> None:
        """Drops one message; a leased one raises MessageLeasedError."""
        await self._connection.call(fila.admin.cancel(queue, message_id), timeout)

    async def explain(
        self,
        queue: str,
        *,
        fairness_key: str | None = None,
        message_id: str | None = None,
        timeout: float | None = None,
    ) -> Explanation:
        """Says why a message or a fairness key waits, and for how long."""
        call = fila.admin.explain(queue, fairness_key, message_id)
        return await self._connection.call(call, timeout)

    def backup(self, directory: str = "") -> AsyncIterator[BackupProgress]:
        """Copies the store to a directory of the broker's machine, verifies the copy, and yields
        how far it is.

        `directory` is inside the broker's `storage.backup_dir`, or relative to it. It begins when
        it is first asked for progress; closing the iterator gives it up.
        """
        return fila.backup.follow_async(self._connection, directory)

    # --- Throttle keys ----------------------------------------------------------------------------

    async def list_throttles(
        self,
        prefix: str = "",
        *,
        unset: bool = False,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> ThrottlePage:
        """Throttle keys that are configured or in use; `unset` shows those nobody configured."""
        return await self._connection.call(fila.admin.list_throttles(prefix, unset, limit), timeout)

    async def pause_throttle(
        self, key: str, duration_ms: int | None = None, *, timeout: float | None = None
    ) -> None:
        """Stops deliveries with a throttle key in all queues, for a time or until it is resumed."""
        await self._connection.call(fila.admin.pause_throttle(key, duration_ms), timeout)

    async def resume_throttle(self, key: str, *, timeout: float | None = None) -> None:
        """Starts deliveries with a throttle key again, whoever stopped them."""
        await self._connection.call(fila.admin.resume_throttle(key), timeout)

    # --- Runtime configuration --------------------------------------------------------------------

    async def set_config(self, key: str, value: str, *, timeout: float | None = None) -> None:
        """Sets one entry, in force at once; limits such as `throttle:<key>:rate` are entries.

        An empty value removes the entry.
        """
        await self._connection.call(fila.config.set_config(key, value), timeout)

    async def set_config_all(
        self, entries: Mapping[str, str], *, timeout: float | None = None
    ) -> None:
        """Sets several entries together, all or none; an empty value removes its entry."""
        await self._connection.call(fila.config.set_config_all(entries), timeout)

    async def get_config(self, key: str, *, timeout: float | None = None) -> str:
        """Reads one entry, or raises ConfigNotFoundError."""
        return await self._connection.call(fila.config.get_config(key), timeout)

    async def delete_config(self, key: str, *, timeout: float | None = None) -> None:
        """Removes one entry, and the limit that it set."""
        await self._connection.call(fila.config.delete_config(key), timeout)

    async def list_config(
        self, prefix: str = "", *, timeout: float | None = None
    ) -> dict[str, str]:
        """The entries whose keys start with `prefix`."""
        return await self._connection.call(fila.config.list_config(prefix), timeout)

    # --- API keys ---------------------------------------------------------------------------------

    async def create_api_key(
        self,
        name: str,
        acl: Iterable[AclEntry] = (),
        *,
        expires_at: datetime | None = None,
        superadmin: bool = False,
        timeout: float | None = None,
    ) -> NewApiKey:
        """Creates an API key and returns its secret, this once."""
        call = fila.access.create_api_key(name, acl, expires_at, superadmin)
        return await self._connection.call(call, timeout)

    async def revoke_api_key(self, key_id: str, *, timeout: float | None = None) -> None:
        """Makes an API key useless at once."""
        await self._connection.call(fila.access.revoke_api_key(key_id), timeout)

    async def list_api_keys(self, *, timeout: float | None = None) -> list[ApiKeyInfo]:
        """All API keys, without secrets."""
        return await self._connection.call(fila.access.list_api_keys(), timeout)

    async def set_acl(
        self, key_id: str, acl: Iterable[AclEntry], *, timeout: float | None = None
    ) -> None:
        """Replaces what an API key may do."""
        await self._connection.call(fila.access.set_acl(key_id, acl), timeout)

    async def get_acl(self, key_id: str, *, timeout: float | None = None) -> Acl:
        """Reads what an API key may do."""
        return await self._connection.call(fila.access.get_acl(key_id), timeout)
