# SPDX-License-Identifier: AGPL-3.0-only
"""What is encoded by hand is what protobuf makes of it, byte for byte."""

import itertools

import pytest

import fila
from fila import _wire
from fila._element import element, plain_ack, plain_enqueue
from fila.v1 import service_pb2

TEXTS = ["", "a", "grüße", "x" * 127, "x" * 128, "ü" * 8192, "\0"]
SIZES = [0, 1, 127, 128, 1023, 1024, 16383, 16384, 1 << 21]


@pytest.mark.parametrize("size", SIZES)
def test_payloads_of_every_length_of_varint(size):
    payload = b"\xff" * size
    assert plain_enqueue("q", None, payload, None) == element(
        service_pb2.EnqueueRequest(queue="q", payload=payload)
    )


def test_texts_of_all_kinds_in_every_field():
    for queue, text, key in itertools.product(TEXTS, TEXTS, ["", "k", None]):
        headers = {text: queue, "other": text}
        request = service_pb2.EnqueueRequest(queue=queue, payload=b"x", fairness_key=key)
        request.headers["first"] = text
        by_hand = plain_enqueue(queue, {"first": text}, b"x", key)
        assert by_hand == element(request)
        # Protobuf's maps have no order.
        request.headers.clear()
        request.headers.update(headers)
        read = service_pb2.EnqueueBatchRequest.FromString(plain_enqueue(queue, headers, b"x", key))
        assert list(read.messages) == [request]


def test_acks_of_all_kinds():
    for queue, message_id, token in itertools.product(TEXTS, TEXTS, TEXTS):
        request = service_pb2.AckRequest(queue=queue, message_id=message_id, lease_token=token)
        assert plain_ack(queue, message_id, token) == element(request)


def test_what_is_not_plain_is_protobufs():
    def sent(**fields):
        item = _wire.enqueue_item(fila.EnqueueMessage("q", **fields), {})
        (message,) = service_pb2.EnqueueBatchRequest.FromString(item.data).messages
        return message

    assert sent(weight=3).weight == 3
    assert sent(throttle_keys=["a", "b"]).throttle_keys == ["a", "b"]
    assert sent(throttle_cost=2).throttle_cost == 2
    assert sent(delay_ms=5).delay_ms == 5
    assert sent(ttl_ms=6).ttl_ms == 6
    assert sent(idempotency_key="i").idempotency_key == "i"
    assert sent(payload=bytearray(b"x")).payload == b"x"
    assert sent(text="t").payload == b"t"
    assert sent(json=1).payload == b"1"


@pytest.mark.parametrize("wrong", [{"queue": 1}, {"lease_token": 2}, {"message_id": "\ud800"}])
def test_an_ack_of_what_is_no_text_is_refused(wrong):
    given = {"queue": "q", "message_id": "m", "lease_token": "t", **wrong}
    with pytest.raises((TypeError, ValueError)):
        _wire.ack_item(**given)
