# SPDX-License-Identifier: AGPL-3.0-only
# ruff: noqa: ASYNC109 - a deadline travels with the request, so it is an argument
"""The calls of both clients that settle deliveries: one message, many, or a whole grant, which is
what one frame leased under one token."""

from collections.abc import Iterable
from datetime import datetime

from fila import _grants, _wire
from fila._bulk import ack_many, ack_many_async, send_many, send_many_async
from fila._calls import AsyncCalls, Calls
from fila._connection import AsyncConnection, Connection
from fila._grants import Settled
from fila._wire import Item
from fila.errors import FilaError
from fila.message import (
    AsyncConsumeMessage,
    ConsumeMessage,
    Message,
    note_extended,
    note_settled,
)


class SettleCalls:
    """How a blocking client settles."""

    _connection: Connection
    _calls: Calls

    def ack(
        self,
        queue: str,
        message_id: str,
        lease_token: str | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Reports that a leased message was processed; it is gone.

        Raises MessageNotFoundError when it is not leased, and LeaseExpiredError when the token is
        of an earlier delivery. With a token it is sent again while the broker is away, up to the
        deadline. Without one the message id alone decides, and it is never sent twice: after
        UnavailableError the message is gone, or comes back when its lease ends.
        """
        self._calls.send(
            self._calls.acks, lambda: _wire.ack_item(queue, message_id, lease_token), timeout
        )

    def ack_many(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[FilaError | None]:
        """Acks many messages; None or an error for each, in order.

        Those that came together, and are acked together, travel as one.
        """
        messages = list(messages)
        outcomes = self._calls.see_through(lambda: ack_many(self._connection, messages, timeout))
        if self._connection.has_workers:
            note_settled(messages, outcomes)
        return outcomes

    def _ack_message(self, message: ConsumeMessage) -> None:
        self._calls.send(self._calls.acks, lambda: _wire.ack_message_item(message), None)

    def nack(
        self,
        queue: str,
        message_id: str,
        error: str = "",
        lease_token: str | None = None,
        *,
        retry_after_ms: int | None = None,
        throttle_key: str | None = None,
        dead_letter: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Reports that processing failed: the message is retried or dead-lettered.

        With `retry_after_ms` it is backpressure, not failure: the message comes back after that
        time and no attempt is counted; `throttle_key` then lets nothing through until then, for
        anybody. `dead_letter` says that trying again would not help: it becomes a dead letter at
        once. Fails as `ack` does.
        """
        self._calls.send(
            self._calls.nacks,
            lambda: _wire.nack_item(
                queue, message_id, error, lease_token, retry_after_ms, throttle_key, dead_letter
            ),
            timeout,
        )

    def nack_many(
        self, messages: Iterable[Message], error: str = "", *, timeout: float | None = None
    ) -> list[FilaError | None]:
        """Nacks many messages; None or an error for each, in order."""
        messages = list(messages)
        items = (_wire.nack_item(m.queue, m.id, error, m.lease_token) for m in messages)
        outcomes = self._calls.see_through(
            lambda: send_many(self._connection, _wire.NACK, items, timeout)
        )
        if self._connection.has_workers:
            note_settled(messages, outcomes)
        return outcomes

    def extend(
        self,
        queue: str,
        message_id: str,
        lease_token: str | None = None,
        ms: int | None = None,
        *,
        timeout: float | None = None,
    ) -> datetime:
        """Prolongs a lease to `ms` from now, by default the queue's visibility timeout.

        Returns its new end. Fails as `ack` does.
        """
        return self._calls.send(
            self._calls.extensions,
            lambda: _wire.extend_item(queue, message_id, lease_token, ms),
            timeout,
        )

    def extend_many(
        self,
        messages: Iterable[Message],
        ms: int | None = None,
        *,
        timeout: float | None = None,
    ) -> list[datetime | FilaError]:
        """Prolongs the leases of many messages; each one's new end, or its error, in order."""
        messages = list(messages)
        items = (_wire.extend_item(m.queue, m.id, m.lease_token, ms) for m in messages)
        outcomes = self._calls.see_through(
            lambda: send_many(self._connection, _wire.EXTEND, items, timeout)
        )
        note_extended(messages, outcomes)
        return outcomes

    def ack_grant(
        self,
        queue: str,
        lease_token: str,
        *,
        except_message_ids: Iterable[str] = (),
        timeout: float | None = None,
    ) -> int:
        """Acks what is left of a grant: all messages that were delivered under one lease token.

        Those in `except_message_ids` are left alone. Returns how many were acked. Raises
        LeaseExpiredError when none is left of it.
        """
        item = _grants.ack_item(queue, lease_token, except_message_ids)
        return self._settle_grant(item, timeout).messages

    def nack_grant(
        self,
        queue: str,
        lease_token: str,
        error: str = "",
        *,
        retry_after_ms: int | None = None,
        throttle_key: str | None = None,
        dead_letter: bool = False,
        except_message_ids: Iterable[str] = (),
        timeout: float | None = None,
    ) -> int:
        """Nacks what is left of a grant, each message as `nack` would; returns how many.

        With `retry_after_ms=0` they are given back unseen: no attempt is counted, and each goes to
        the place that it had. Fails as `ack_grant` does.
        """
        item = _grants.nack_item(
            queue,
            lease_token,
            error,
            retry_after_ms,
            throttle_key,
            dead_letter,
            except_message_ids,
        )
        return self._settle_grant(item, timeout).messages

    def extend_grant(
        self,
        queue: str,
        lease_token: str,
        ms: int | None = None,
        *,
        except_message_ids: Iterable[str] = (),
        timeout: float | None = None,
    ) -> datetime:
        """Prolongs what is left of a grant to `ms` from now, as `extend` does; returns its new end.

        Fails as `ack_grant` does.
        """
        item = _grants.extend_item(queue, lease_token, ms, except_message_ids)
        return self._settle_grant(item, timeout).lease_expires_at  # type: ignore[return-value]

    def _settle_grant(self, item: Item, timeout: float | None) -> Settled:
        (outcome,) = self._calls.see_through(
            lambda: send_many(self._connection, _grants.SETTLE, [item], timeout)
        )
        if isinstance(outcome, FilaError):
            raise outcome
        return outcome


class AsyncSettleCalls:
    """How an awaiting client settles."""

    _connection: AsyncConnection
    _calls: AsyncCalls

    async def ack(
        self,
        queue: str,
        message_id: str,
        lease_token: str | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Reports that a leased message was processed; it is gone.

        Raises MessageNotFoundError when it is not leased, and LeaseExpiredError when the token is
        of an earlier delivery. With a token it is sent again while the broker is away, up to the
        deadline. Without one the message id alone decides, and it is never sent twice: after
        UnavailableError the message is gone, or comes back when its lease ends.
        """
        await self._calls.send(
            self._calls.acks, lambda: _wire.ack_item(queue, message_id, lease_token), timeout
        )

    async def ack_many(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[FilaError | None]:
        """Acks many messages; None or an error for each, in order.

        Those that came together, and are acked together, travel as one.
        """
        messages = list(messages)
        outcomes = await self._calls.see_through(
            lambda: ack_many_async(self._connection, messages, timeout)
        )
        if self._connection.has_workers:
            note_settled(messages, outcomes)
        return outcomes

    async def _ack_message(self, message: AsyncConsumeMessage) -> None:
        await self._calls.send(self._calls.acks, lambda: _wire.ack_message_item(message), None)

    async def nack(
        self,
        queue: str,
        message_id: str,
        error: str = "",
        lease_token: str | None = None,
        *,
        retry_after_ms: int | None = None,
        throttle_key: str | None = None,
        dead_letter: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Reports that processing failed: the message is retried or dead-lettered.

        With `retry_after_ms` it is backpressure, not failure: the message comes back after that
        time and no attempt is counted; `throttle_key` then lets nothing through until then, for
        anybody. `dead_letter` says that trying again would not help: it becomes a dead letter at
        once. Fails as `ack` does.
        """
        await self._calls.send(
            self._calls.nacks,
            lambda: _wire.nack_item(
                queue, message_id, error, lease_token, retry_after_ms, throttle_key, dead_letter
            ),
            timeout,
        )

    async def nack_many(
        self, messages: Iterable[Message], error: str = "", *, timeout: float | None = None
    ) -> list[FilaError | None]:
        """Nacks many messages; None or an error for each, in order."""
        messages = list(messages)
        items = (_wire.nack_item(m.queue, m.id, error, m.lease_token) for m in messages)
        outcomes = await self._calls.see_through(
            lambda: send_many_async(self._connection, _wire.NACK, items, timeout)
        )
        if self._connection.has_workers:
            note_settled(messages, outcomes)
        return outcomes

    async def extend(
        self,
        queue: str,
        message_id: str,
        lease_token: str | None = None,
        ms: int | None = None,
        *,
        timeout: float | None = None,
    ) -> datetime:
        """Prolongs a lease to `ms` from now, by default the queue's visibility timeout.

        Returns its new end. Fails as `ack` does.
        """
        return await self._calls.send(
            self._calls.extensions,
            lambda: _wire.extend_item(queue, message_id, lease_token, ms),
            timeout,
        )

    async def extend_many(
        self,
        messages: Iterable[Message],
        ms: int | None = None,
        *,
        timeout: float | None = None,
    ) -> list[datetime | FilaError]:
        """Prolongs the leases of many messages; each one's new end, or its error, in order."""
        messages = list(messages)
        items = (_wire.extend_item(m.queue, m.id, m.lease_token, ms) for m in messages)
        outcomes = await self._calls.see_through(
            lambda: send_many_async(self._connection, _wire.EXTEND, items, timeout)
        )
        note_extended(messages, outcomes)
        return outcomes

    async def ack_grant(
        self,
        queue: str,
        lease_token: str,
        *,
        except_message_ids: Iterable[str] = (),
        timeout: float | None = None,
    ) -> int:
        """Acks what is left of a grant: all messages that were delivered under one lease token.

        Those in `except_message_ids` are left alone. Returns how many were acked. Raises
        LeaseExpiredError when none is left of it.
        """
        item = _grants.ack_item(queue, lease_token, except_message_ids)
        return (await self._settle_grant(item, timeout)).messages

    async def nack_grant(
        self,
        queue: str,
        lease_token: str,
        error: str = "",
        *,
        retry_after_ms: int | None = None,
        throttle_key: str | None = None,
        dead_letter: bool = False,
        except_message_ids: Iterable[str] = (),
        timeout: float | None = None,
    ) -> int:
        """Nacks what is left of a grant, each message as `nack` would; returns how many.

        With `retry_after_ms=0` they are given back unseen: no attempt is counted, and each goes to
        the place that it had. Fails as `ack_grant` does.
        """
        item = _grants.nack_item(
            queue,
            lease_token,
            error,
            retry_after_ms,
            throttle_key,
            dead_letter,
            except_message_ids,
        )
        return (await self._settle_grant(item, timeout)).messages

    async def extend_grant(
        self,
        queue: str,
        lease_token: str,
        ms: int | None = None,
        *,
        except_message_ids: Iterable[str] = (),
        timeout: float | None = None,
    ) -> datetime:
        """Prolongs what is left of a grant to `ms` from now, as `extend` does; returns its new end.

        Fails as `ack_grant` does.
        """
        item = _grants.extend_item(queue, lease_token, ms, except_message_ids)
        return (await self._settle_grant(item, timeout)).lease_expires_at  # type: ignore[return-value]

    async def _settle_grant(self, item: Item, timeout: float | None) -> Settled:
        (outcome,) = await self._calls.see_through(
            lambda: send_many_async(self._connection, _grants.SETTLE, [item], timeout)
        )
        if isinstance(outcome, FilaError):
            raise outcome
        return outcome
