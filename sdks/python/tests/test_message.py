# SPDX-License-Identifier: AGPL-3.0-only
"""A delivered message shows every field of the contract, whenever it is read."""

import dataclasses
from datetime import UTC, datetime

import pytest

import fila

WHEN = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@pytest.fixture
def raw(wire):
    raw = wire.message("m-1", queue="orders", headers={"a": "b"}, payload=b"\0\xff")
    raw.metadata.fairness_key = "acme"
    raw.metadata.weight = 3
    raw.metadata.throttle_keys.extend(["mail", "sms"])
    raw.metadata.attempt_count = 2
    raw.metadata.lease_token = "token"
    raw.metadata.last_error = "boom"
    raw.metadata.failures.add(failed_at=WHEN, cause="FAILURE_CAUSE_EXPIRED", error="lease expired")
    raw.metadata.failures.add(cause=99)
    raw.timestamps.enqueued_at.FromDatetime(WHEN)
    raw.timestamps.lease_expires_at.FromDatetime(WHEN)
    return raw


FIELDS = {
    "id": "m-1",
    "queue": "orders",
    "headers": {"a": "b"},
    "payload": b"\0\xff",
    "fairness_key": "acme",
    "weight": 3,
    "throttle_keys": ("mail", "sms"),
    "attempt_count": 2,
    "lease_token": "token",
    "last_error": "boom",
    "failures": (
        fila.Failure(WHEN, fila.FailureCause.EXPIRED, "lease expired"),
        fila.Failure(None, None, ""),
    ),
    "enqueued_at": WHEN,
    "lease_expires_at": WHEN,
}


@pytest.mark.parametrize("kind", [fila.Message, fila.ConsumeMessage, fila.AsyncConsumeMessage])
def test_every_field_is_there_in_any_order(raw, kind):
    for names in (list(FIELDS), list(FIELDS)[::-1]):
        message = kind(raw)
        for name in names:
            assert getattr(message, name) == FIELDS[name]
    assert [field.name for field in dataclasses.fields(kind)] == list(FIELDS)


def test_fields_that_are_not_set_are_empty(wire):
    message = fila.ConsumeMessage(wire.message())
    assert (message.headers, message.payload, message.throttle_keys) == ({}, b"", ())
    assert (message.attempt_count, message.last_error, message.failures) == (0, "", ())
    assert (message.enqueued_at, message.lease_expires_at) == (None, None)


def test_headers_can_be_changed_by_their_reader(raw):
    message = fila.ConsumeMessage(raw)
    message.headers["a"] = "c"
    assert message.headers == {"a": "c"}


def test_an_unknown_attribute_is_an_error(raw):
    message = fila.ConsumeMessage(raw)
    with pytest.raises(AttributeError, match="'ConsumeMessage' object has no attribute 'body'"):
        _ = message.body
    with pytest.raises(AttributeError):
        message.body = b"x"


def test_repr_shows_neither_payload_nor_headers_nor_token(raw):
    raw.payload = b"private-payload"
    raw.headers["private-key"] = "private-value"
    text = repr(fila.ConsumeMessage(raw))
    assert text == (
        "ConsumeMessage(id='m-1', queue='orders', fairness_key='acme', attempt_count=2)"
    )


def test_settling_with_something_that_is_no_id_says_so(client, raw):
    with pytest.raises(
        TypeError, match="queue, message_id and lease_token must be str, not str, Con"
    ):
        client.ack("orders", fila.ConsumeMessage(raw))
