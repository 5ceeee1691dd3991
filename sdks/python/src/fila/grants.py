# SPDX-License-Identifier: AGPL-3.0-only
# ruff: noqa: ASYNC109 - a deadline travels with the request, so it is an argument
"""The calls of both clients that settle a whole grant: what one frame leased under one token."""

from collections.abc import Iterable
from datetime import datetime

from fila import _grants
from fila._bulk import send_many, send_many_async
from fila._connection import AsyncConnection, Connection
from fila._grants import Settled
from fila._wire import Item
from fila.errors import FilaError


class GrantCalls:
    """What a blocking client does with grants."""

    _connection: Connection

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
        return (self._settle_grant(item, timeout)).messages

    def nack_grant(
        self,
        queue: str,
        lease_token: str,
        error: str = "",
        *,
        retry_after_ms: int | None = None,
        throttle_key: str | None = None,
        except_message_ids: Iterable[str] = (),
        timeout: float | None = None,
    ) -> int:
        """Nacks what is left of a grant, each message as `nack` would; returns how many.

        With `retry_after_ms=0` they are given back unseen: no attempt is counted, and each goes to
        the place that it had. Fails as `ack_grant` does.
        """
        item = _grants.nack_item(
            queue, lease_token, error, retry_after_ms, throttle_key, except_message_ids
        )
        return (self._settle_grant(item, timeout)).messages

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
        return (self._settle_grant(item, timeout)).lease_expires_at  # type: ignore[return-value]

    def _settle_grant(self, item: Item, timeout: float | None) -> Settled:
        (outcome,) = send_many(self._connection, _grants.SETTLE, [item], timeout)
        if isinstance(outcome, FilaError):
            raise outcome
        return outcome


class AsyncGrantCalls:
    """What an awaiting client does with grants."""

    _connection: AsyncConnection

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
        except_message_ids: Iterable[str] = (),
        timeout: float | None = None,
    ) -> int:
        """Nacks what is left of a grant, each message as `nack` would; returns how many.

        With `retry_after_ms=0` they are given back unseen: no attempt is counted, and each goes to
        the place that it had. Fails as `ack_grant` does.
        """
        item = _grants.nack_item(
            queue, lease_token, error, retry_after_ms, throttle_key, except_message_ids
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
        (outcome,) = await send_many_async(self._connection, _grants.SETTLE, [item], timeout)
        if isinstance(outcome, FilaError):
            raise outcome
        return outcome
