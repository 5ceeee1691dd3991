# SPDX-License-Identifier: AGPL-3.0-only
"""Batches: one result per item, in order, and a bad item harms nobody but itself."""

from typing import Any

import grpc
import pytest

from fila.v1 import messages_pb2 as mp
from fila.v1 import service_pb2 as sp
from server.tests.rpc.wire import Wire

REASON = mp.ErrorReason


def test_enqueue_batch_has_a_result_per_item(wire: Wire) -> None:
    one, other = wire.queue(), wire.queue(max_messages=1)
    batch = [
        sp.EnqueueRequest(queue=one, payload=b"0"),
        sp.EnqueueRequest(queue="nobody"),
        sp.EnqueueRequest(queue=other, payload=b"2"),
        sp.EnqueueRequest(queue=other, payload=b"full"),
        sp.EnqueueRequest(queue=one, payload=bytes(3 * 1024 * 1024 + 1)),
        sp.EnqueueRequest(queue=one, idempotency_key="k", payload=b"5"),
        sp.EnqueueRequest(queue=one, idempotency_key="k", payload=b"6"),
        sp.EnqueueRequest(queue=one, weight=9999),
        sp.EnqueueRequest(),
        sp.EnqueueRequest(queue=one, payload=b"9"),
    ]
    results = wire.call(sp.EnqueueBatchRequest(messages=batch)).results
    assert [result.error.reason for result in results] == [
        0,
        REASON.ERROR_REASON_QUEUE_NOT_FOUND,
        0,
        REASON.ERROR_REASON_QUEUE_FULL,
        REASON.ERROR_REASON_MESSAGE_TOO_LARGE,
        0,
        0,
        REASON.ERROR_REASON_INVALID_ARGUMENT,
        REASON.ERROR_REASON_INVALID_ARGUMENT,
        0,
    ]
    assert 'queue "nobody" does not exist' in results[1].error.message
    assert [bool(result.message_id) for result in results] == [
        not result.HasField("error") for result in results
    ]
    assert results[6].duplicate and results[6].message_id == results[5].message_id
    received = wire.receive(one, 10)
    assert [message.payload for message in received] == [b"0", b"5", b"9"]
    assert [message.id for message in received] == [results[n].message_id for n in (0, 5, 9)]
    assert [message.payload for message in wire.receive(other, 10)] == [b"2"]


def test_ack_and_nack_batches_have_a_result_per_item(wire: Wire) -> None:
    queue = wire.queue()
    for n in range(4):
        wire.enqueue(queue, b"%d" % n)
    first, second, third, fourth = wire.receive(queue, 4)
    acks = [
        sp.AckRequest(queue=queue, message_id=first.id),
        sp.AckRequest(queue=queue, message_id=first.id),
        sp.AckRequest(queue=queue, message_id=second.id, lease_token="0"),
        sp.AckRequest(queue="nobody", message_id=second.id),
        sp.AckRequest(queue=queue),
        sp.AckRequest(queue=queue, message_id=second.id, lease_token=second.metadata.lease_token),
    ]
    results = wire.call(sp.AckBatchRequest(acks=acks)).results
    assert [result.error.reason for result in results] == [
        0,
        REASON.ERROR_REASON_MESSAGE_NOT_FOUND,
        REASON.ERROR_REASON_LEASE_EXPIRED,
        REASON.ERROR_REASON_QUEUE_NOT_FOUND,
        REASON.ERROR_REASON_INVALID_ARGUMENT,
        0,
    ]
    nacks = [
        sp.NackRequest(queue=queue, message_id=second.id),
        sp.NackRequest(queue=queue, message_id=third.id, error="late"),
        sp.NackRequest(queue=queue, message_id=fourth.id, retry_after_ms=0),
    ]
    results = wire.call(sp.NackBatchRequest(nacks=nacks)).results
    assert [result.error.reason for result in results] == [
        REASON.ERROR_REASON_MESSAGE_NOT_FOUND,
        0,
        0,
    ]
    again = wire.receive(queue, 10)
    assert [(m.payload, m.metadata.attempt_count) for m in again] == [(b"3", 0), (b"2", 1)]


def test_extend_batch_has_a_result_per_item(wire: Wire) -> None:
    queue = wire.queue()
    wire.enqueue(queue)
    wire.enqueue(queue)
    first, second = wire.receive(queue, 2)
    items = [
        sp.LeaseExtension(queue=queue, message_id=first.id, extend_ms=60_000),
        sp.LeaseExtension(queue=queue, message_id=second.id, lease_token="0"),
        sp.LeaseExtension(queue=queue, message_id=second.id, extend_ms=43_200_001),
        sp.LeaseExtension(queue="nobody", message_id=second.id),
        sp.LeaseExtension(queue=queue, message_id=second.id),
    ]
    results = wire.call(sp.ExtendLeaseRequest(extensions=items)).results
    assert [result.error.reason for result in results] == [
        0,
        REASON.ERROR_REASON_LEASE_EXPIRED,
        REASON.ERROR_REASON_INVALID_ARGUMENT,
        REASON.ERROR_REASON_QUEUE_NOT_FOUND,
        0,
    ]
    for message in (first, second):
        wire.ack(queue, message)


