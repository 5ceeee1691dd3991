# SPDX-License-Identifier: AGPL-3.0-only
"""Whole frames: acks of all their messages travel as one, and nobody can tell by the outcome."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace

import grpc
import pytest

import fila
from fila.v1 import messages_pb2, service_pb2

PATIENCE_S = 60
REASON = messages_pb2.ErrorReason


@pytest.fixture
def client(broker):
    with fila.Client(broker.target, timeout=PATIENCE_S) as client:
        yield client


def deliver(broker, wire, *sizes):
    """Lets receive return frames of so many messages: t0-0, t0-1, ... under the token t0."""
    frames = []
    for number, size in enumerate(sizes):
        frame = wire.frame(*(f"t{number}-{n}" for n in range(size)))
        for raw in frame.messages:
            raw.metadata.lease_token = f"t{number}"
        frames.append(service_pb2.ReceiveResponse(messages=frame.messages))
    broker.script("Receive", lambda *_: frames.pop(0))


def settle(broker, **errors):
    """Answers settlements with what was expected, and with errors by token."""

    def answer(request, context):
        response = service_pb2.SettleGrantsResponse()
        for item in request.settlements:
            result = response.results.add(messages=item.expected_messages)
            if item.lease_token in errors:
                result.error.reason = errors[item.lease_token]
                result.messages = 0
        return response

    broker.script("SettleGrants", answer)


def settlements(broker):
    return [
        (item.queue, item.lease_token, item.expected_messages, item.WhichOneof("action"))
        for call in broker.calls("SettleGrants")
        for item in call.request.settlements
    ]


def acked(broker):
    return [ack.message_id for call in broker.calls("AckBatch") for ack in call.request.acks]


def test_frames_that_are_acked_together_travel_as_one(broker, client, wire):
    deliver(broker, wire, 3, 2)
    settle(broker)
    messages = client.receive("orders", 3) + client.receive("orders", 2)
    assert client.ack_many(reversed(messages)) == [None] * 5
    assert sorted(settlements(broker)) == [("orders", "t0", 3, "ack"), ("orders", "t1", 2, "ack")]
    assert len(broker.calls("SettleGrants")) == 1 and acked(broker) == []


def test_what_is_not_whole_is_acked_one_by_one(broker, client, wire):
    deliver(broker, wire, 3, 1, 2)
    settle(broker)
    first, lone = client.receive("orders", 3), client.receive("orders")
    doubled = client.receive("orders", 2)
    batch = [*first[:2], *lone, doubled[0], doubled[0]]
    assert client.ack_many(batch) == [None] * 5
    assert settlements(broker) == []
    assert acked(broker) == ["t0-0", "t0-1", "t1-0", "t2-0", "t2-0"]


def test_records_of_a_delivery_are_acked_one_by_one(broker, client, wire):
    """A program that took only queue, id and token along can settle with them."""
    deliver(broker, wire, 2)
    settle(broker)
    kept = [
        SimpleNamespace(queue=m.queue, id=m.id, lease_token=m.lease_token)
        for m in client.receive("orders", 2)
    ]
    assert client.ack_many(kept) == [None, None]
    assert settlements(broker) == [] and acked(broker) == ["t0-0", "t0-1"]


def test_a_frame_larger_than_a_batch_is_still_one(broker, client, wire):
    deliver(broker, wire, 2500)
    settle(broker)
    assert client.ack_many(client.receive("orders", 2500)) == [None] * 2500
    assert settlements(broker) == [("orders", "t0", 2500, "ack")]


def test_a_frame_of_which_something_is_gone_is_acked_one_by_one(broker, client, wire):
    deliver(broker, wire, 2, 2)
    settle(broker, t0=REASON.ERROR_REASON_LEASE_EXPIRED)
    error = messages_pb2.ItemError(reason=REASON.ERROR_REASON_LEASE_EXPIRED)
    results = [messages_pb2.ItemResult(), messages_pb2.ItemResult(error=error)]
    broker.script("AckBatch", lambda *_: service_pb2.AckBatchResponse(results=results))
    messages = client.receive("orders", 2) + client.receive("orders", 2)
    outcomes = client.ack_many(messages)
    assert (outcomes[0], outcomes[2], outcomes[3]) == (None, None, None)
    assert type(outcomes[1]) is fila.LeaseExpiredError
    assert (outcomes[1].queue, outcomes[1].message_id) == ("orders", "t0-1")
    assert acked(broker) == ["t0-0", "t0-1"]


def test_an_error_of_a_frame_is_that_of_each_message(broker, client, wire):
    deliver(broker, wire, 2)
    settle(broker, t0=REASON.ERROR_REASON_QUEUE_NOT_FOUND)
    outcomes = client.ack_many(client.receive("orders", 2))
    assert [(type(it), it.message_id) for it in outcomes] == [
        (fila.QueueNotFoundError, "t0-0"),
        (fila.QueueNotFoundError, "t0-1"),
    ]
    assert acked(broker) == []


def test_nothing_is_sent_after_a_request_that_failed(broker, client, wire):
    deliver(broker, wire, 2, 2)
    # Not "unavailable", which is tried again until the deadline and may end with that.
    broker.script("SettleGrants", wire.refuse(grpc.StatusCode.INTERNAL, "broken"))
    messages = client.receive("orders", 2) + client.receive("orders", 2)[:1]
    outcomes = client.ack_many(messages)
    assert [type(it) for it in outcomes] == [fila.InternalError] * 3
    assert acked(broker) == []


def test_a_broker_that_knows_no_grants_is_asked_once(broker, client, wire):
    deliver(broker, wire, 2, 2)
    broker.script("SettleGrants", wire.refuse(grpc.StatusCode.UNIMPLEMENTED, "what?"))
    for _ in range(2):
        assert client.ack_many(client.receive("orders", 2)) == [None, None]
    assert len(broker.calls("SettleGrants")) == 1
    assert acked(broker) == ["t0-0", "t0-1", "t1-0", "t1-1"]


@pytest.mark.asyncio
@pytest.mark.parametrize("knows", [True, False])
async def test_concurrent_acks_of_a_frame_are_one(broker, wire, knows):
    deliver(broker, wire, 2, 2, 5)
    settle(broker)
    if not knows:
        broker.script("SettleGrants", wire.refuse(grpc.StatusCode.UNIMPLEMENTED, "what?"))
    async with fila.AsyncClient(broker.target, timeout=PATIENCE_S) as client:
        partial = [await client.receive("orders", 2) for _ in range(2)]
        frame = await client.receive("orders", 5)
        # Two requests under way; what comes meanwhile waits and shares the next.
        busy = [asyncio.create_task(messages[0].ack()) for messages in partial]
        await asyncio.sleep(0)
        await asyncio.gather(*busy, *(message.ack() for message in frame))
    if knows:
        assert settlements(broker) == [("orders", "t2", 5, "ack")]
        assert sorted(acked(broker)) == ["t0-0", "t1-0"]
    else:
        assert len(acked(broker)) == 7


@pytest.mark.asyncio
async def test_a_frame_settled_in_a_shared_request_may_fail_by_itself(broker, wire):
    deliver(broker, wire, 2)
    settle(broker, t0=REASON.ERROR_REASON_PERMISSION_DENIED)
    async with fila.AsyncClient(broker.target, timeout=PATIENCE_S) as client:
        frame = await client.receive("orders", 2)
        outcomes = await client.ack_many(frame)
        assert [type(it) for it in outcomes] == [fila.PermissionDeniedError] * 2
        outcomes = await asyncio.gather(
            *(message.ack() for message in frame), return_exceptions=True
        )
    # They may have found two free slots, and then each went alone.
    assert {type(it) for it in outcomes} <= {fila.PermissionDeniedError, type(None)}


def test_a_grant_is_settled_by_its_token(broker, client, wire):
    ends = datetime(2030, 1, 2, tzinfo=UTC)

    def answer(request, context):
        result = service_pb2.GrantResult(messages=7)
        if request.settlements[0].HasField("extend"):
            result.lease_expires_at.FromDatetime(ends)
        return service_pb2.SettleGrantsResponse(results=[result])

    broker.script("SettleGrants", answer)
    assert client.ack_grant("orders", "t", except_message_ids=["a", "b"]) == 7
    assert client.nack_grant("orders", "t", "no", retry_after_ms=0, throttle_key="k") == 7
    assert client.nack_grant("orders", "t") == 7
    assert client.extend_grant("orders", "t", 500) == ends
    sent = [call.request.settlements[0] for call in broker.calls("SettleGrants")]
    grant = service_pb2.GrantSettlement(queue="orders", lease_token="t")
    expected = [service_pb2.GrantSettlement.FromString(grant.SerializeToString()) for _ in sent]
    expected[0].except_message_ids.extend(["a", "b"])
    expected[0].ack.SetInParent()
    expected[1].nack.CopyFrom(service_pb2.GrantNack(error="no", retry_after_ms=0, throttle_key="k"))
    expected[2].nack.SetInParent()
    expected[3].extend.extend_ms = 500
    assert sent == expected


def test_a_grant_that_is_gone_raises(broker, client, wire):
    settle(broker, t=REASON.ERROR_REASON_LEASE_EXPIRED)
    for call in (client.ack_grant, client.nack_grant, client.extend_grant):
        with pytest.raises(fila.LeaseExpiredError) as raised:
            call("orders", "t")
        assert raised.value.queue == "orders"
    with pytest.raises(TypeError):
        client.ack_grant("orders", "t", except_message_ids="abc")
    with pytest.raises(TypeError):
        client.ack_grant("orders", 5)
