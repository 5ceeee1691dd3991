# SPDX-License-Identifier: AGPL-3.0-only
"""Settling whole grants, as the ledger follows it: what holds for one message holds for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fila_server.core.clock import NS_PER_MS, Now
from fila_server.core.wire.answers import Settled
from server.tests.simulation.broken import Broken, expect

if TYPE_CHECKING:
    from fila.v1.service_pb2 import GrantSettlement
    from fila_server.core.commands import SettleGrants
    from server.tests.simulation.ledger import Ledger


def settle(ledger: Ledger, command: SettleGrants, results: Any, now: Now) -> None:
    """Follow the items of a command. Raises Broken where an answer is not right."""
    for item, result in zip(command.items, results, strict=True):
        _settle_one(ledger, item, result, now)


def _settle_one(ledger: Ledger, item: GrantSettlement, result: Any, now: Now) -> None:
    model = ledger.model
    home = model.homes.get(item.queue)
    if home is None:
        expect(result, "QUEUE_NOT_FOUND", item)
        return
    held = [it for it in model.of(home) if it.lease and it.lease.token == item.lease_token]
    chosen = [it for it in held if it.id not in item.except_message_ids]
    if not held or (item.expected_messages and item.expected_messages != len(chosen)):
        expect(result, "LEASE_EXPIRED", item)
        return
    key = item.nack.throttle_key
    if key and not any(key in letter.throttle_keys for letter in chosen):
        expect(result, "INVALID_ARGUMENT", item)
        return
    if not isinstance(result, Settled) or result.messages != len(chosen):
        raise Broken("2: a live grant can be settled", f"{item} gave {result!r}")
    span_ns = (item.extend.extend_ms or ledger.visibility_ms(home)) * NS_PER_MS
    if item.HasField("extend") and result.expires_ns != now.wall_ns + span_ns:
        raise Broken("an extension counts from now", f"{item} gave {result}")
    for letter in chosen:
        if item.HasField("ack"):
            ledger.acked(letter)
        elif item.HasField("nack"):
            ledger.nacked(letter, item.nack, now)
        else:
            ledger.prolonged(letter, span_ns, now)
