# SPDX-License-Identifier: AGPL-3.0-only
"""What is enqueued is what arrives, in order, never twice by accident."""

from datetime import UTC, datetime

import grpc
import pytest

import fila
from fila import EnqueueMessage, _wire
from fila.v1 import messages_pb2, service_pb2


def sent(broker, method="EnqueueBatch"):
    return [message for call in broker.calls(method) for message in call.request.messages]


@pytest.mark.parametrize(
    "payload",
    [b"", bytes(range(256)), b"\0leading and trailing\0", b"x" * (1 << 20), b"\xff\xfe"],
    ids=["empty", "all-bytes", "nul", "one-mebibyte", "not-utf8"],
)
def test_payload_arrives_as_it_is(broker, client, payload):
    client.enqueue("orders", None, payload)
    client.enqueue("orders", None, bytearray(payload))
    client.enqueue("orders", None, memoryview(payload))
    assert [message.payload for message in sent(broker)] == [payload] * 3


def test_headers_arrive_as_they_are_and_stay_in_the_message(broker, client):
    headers = {
        "Tenant": "upper",
        "tenant": "lower",
        "empty": "",
        "schlüssel-☃": "wert \U0001f608",
        "authorization": "Bearer not-a-credential",
        "grpc-timeout": "1S",
        ":path": "/elsewhere",
    }
    client.enqueue("orders", headers, b"x")
    client.enqueue("orders", {}, b"x")
    client.enqueue("orders", None, b"x")
    first, *others = broker.seen
    assert dict(first.request.messages[0].headers) == headers
    assert not {"authorization", ":path", "tenant", "empty"} & set(first.metadata)
    assert all(not call.request.messages[0].headers for call in others)


