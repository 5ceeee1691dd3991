# SPDX-License-Identifier: AGPL-3.0-only
"""Every call of the contract once, as it should go."""

import time
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message_factory import GetMessageClass

from fila.v1 import admin_pb2 as ap
from fila.v1 import service_pb2 as sp
from server.tests.rpc.wire import Wire, refused


def test_enqueue_receive_ack(wire: Wire) -> None:
    queue = wire.queue()
    before_ns = time.time_ns()
    request = sp.EnqueueRequest(
        queue=queue,
        headers={"kind": "invoice", "": "ünïcode"},
        payload=bytes(range(256)),
        fairness_key="tenant",
        weight=3,
        throttle_keys=["b", "a", "b"],
        throttle_cost=2,
    )
    response = wire.call(request)
    assert len(response.message_id) == 36 and not response.duplicate
    (message,) = wire.receive(queue)
    assert message.id == response.message_id
    assert dict(message.headers) == {"kind": "invoice", "": "ünïcode"}
    assert message.payload == bytes(range(256))
    metadata = message.metadata
    assert (metadata.fairness_key, metadata.weight) == ("tenant", 3)
    assert (list(metadata.throttle_keys), metadata.throttle_cost) == (["a", "b"], 2)
    assert (metadata.attempt_count, metadata.queue_id, metadata.last_error) == (0, queue, "")
    assert metadata.lease_token
    times = message.timestamps
    enqueued_ns = times.enqueued_at.ToNanoseconds()
    leased_ns = times.leased_at.ToNanoseconds()
    assert before_ns <= enqueued_ns <= leased_ns <= time.time_ns()
    assert times.lease_expires_at.ToNanoseconds() - leased_ns == 30_000 * 1_000_000
    wire.ack(queue, message)
    assert wire.receive(queue) == []
    assert wire.stats(queue).counters.acked == 1


def test_an_empty_message_is_a_message(wire: Wire) -> None:
    queue = wire.queue()
    wire.enqueue(queue, b"")
    (message,) = wire.receive(queue)
    assert (message.payload, dict(message.headers)) == (b"", {})
    assert message.metadata.fairness_key == "default"


def test_ids_grow_with_time(wire: Wire) -> None:
    queue = wire.queue()
    ids = [wire.enqueue(queue) for _ in range(20)]
    assert ids == sorted(set(ids))


def test_nack_brings_a_message_back_with_its_error(wire: Wire) -> None:
    queue = wire.queue()
    message_id = wire.enqueue(queue)
    (message,) = wire.receive(queue)
    wire.nack(queue, message, error="card declined", lease_token=message.metadata.lease_token)
    (again,) = wire.receive(queue)
    assert again.id == message_id
    assert (again.metadata.attempt_count, again.metadata.last_error) == (1, "card declined")
    assert again.metadata.lease_token != message.metadata.lease_token


def test_extend_moves_the_end_of_a_lease(wire: Wire) -> None:
    queue = wire.queue()
    wire.enqueue(queue)
    (message,) = wire.receive(queue)
    extension = sp.LeaseExtension(queue=queue, message_id=message.id, extend_ms=600_000)
    (result,) = wire.call(sp.ExtendLeaseRequest(extensions=[extension])).results
    assert not result.HasField("error")
    was = message.timestamps.lease_expires_at.ToSeconds()
    assert result.lease_expires_at.ToSeconds() >= was + 500


def test_queue_life(wire: Wire) -> None:
    created = wire.call(ap.CreateQueueRequest(name="life", config={"max_attempts": 3}))
    assert created.dead_letter_queue == "life.dlq"
    names = [row.name for row in wire.call(ap.ListQueuesRequest()).queues]
    assert names == sorted(names) and {"life", "life.dlq"} <= set(names)
    updated = wire.call(
        ap.UpdateQueueRequest(
            queue="life",
            config={"visibility_timeout_ms": 5000, "max_attempts": 9},
            update_mask=FieldMask(paths=["visibility_timeout_ms"]),
        )
    )
    assert (updated.config.visibility_timeout_ms, updated.config.max_attempts) == (5000, 3)
    assert wire.stats("life").config == updated.config
    wire.call(ap.DeleteQueueRequest(queue="life"))
    names = [row.name for row in wire.call(ap.ListQueuesRequest()).queues]
    assert "life" not in names


def test_dead_letters_are_peeked_and_redriven(wire: Wire) -> None:
    queue = wire.queue(max_attempts=1)
    wire.dead_letter(queue, 3)
    dlq = f"{queue}.dlq"
    peeked = wire.call(ap.PeekRequest(queue=dlq)).messages
    assert [row.message.metadata.last_error for row in peeked] == ["boom"] * 3
    assert wire.call(ap.RedriveRequest(dlq_queue=dlq, count=2)).redriven == 2
    assert (wire.stats(queue).depth, wire.stats(dlq).depth) == (2, 1)
    assert [message.metadata.attempt_count for message in wire.receive(queue, 5)] == [0, 0]


def test_pause_and_resume(wire: Wire) -> None:
    queue = wire.queue()
    wire.enqueue(queue)
    wire.call(ap.PauseRequest(queue=queue))
    assert wire.receive(queue) == []
    wire.call(ap.ResumeRequest(queue=queue))
    assert len(wire.receive(queue)) == 1


def test_cancel_and_purge(wire: Wire) -> None:
    queue = wire.queue()
    ids = [wire.enqueue(queue) for _ in range(3)]
    wire.call(ap.CancelMessageRequest(queue=queue, message_id=ids[1]))
    assert wire.call(ap.PurgeRequest(queue=queue)).purged == 2
    assert wire.stats(queue).depth == 0


def test_explain_says_something(wire: Wire) -> None:
    queue = wire.queue()
    message_id = wire.enqueue(queue)
    response = wire.call(ap.ExplainRequest(queue=queue, message_id=message_id))
    assert response.state == ap.MESSAGE_STATE_PENDING
    assert response.summary


def test_runtime_configuration(wire: Wire) -> None:
    wire.call(ap.SetConfigRequest(key="calls.one", value="1"))
    wire.call(ap.SetConfigRequest(key="calls.two", value="ü"))
    assert wire.call(ap.GetConfigRequest(key="calls.two")).value == "ü"
    listed = wire.call(ap.ListConfigRequest(prefix="calls."))
    assert [(row.key, row.value) for row in listed.entries] == [
        ("calls.one", "1"),
        ("calls.two", "ü"),
    ]
    assert listed.total_count == 2
    wire.call(ap.DeleteConfigRequest(key="calls.one"))
    assert wire.call(ap.ListConfigRequest(prefix="calls.")).total_count == 1


def _unary_methods() -> list[tuple[str, str, Any]]:
    return [
        (service.full_name, method.name, GetMessageClass(method.input_type))
        for file in (ap.DESCRIPTOR, sp.DESCRIPTOR)
        for service in file.services_by_name.values()
        for method in service.methods
        if not method.server_streaming
    ]


@pytest.mark.parametrize(("service", "method", "request_type"), _unary_methods())
def test_no_call_of_the_contract_is_missing_or_breaks_on_an_empty_request(
    wire: Wire, service: str, method: str, request_type: Any
) -> None:
    lists = ("ListQueues", "ListConfig", "ListThrottles")
    if any(
        name in method for name in (*lists, "Batch", "ExtendLease", "SettleGrants", "GetStatus")
    ):
        wire.call(request_type())
        return
    refusal = refused(lambda: wire.call(request_type()))
    assert refusal.reason in ("INVALID_ARGUMENT", "CONFIG_NOT_FOUND", "PERMISSION_DENIED")
    assert refusal.text