def test_empty_batches_have_no_results(wire: Wire) -> None:
    for request in (
        sp.EnqueueBatchRequest(),
        sp.AckBatchRequest(),
        sp.NackBatchRequest(),
        sp.ExtendLeaseRequest(),
    ):
        assert len(wire.call(request).results) == 0


def test_a_batch_of_the_largest_size_passes_and_one_more_does_not(wire: Wire) -> None:
    queue = wire.queue()
    item = sp.EnqueueRequest(queue=queue, payload=b"x")
    results = wire.call(sp.EnqueueBatchRequest(messages=[item] * 10_000)).results
    ids = [result.message_id for result in results]
    assert len(set(ids)) == 10_000 and ids == sorted(ids)
    received = [*wire.receive(queue, 5000), *wire.receive(queue, 5000)]
    assert [message.id for message in received] == ids
    acks = [sp.AckRequest(queue=queue, message_id=message_id) for message_id in ids]
    results = wire.call(sp.AckBatchRequest(acks=acks)).results
    assert len(results) == 10_000 and not any(result.HasField("error") for result in results)
    assert wire.stats(queue).in_flight == 0


@pytest.mark.parametrize(
    "request_",
    [
        sp.EnqueueBatchRequest(messages=[sp.EnqueueRequest()] * 10_001),
        sp.AckBatchRequest(acks=[sp.AckRequest()] * 10_001),
        sp.NackBatchRequest(nacks=[sp.NackRequest()] * 10_001),
        sp.ExtendLeaseRequest(extensions=[sp.LeaseExtension()] * 10_001),
    ],
    ids=["enqueue", "ack", "nack", "extend"],
)
def test_too_many_items(wire: Wire, request_: object) -> None:
    refusal = wire.refusal(request_)
    assert refusal.status is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.reason == "MESSAGE_TOO_LARGE"
    assert "10001" in refusal.text and "10000" in refusal.text


@pytest.mark.parametrize("method", ["EnqueueBatch", "AckBatch", "NackBatch", "ExtendLease"])
@pytest.mark.parametrize("first", [b"", b"\x10\x01", b"\x1b\x1c"], ids=["items", "field", "group"])
def test_far_too_many_items_are_refused_unseen(wire: Wire, method: str, first: bytes) -> None:
    """Two bytes are an item. Millions of them would take the broker seconds, and a gigabyte."""
    body = first + b"\x0a\x00" * 4_000_000
    call = wire.channel.unary_unary(f"/fila.v1.FilaService/{method}", None, None)
    with pytest.raises(grpc.RpcError) as refused:
        call(body, timeout=60)
    assert "more than 10000 exceeds the limit" in str(refused.value.details())  # type: ignore[attr-defined]


# --- Grants ---------------------------------------------------------------------------------------


def settlement(queue: str, message: mp.Message, **fields: Any) -> sp.GrantSettlement:
    token = message.metadata.lease_token
    return sp.GrantSettlement(queue=queue, lease_token=token, **fields)


def test_grants_have_a_result_per_item(wire: Wire) -> None:
    queue = wire.queue()
    for n in range(7):
        wire.enqueue(queue, b"%d" % n)
    first, second = wire.receive(queue, 4), wire.receive(queue, 3)
    items = [
        settlement(queue, first[0], ack=sp.GrantAck(), except_message_ids=[first[3].id]),
        settlement(queue, first[0], ack=sp.GrantAck(), expected_messages=4),
        settlement("nobody", first[0], ack=sp.GrantAck()),
        settlement(queue, first[0], extend=sp.GrantExtension(extend_ms=90_000)),
        settlement(queue, second[0], nack=sp.GrantNack(retry_after_ms=0)),
        settlement(queue, second[0], ack=sp.GrantAck()),
        settlement(queue, first[0]),
    ]
    results = wire.call(sp.SettleGrantsRequest(settlements=items)).results
    assert [(result.messages, result.error.reason) for result in results] == [
        (3, 0),
        (0, REASON.ERROR_REASON_LEASE_EXPIRED),
        (0, REASON.ERROR_REASON_QUEUE_NOT_FOUND),
        (1, 0),
        (3, 0),
        (0, REASON.ERROR_REASON_LEASE_EXPIRED),
        (0, REASON.ERROR_REASON_INVALID_ARGUMENT),
    ]
    ends = first[3].timestamps.lease_expires_at.ToNanoseconds()
    assert results[3].lease_expires_at.ToNanoseconds() > ends
    assert [message.payload for message in wire.receive(queue, 10)] == [b"4", b"5", b"6"]


def test_messages_that_grants_except_count_towards_the_limit(wire: Wire) -> None:
    queue = wire.queue()
    wire.enqueue(queue)
    (message,) = wire.receive(queue, 1)
    for ids in (["x"] * 10_000, [""] * 500_000):
        item = settlement(queue, message, ack=sp.GrantAck(), except_message_ids=ids)
        refusal = wire.refusal(sp.SettleGrantsRequest(settlements=[item]))
        assert refusal.reason == "MESSAGE_TOO_LARGE"
    ids = ["x"] * 9999
    item = settlement(queue, message, ack=sp.GrantAck(), except_message_ids=ids)
    assert wire.call(sp.SettleGrantsRequest(settlements=[item])).results[0].messages == 1