def test_every_option_arrives(broker, client):
    when = datetime(2030, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    client.enqueue(
        "orders",
        fairness_key="acme",
        weight=3,
        throttle_keys=["mail", "sms"],
        throttle_cost=2,
        delay_ms=10,
        deliver_at=when,
        ttl_ms=20,
        idempotency_key="once",
    )
    (message,) = sent(broker)
    assert message.deliver_at.ToDatetime(tzinfo=UTC) == when
    message.ClearField("deliver_at")
    assert message == service_pb2.EnqueueRequest(
        queue="orders",
        fairness_key="acme",
        weight=3,
        throttle_keys=["mail", "sms"],
        throttle_cost=2,
        delay_ms=10,
        ttl_ms=20,
        idempotency_key="once",
    )


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"payload": "text"}, TypeError, r"payload must be bytes, not str; .*\.encode\(\)"),
        ({"payload": 3}, TypeError, "payload must be bytes-like, not int"),
        ({"payload": None}, TypeError, "payload must be bytes-like, not NoneType"),
        (
            {"headers": {"tenant": 3}},
            TypeError,
            "the value of header 'tenant' must be str, not int",
        ),
        ({"headers": {"a": b"b"}}, TypeError, "the value of header 'a' must be str, not bytes"),
        ({"headers": {7: "x"}}, TypeError, "the key of header 7 must be str, not int"),
        ({"headers": [("a", "b")]}, TypeError, "headers must be a mapping, not list"),
        (
            {"headers": {"a": "\ud800"}},
            ValueError,
            "the value of header 'a' holds a lone surrogate",
        ),
        ({"queue": 5}, TypeError, "queue must be str, not int"),
        ({"fairness_key": 5}, TypeError, "fairness_key must be str, not int"),
        ({"weight": "3"}, TypeError, "weight must be int, not str"),
        ({"weight": -1}, ValueError, "weight must not be negative, got -1"),
        ({"delay_ms": 1.5}, TypeError, "delay_ms must be int, not float"),
        ({"weight": 1 << 40}, ValueError, "out of range"),
        ({"throttle_keys": "mail"}, TypeError, "throttle_keys must be a list of str"),
        ({"deliver_at": datetime(2030, 1, 1)}, ValueError, "deliver_at needs a time zone"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_wrong_argument_is_named_and_nothing_is_sent(broker, client, arguments, kind, text):
    with pytest.raises(kind, match=text):
        client.enqueue(**{"queue": "orders", **arguments})
    with pytest.raises(kind, match=text):
        client.enqueue_many([EnqueueMessage(**{"queue": "orders", **arguments})])
    assert broker.seen == []


def test_no_value_appears_in_the_text_about_a_wrong_header(client):
    with pytest.raises(ValueError, match="header") as caught:
        client.enqueue("orders", {"token": "secret-\ud800"})
    assert "secret" not in str(caught.value)


def test_many_messages_keep_their_order_and_get_a_result_each(broker, client):
    count = 2 * _wire.BATCH_ITEMS_MAX + 1
    results = client.enqueue_many(EnqueueMessage("orders", None, b"%d" % n) for n in range(count))
    assert [r.unwrap().split("#")[0] for r in results] == [str(n) for n in range(count)]
    assert not any(r.duplicate or r.error for r in results)
    assert [len(call.request.messages) for call in broker.seen] == [
        _wire.BATCH_ITEMS_MAX,
        _wire.BATCH_ITEMS_MAX,
        1,
    ]
    assert [int(m.payload) for m in sent(broker)] == list(range(count))


def test_many_messages_are_split_by_size(broker, client):
    half = b"x" * (_wire.BATCH_BYTES_MAX // 2)
    huge = b"y" * (_wire.BATCH_BYTES_MAX + 1)
    payloads = [b"a", half, half, b"b", huge, b"c"]
    results = client.enqueue_many(EnqueueMessage("orders", None, payload) for payload in payloads)
    assert len(results) == len(payloads)
    sizes = [[len(m.payload) for m in call.request.messages] for call in broker.seen]
    assert sizes == [[1, len(half)], [len(half), 1], [len(huge)], [1]]
    assert [m.payload for m in sent(broker)] == payloads


def test_no_messages_send_nothing(broker, client):
    assert client.enqueue_many([]) == []
    assert client.ack_many([]) == []
    assert client.nack_many(iter(())) == []
    assert broker.seen == []


def test_one_bad_message_of_many_fails_alone(broker, client):
    def picky(request, context):
        error = messages_pb2.ItemError(
            reason="ERROR_REASON_QUEUE_NOT_FOUND", message="no such queue"
        )
        results = [
            service_pb2.EnqueueResult(error=error)
            if message.queue == "nowhere"
            else service_pb2.EnqueueResult(message_id="id", duplicate=bool(message.idempotency_key))
            for message in request.messages
        ]
        return service_pb2.EnqueueBatchResponse(results=results)

    broker.script("EnqueueBatch", picky)
    first, second, third = client.enqueue_many(
        [
            EnqueueMessage("orders"),
            EnqueueMessage("nowhere"),
            EnqueueMessage("orders", idempotency_key="k"),
        ]
    )
    assert (first.message_id, first.duplicate, first.error) == ("id", False, None)
    assert (third.unwrap(), third.duplicate, third.error) == ("id", True, None)
    assert second.message_id == ""
    assert type(second.error) is fila.QueueNotFoundError
    assert second.error.queue == "nowhere"
    with pytest.raises(fila.QueueNotFoundError, match="no such queue"):
        second.unwrap()


def test_a_request_that_fails_fails_its_messages_and_those_behind_it(broker, client, wire):
    refuse = wire.refuse(grpc.StatusCode.UNAVAILABLE, "away", "SHUTTING_DOWN")

    def second_time(request, context):
        return broker.store(request, context) if len(broker.seen) < 2 else refuse(request, context)

    broker.script("EnqueueBatch", second_time)
    size = _wire.BATCH_ITEMS_MAX
    results = client.enqueue_many(EnqueueMessage("orders") for _ in range(3 * size + 5))
    errors = [result.error for result in results]
    assert len(errors) == 3 * size + 5
    assert errors[:size] == [None] * size
    assert {type(error) for error in errors[size:]} == {fila.ShuttingDownError}
    assert {error.message for error in errors[size : 2 * size]} == {"away"}
    # Said once, however many requests were left.
    assert {error.message.count("not sent") for error in errors[2 * size :]} == {1}
    assert len(broker.seen) == 2


def test_a_broker_that_answers_too_few_results_is_an_error_for_all(broker, client):
    broker.script("EnqueueBatch", lambda *_: service_pb2.EnqueueBatchResponse())
    with pytest.raises(fila.InternalError, match="0 results for 1 items"):
        client.enqueue("orders")


def test_an_enqueue_that_may_have_been_stored_is_never_sent_again(broker, client, wire):
    broker.script("EnqueueBatch", wire.refuse(grpc.StatusCode.UNAVAILABLE, "reset"))
    with pytest.raises(fila.UnavailableError):
        client.enqueue("orders", timeout=2)
    assert len(broker.seen) == 1
    (result,) = client.enqueue_many([EnqueueMessage("orders")], timeout=2)
    assert type(result.error) is fila.UnavailableError
    assert len(broker.seen) == 2


@pytest.mark.asyncio
async def test_an_async_enqueue_that_may_have_been_stored_is_never_sent_again(broker, wire):
    broker.script("EnqueueBatch", wire.refuse(grpc.StatusCode.UNAVAILABLE, "reset"))
    async with fila.AsyncClient(broker.target) as client:
        with pytest.raises(fila.UnavailableError):
            await client.enqueue("orders", timeout=2)
        (result,) = await client.enqueue_many([EnqueueMessage("orders")], timeout=2)
    assert type(result.error) is fila.UnavailableError
    assert len(broker.seen) == 2


def failing(broker, wire, times, code=grpc.StatusCode.UNAVAILABLE):
    refuse = wire.refuse(code, "reset")

    def answer(request, context):
        if len(broker.seen) <= times:
            refuse(request, context)
        return broker.store(request, context)

    broker.script("EnqueueBatch", answer)


def test_an_enqueue_with_an_idempotency_key_is_sent_until_the_broker_is_back(
    broker, client, wire, monkeypatch
):
    monkeypatch.setattr("random.random", lambda: 1.0)
    failing(broker, wire, times=3)
    assert client.enqueue("orders", None, b"x", idempotency_key="k").startswith("x#")
    assert [message.idempotency_key for message in sent(broker)] == ["k"] * 4
    # Every attempt has what is left of the call's own deadline.
    first, *_, last = (call.time_remaining for call in broker.seen)
    assert last + 0.1 + 0.2 + 0.4 < first + 0.05 < 5.06


@pytest.mark.asyncio
async def test_an_async_enqueue_with_an_idempotency_key_is_sent_again(broker, wire):
    failing(broker, wire, times=3)
    async with fila.AsyncClient(broker.target) as client:
        found = await client.enqueue("orders", None, b"x", idempotency_key="k")
        assert found.startswith("x#")
        failing(broker, wire, times=6)
        (result,) = await client.enqueue_many([EnqueueMessage("orders", idempotency_key="k")])
        assert result.error is None
    assert len(broker.seen) == 4 + 3


def test_retries_end_with_the_deadline(broker, wire):
    """With the last answer's error, or on a busy machine with the deadline's own."""
    failing(broker, wire, times=1000)
    backoff = fila.Backoff(initial=0.05, maximum=0.05)
    with (
        fila.Client(broker.target, backoff=backoff) as client,
        pytest.raises((fila.UnavailableError, fila.DeadlineExceededError)),
    ):
        client.enqueue("orders", idempotency_key="k", timeout=3)
    assert len(broker.seen) > 1


def test_only_unavailable_is_tried_again(broker, client, wire):
    failing(broker, wire, times=1000, code=grpc.StatusCode.INTERNAL)
    with pytest.raises(fila.InternalError):
        client.enqueue("orders", idempotency_key="k")
    assert len(broker.seen) == 1


def test_many_messages_are_sent_again_only_if_all_have_keys(broker, client, wire):
    failing(broker, wire, times=2)
    with_key = EnqueueMessage("orders", idempotency_key="k")
    assert [r.error for r in client.enqueue_many([with_key, with_key])] == [None, None]
    assert len(broker.seen) == 3
    failing(broker, wire, times=5)
    results = client.enqueue_many([with_key, EnqueueMessage("orders")])
    assert [type(r.error) for r in results] == [fila.UnavailableError] * 2
    assert len(broker.seen) == 4


def test_settling_is_never_sent_again(broker, client, wire):
    for method in ("AckBatch", "NackBatch", "ExtendLease", "Purge"):
        broker.script(method, wire.refuse(grpc.StatusCode.UNAVAILABLE, "reset"))
    for call in (
        lambda: client.ack("orders", "m-1"),
        lambda: client.nack("orders", "m-1"),
        lambda: client.extend("orders", "m-1"),
        lambda: client.purge("orders"),
    ):
        with pytest.raises(fila.UnavailableError):
            call()
    assert len(broker.seen) == 4


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_152])
def test_joined_items_are_the_batch_that_protobuf_would_build(size):
    """Batches are put together on the wire; protobuf itself must read the same from them."""
    messages = [
        EnqueueMessage("orders", {"a": "b"}, b"x" * size),
        EnqueueMessage("", None, b""),
        EnqueueMessage("orders", None, b"y", fairness_key="k", throttle_keys=("t",)),
    ]
    data = _wire.join(_wire.enqueue_item(message, {}) for message in messages)
    expected = service_pb2.EnqueueBatchRequest()
    expected.messages.add(queue="orders", headers={"a": "b"}, payload=b"x" * size)
    expected.messages.add()
    expected.messages.add(queue="orders", payload=b"y", fairness_key="k", throttle_keys=["t"])
    assert service_pb2.EnqueueBatchRequest.FromString(data) == expected


