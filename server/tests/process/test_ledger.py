# SPDX-License-Identifier: AGPL-3.0-only
"""The judge of the crash tests notices each of the promises that a broker could break."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fila import ConsumeMessage
from fila.v1.messages_pb2 import Message, MessageMetadata
from server.tests.process.ledger import VISIBILITY_MS, Ledger

NOW = datetime(2030, 1, 1, tzinfo=UTC)
VISIBILITY = timedelta(milliseconds=VISIBILITY_MS)


def delivered(ledger: Ledger, token: int, at: datetime = NOW, payload: bytes = b"p") -> Any:
    """Let the ledger see a delivery of message "m" under a lease that begins then."""
    raw = Message(id="m", payload=payload, metadata=MessageMetadata(lease_token=f"{token:x}"))
    raw.timestamps.lease_expires_at.FromDatetime(at + VISIBILITY)
    message = ConsumeMessage(raw)
    ledger.delivered(message)
    return message


@pytest.fixture
def ledger() -> Ledger:
    """A ledger in which one enqueue was sent and confirmed."""
    ledger = Ledger()
    ledger.sending(b"p")
    ledger.stored("m", b"p")
    return ledger


def lose(ledger: Ledger) -> set[str]:
    return set()


def deliver_after_its_ack(ledger: Ledger) -> set[str]:
    message = delivered(ledger, 1)
    ledger.acking(message)
    ledger.settled(message)
    delivered(ledger, 2, NOW + VISIBILITY)
    return set()


def store_twice(ledger: Ledger) -> set[str]:
    ledger.stored("other", b"p")
    return {"m", "other"}


def deliver_while_leased(ledger: Ledger) -> set[str]:
    delivered(ledger, 1)
    delivered(ledger, 2, NOW + VISIBILITY / 2)
    return {"m"}


def deliver_while_extended(ledger: Ledger) -> set[str]:
    ledger.extended(delivered(ledger, 1), NOW + 2 * VISIBILITY)
    delivered(ledger, 2, NOW + VISIBILITY)
    return {"m"}


@pytest.mark.parametrize(
    ("breach", "text"),
    [
        (lose, "confirmed messages lost"),
        (deliver_after_its_ack, "acked messages came back"),
        (store_twice, "enqueues made two messages"),
        (deliver_while_leased, "two live leases"),
        (deliver_while_extended, "two live leases"),
    ],
)
def test_a_broken_promise_is_noticed(
    ledger: Ledger, breach: Callable[[Ledger], set[str]], text: str
) -> None:
    drained = breach(ledger)
    with pytest.raises(AssertionError, match=text):
        ledger.check(drained)


def test_one_token_serves_one_delivery(ledger: Ledger) -> None:
    delivered(ledger, 1)
    with pytest.raises(AssertionError, match="twice under one token"):
        delivered(ledger, 1)


def test_what_nobody_sent_is_noticed(ledger: Ledger) -> None:
    with pytest.raises(AssertionError, match="nobody sent"):
        delivered(ledger, 1, payload=b"made up")


def test_deliveries_one_after_the_other_are_fine(ledger: Ledger) -> None:
    delivered(ledger, 1)
    again = delivered(ledger, 2, NOW + VISIBILITY)
    ledger.giving_back(again)
    delivered(ledger, 3, NOW + VISIBILITY)
    ledger.check({"m"})
    assert ledger.redelivered() == 2