def test_joined_acks_nacks_and_extensions_are_what_protobuf_would_build():
    acks = _wire.join(_wire.ack_item("orders", f"m-{n}", "token" if n else None) for n in range(3))
    expected = service_pb2.AckBatchRequest()
    expected.acks.add(queue="orders", message_id="m-0")
    expected.acks.add(queue="orders", message_id="m-1", lease_token="token")
    expected.acks.add(queue="orders", message_id="m-2", lease_token="token")
    assert service_pb2.AckBatchRequest.FromString(acks) == expected

    nack = _wire.join([_wire.nack_item("orders", "m", "boom", "token", 0, "mail")])
    (read,) = service_pb2.NackBatchRequest.FromString(nack).nacks
    assert read.HasField("retry_after_ms")
    assert read == service_pb2.NackRequest(
        queue="orders",
        message_id="m",
        error="boom",
        lease_token="token",
        retry_after_ms=0,
        throttle_key="mail",
    )
    plain = _wire.join([_wire.nack_item("orders", "m", "", None)])
    assert not service_pb2.NackBatchRequest.FromString(plain).nacks[0].HasField("retry_after_ms")

    extension = _wire.join([_wire.extend_item("orders", "m", "token", 5)])
    assert service_pb2.ExtendLeaseRequest.FromString(extension).extensions[0].extend_ms == 5
