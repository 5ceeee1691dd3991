# SPDX-License-Identifier: AGPL-3.0-only
"""Every way to be refused: the status, the reason in the trailer, and a text that names the value.

Overload, shutdown, a full disk and failing storage need a broker in trouble: see test_overload.py
and the process tests. Access has tests of its own.
"""

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from fila.v1 import admin_pb2 as ap
from fila.v1 import service_pb2 as sp
from server.tests.rpc.wire import Refusal, Wire, refused

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
UNKNOWN_ID = "0198aaaa-bbbb-7ccc-8ddd-000000000001"
YEAR_MS = 365 * 86_400_000


@pytest.mark.parametrize(
    "make",
    [
        lambda name: sp.EnqueueRequest(queue=name),
        lambda name: sp.ReceiveRequest(queue=name),
        lambda name: sp.AckRequest(queue=name, message_id=UNKNOWN_ID),
        lambda name: sp.NackRequest(queue=name, message_id=UNKNOWN_ID),
        lambda name: ap.UpdateQueueRequest(
            queue=name, update_mask=FieldMask(paths=["max_attempts"])
        ),
        lambda name: ap.DeleteQueueRequest(queue=name),
        lambda name: ap.GetStatsRequest(queue=name),
        lambda name: ap.PeekRequest(queue=name),
        lambda name: ap.PurgeRequest(queue=name),
        lambda name: ap.PauseRequest(queue=name),
        lambda name: ap.ResumeRequest(queue=name),
        lambda name: ap.CancelMessageRequest(queue=name, message_id=UNKNOWN_ID),
        lambda name: ap.RedriveRequest(dlq_queue=name),
        lambda name: ap.ExplainRequest(queue=name, fairness_key="a"),
    ],
)
def test_unknown_queue(wire: Wire, make: Callable[[str], Any]) -> None:
    for name in ("nobody", "x" * 300, "no\nline\x00", "emoji 🦆", "q1 "):
        refusal = wire.refusal(make(name))
        assert (refusal.status, refusal.reason) == (NOT_FOUND, "QUEUE_NOT_FOUND")
        assert name[:8].split("\n")[0].encode("unicode_escape").decode() in refusal.text
        assert "\n" not in refusal.text and len(refusal.text) < 400
    refusal = wire.refusal(make(""))
    assert refusal == Refusal(INVALID, "INVALID_ARGUMENT", "queue must not be empty")


def test_consuming_an_unknown_queue_ends_the_stream(wire: Wire) -> None:
    refusal = refused(lambda: next(wire.consume("nobody")))
    assert refusal == Refusal(NOT_FOUND, "QUEUE_NOT_FOUND", 'queue "nobody" does not exist')


def test_taken_name(wire: Wire) -> None:
    queue = wire.queue()
    refusal = wire.refusal(ap.CreateQueueRequest(name=queue))
    assert refusal.status is grpc.StatusCode.ALREADY_EXISTS
    assert refusal.reason == "QUEUE_ALREADY_EXISTS"
    assert queue in refusal.text


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a\n", "ä", "a:b", "x" * 252, "🦆", "a\x00", "orders.dlq", ".dlq"]
)
def test_bad_queue_name(wire: Wire, name: str) -> None:
    refusal = wire.refusal(ap.CreateQueueRequest(name=name))
    assert (refusal.status, refusal.reason) == (INVALID, "INVALID_ARGUMENT")
    assert name.encode("unicode_escape").decode()[:60] in refusal.text


@pytest.mark.parametrize("name", ["a", "A.b_c-d/9", "x" * 251, "...", "dlq"])
def test_good_queue_name(wire: Wire, name: str) -> None:
    wire.call(ap.CreateQueueRequest(name=name))
    assert wire.stats(name + ".dlq").dead_letter_of == name


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"fairness_key": "k" * 257}, "257 bytes"),
        ({"fairness_key": "é" * 129}, "258 bytes"),
        ({"weight": 1001}, "weight 1001"),
        ({"throttle_keys": [str(n) for n in range(17)]}, "17 throttle_keys"),
        ({"throttle_keys": [""]}, 'throttle_keys ""'),
        ({"throttle_keys": ["t" * 257]}, "257 bytes"),
        ({"throttle_keys": ["t"], "throttle_cost": 1_000_001}, "throttle_cost 1000001"),
        ({"delay_ms": YEAR_MS + 1}, f"delay_ms {YEAR_MS + 1}"),
        ({"delay_ms": 2**64 - 1}, f"delay_ms {2**64 - 1}"),
        ({"deliver_at": Timestamp(seconds=4_000_000_000)}, "deliver_at"),
        ({"deliver_at": Timestamp(seconds=10**15)}, "deliver_at of 1000000000000000 s"),
        ({"deliver_at": Timestamp(seconds=-(10**15))}, "deliver_at of -1000000000000000 s"),
        ({"deliver_at": Timestamp(seconds=1, nanos=-1)}, "deliver_at"),
        ({"delay_ms": 1, "deliver_at": Timestamp(seconds=1)}, "exclude each other"),
        ({"ttl_ms": 10 * YEAR_MS + 1}, f"ttl_ms {10 * YEAR_MS + 1}"),
        ({"ttl_ms": 2**64 - 1}, f"ttl_ms {2**64 - 1}"),
        ({"idempotency_key": "i" * 257}, "257 bytes"),
    ],
)
def test_bad_enqueue(wire: Wire, fields: dict[str, Any], text: str) -> None:
    queue = wire.queue()
    refusal = wire.refusal(sp.EnqueueRequest(queue=queue, **fields))
    assert (refusal.status, refusal.reason) == (INVALID, "INVALID_ARGUMENT")
    assert text in refusal.text
    assert wire.stats(queue).depth == 0


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"payload": bytes(3 * 1024 * 1024 + 1)}, "3145729 bytes"),
        ({"headers": {str(n): "" for n in range(257)}}, "257 headers"),
        ({"headers": {"k": "v" * 65536}}, "65537 bytes"),
        ({"headers": {"k" * 65537: ""}}, "65537 bytes"),
    ],
)
def test_too_large_message(wire: Wire, fields: dict[str, Any], text: str) -> None:
    queue = wire.queue()
    refusal = wire.refusal(sp.EnqueueRequest(queue=queue, **fields))
    assert (refusal.status, refusal.reason) == (INVALID, "MESSAGE_TOO_LARGE")
    assert text in refusal.text
    assert "vvv" not in refusal.text and "kkk" not in refusal.text


def test_largest_message_passes(wire: Wire) -> None:
    queue = wire.queue()
    headers = {f"{n:03}": "v" * 253 for n in range(256)}
    wire.enqueue(queue, bytes(3 * 1024 * 1024), headers=headers, fairness_key="k" * 256)
    (message,) = wire.receive(queue)
    assert len(message.payload) == 3 * 1024 * 1024 and dict(message.headers) == headers
    assert message.ByteSize() < 4 * 1024 * 1024  # gRPC's receive limit in every language


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"visibility_timeout_ms": 43_200_001}, "visibility_timeout_ms 43200001"),
        ({"max_attempts": 1_000_001}, "max_attempts 1000001"),
        ({"retry_delay_ms": 2**63}, f"retry_delay_ms {2**63}"),
        ({"retry_delay_max_ms": 2**63}, f"retry_delay_max_ms {2**63}"),
        ({"default_ttl_ms": 2**63}, f"default_ttl_ms {2**63}"),
        ({"idempotency_window_ms": 2**63}, f"idempotency_window_ms {2**63}"),
        ({"hook_timeout_ms": 10_001}, "hook_timeout_ms 10001"),
        ({"hook_memory_limit_bytes": 2**40}, f"hook_memory_limit_bytes {2**40}"),
        ({"quantum": 1001}, "quantum 1001"),
        ({"on_hook_error": 99}, "on_hook_error 99"),
        ({"on_enqueue_script": "-" * 65537}, "on_enqueue_script has 65537 bytes"),
    ],
)
def test_bad_queue_settings(wire: Wire, config: dict[str, Any], text: str) -> None:
    refusal = wire.refusal(ap.CreateQueueRequest(name="refused", config=config))
    assert (refusal.status, refusal.reason) == (INVALID, "INVALID_ARGUMENT")
    assert text in refusal.text
    queue = wire.queue()
    mask = FieldMask(paths=list(config))
    refusal = wire.refusal(ap.UpdateQueueRequest(queue=queue, config=config, update_mask=mask))
    assert (refusal.status, text in refusal.text) == (INVALID, True)
    assert wire.stats(queue).config == ap.QueueConfig()


@pytest.mark.parametrize("paths", [[], ["nonsense"], ["max_attempts", "config.max_attempts"]])
def test_bad_update_mask(wire: Wire, paths: list[str]) -> None:
    queue = wire.queue()
    refusal = wire.refusal(ap.UpdateQueueRequest(queue=queue, update_mask=FieldMask(paths=paths)))
    assert (refusal.status, refusal.reason) == (INVALID, "INVALID_ARGUMENT")
    assert (paths or ["update_mask"])[-1] in refusal.text


@pytest.mark.parametrize("script", ["this is not lua", "x = 1", "on_enqueue = 5", "\x1bLua"])
def test_bad_script(wire: Wire, script: str) -> None:
    request = ap.CreateQueueRequest(name="scripted", config={"on_enqueue_script": script})
    refusal = wire.refusal(request)
    assert (refusal.status, refusal.reason) == (INVALID, "INVALID_SCRIPT")
    assert wire.refusal(ap.GetStatsRequest(queue="scripted")).reason == "QUEUE_NOT_FOUND"


def test_failing_hook_refuses_the_enqueue_where_the_queue_says_so(wire: Wire) -> None:
    queue = wire.queue(
        on_enqueue_script='function on_enqueue(msg) error("no tenant") end',
        on_hook_error=ap.HOOK_ERROR_POLICY_REJECT,
    )
    refusal = wire.refusal(sp.EnqueueRequest(queue=queue))
    assert (refusal.status, refusal.reason) == (PRECONDITION, "HOOK_FAILED")
    assert wire.stats(queue).depth == 0


@pytest.mark.parametrize(
    "message_id",
    [UNKNOWN_ID, "nonsense", "x" * 5000, "\n", "🦆", "f" * 44, "x" * 24 + "-1", UNKNOWN_ID[:-1]],
)
@pytest.mark.parametrize("token", ["", "1", "🦆", "t" * 5000])
def test_unknown_message(wire: Wire, message_id: str, token: str) -> None:
    queue = wire.queue()
    shown = message_id[:32].encode("unicode_escape").decode()
    for request in (
        sp.AckRequest(queue=queue, message_id=message_id, lease_token=token),
        sp.NackRequest(queue=queue, message_id=message_id, lease_token=token),
        ap.CancelMessageRequest(queue=queue, message_id=message_id),
    ):
        refusal = wire.refusal(request)
        assert (refusal.status, refusal.reason) == (NOT_FOUND, "MESSAGE_NOT_FOUND")
        assert shown in refusal.text and len(refusal.text) < 200
    item = sp.LeaseExtension(queue=queue, message_id=message_id, lease_token=token)
    (result,) = wire.call(sp.ExtendLeaseRequest(extensions=[item])).results
    assert shown in result.error.message


def test_empty_message_id(wire: Wire) -> None:
    queue = wire.queue()
    for request in (
        sp.AckRequest(queue=queue),
        sp.NackRequest(queue=queue),
        ap.CancelMessageRequest(queue=queue),
    ):
        refusal = wire.refusal(request)
        assert refusal == Refusal(INVALID, "INVALID_ARGUMENT", "message_id must not be empty")


def test_message_that_is_not_leased_is_not_acked(wire: Wire) -> None:
    queue = wire.queue()
    message_id = wire.enqueue(queue)
    refusal = wire.refusal(sp.AckRequest(queue=queue, message_id=message_id))
    assert refusal.reason == "MESSAGE_NOT_FOUND"
    assert wire.stats(queue).depth == 1


def test_second_ack_is_message_not_found(wire: Wire) -> None:
    queue = wire.queue()
    wire.enqueue(queue)
    (message,) = wire.receive(queue)
    wire.ack(queue, message)
    for token in ("", message.metadata.lease_token):
        request = sp.AckRequest(queue=queue, message_id=message.id, lease_token=token)
        assert wire.refusal(request).reason == "MESSAGE_NOT_FOUND"


def test_stale_token(wire: Wire) -> None:
    queue = wire.queue()
    wire.enqueue(queue)
    (first,) = wire.receive(queue)
    wire.nack(queue, first)
    token = first.metadata.lease_token
    pending = wire.refusal(sp.AckRequest(queue=queue, message_id=first.id, lease_token=token))
    (second,) = wire.receive(queue)
    leased = wire.refusal(sp.NackRequest(queue=queue, message_id=first.id, lease_token=token))
    for refusal in (pending, leased):
        assert (refusal.status, refusal.reason) == (PRECONDITION, "LEASE_EXPIRED")
        assert first.id in refusal.text and token not in refusal.text.split('"')
    wire.ack(queue, second)


def test_leased_message_is_not_cancelled(wire: Wire) -> None:
    queue = wire.queue()
    wire.enqueue(queue)
    (message,) = wire.receive(queue)
    refusal = wire.refusal(ap.CancelMessageRequest(queue=queue, message_id=message.id))
    assert (refusal.status, refusal.reason) == (PRECONDITION, "MESSAGE_LEASED")
    assert message.id in refusal.text


def test_redrive_of_what_is_no_dead_letter_queue(wire: Wire) -> None:
    queue = wire.queue()
    refusal = wire.refusal(ap.RedriveRequest(dlq_queue=queue))
    assert (refusal.status, refusal.reason) == (INVALID, "NOT_A_DEAD_LETTER_QUEUE")
    assert queue in refusal.text


def test_redrive_into_a_deleted_queue(wire: Wire) -> None:
    queue = wire.queue(max_attempts=1)
    wire.dead_letter(queue)
    wire.call(ap.DeleteQueueRequest(queue=queue, keep_dead_letters=True))
    refusal = wire.refusal(ap.RedriveRequest(dlq_queue=f"{queue}.dlq"))
    assert (refusal.status, refusal.reason) == (PRECONDITION, "PARENT_QUEUE_NOT_FOUND")
    assert queue in refusal.text
    assert wire.stats(f"{queue}.dlq").depth == 1


def test_full_queue(wire: Wire) -> None:
    queue = wire.queue(max_messages=2)
    wire.enqueue(queue)
    wire.enqueue(queue, delay_ms=60_000)
    refusal = wire.refusal(sp.EnqueueRequest(queue=queue))
    assert refusal.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refusal.reason == "QUEUE_FULL"
    assert queue in refusal.text and "2 messages" in refusal.text


def test_unknown_configuration_entry(wire: Wire) -> None:
    for request in (ap.GetConfigRequest(key="nothing"), ap.DeleteConfigRequest(key="nothing")):
        refusal = wire.refusal(request)
        assert (refusal.status, refusal.reason) == (NOT_FOUND, "CONFIG_NOT_FOUND")
        assert '"nothing"' in refusal.text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("", "x"),
        ("k" * 513, "x"),
        ("large", "v" * 65537),
        ("throttle:a:speed", "1"),
        ("throttle::rate", "1"),
        ("throttle:a:rate", "fast"),
        ("throttle:a:rate", "0"),
        ("throttle:a:rate", "-1"),
        ("throttle:a:rate", "nan"),
        ("throttle:a:rate", "inf"),
        ("throttle:a:rate", "1e-300"),
        ("throttle:a:burst", "0.5"),
        ("throttle.a", "1,0"),
        ("throttle.a", ","),
        ("throttle.", "1"),
        ("concurrency:a:limit", "0"),
        ("concurrency:a:limit", "9" * 5000),
        ("concurrency:a:most", "1"),
        ("weight:q", "1"),
        ("weight:q:a", "1001"),
    ],
)
def test_bad_configuration_entry(wire: Wire, key: str, value: str) -> None:
    refusal = wire.refusal(ap.SetConfigRequest(key=key, value=value))
    assert (refusal.status, refusal.reason) == (INVALID, "INVALID_ARGUMENT")
    assert key[:40] in refusal.text and len(refusal.text) < 400
    assert wire.refusal(ap.GetConfigRequest(key=key)).reason == "CONFIG_NOT_FOUND"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"max_messages": 5001}, "max_messages 5001"),
        ({"wait_ms": 60_001}, "wait_ms 60001"),
        ({"wait_ms": 2**64 - 1}, f"wait_ms {2**64 - 1}"),
        ({"visibility_timeout_ms": 43_200_001}, "visibility_timeout_ms 43200001"),
    ],
)
def test_bad_receive(wire: Wire, fields: dict[str, Any], text: str) -> None:
    refusal = wire.refusal(sp.ReceiveRequest(queue=wire.queue(), **fields))
    assert (refusal.status, refusal.reason) == (INVALID, "INVALID_ARGUMENT")
    assert text in refusal.text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"max_in_flight": 100_001}, "max_in_flight 100001"),
        ({"visibility_timeout_ms": 2**64 - 1}, f"visibility_timeout_ms {2**64 - 1}"),
    ],
)
def test_bad_consume(wire: Wire, fields: dict[str, Any], text: str) -> None:
    refusal = refused(lambda: next(wire.consume(wire.queue(), **fields)))
    assert (refusal.status, refusal.reason) == (INVALID, "INVALID_ARGUMENT")
    assert text in refusal.text


def test_bad_settlement_changes_nothing(wire: Wire) -> None:
    queue = wire.queue()
    wire.enqueue(queue, throttle_keys=["mail"])
    (message,) = wire.receive(queue)
    for fields, text in (
        ({"retry_after_ms": YEAR_MS + 1}, "retry_after_ms"),
        ({"retry_after_ms": 1, "throttle_key": "sms"}, '"sms"'),
    ):
        request = sp.NackRequest(queue=queue, message_id=message.id, **fields)
        refusal = wire.refusal(request)
        assert (refusal.status, refusal.reason) == (INVALID, "INVALID_ARGUMENT")
        assert text in refusal.text
    wire.ack(queue, message)


@pytest.mark.parametrize(
    ("request_type", "fields"),
    [
        (ap.PeekRequest, {"limit": 1001}),
        (ap.PeekRequest, {"state": 99}),
        (ap.PauseRequest, {"fairness_key": "k" * 257}),
        (ap.ExplainRequest, {}),
    ],
)
def test_bad_admin_request(wire: Wire, request_type: Any, fields: dict[str, Any]) -> None:
    refusal = wire.refusal(request_type(queue=wire.queue(), **fields))
    assert (refusal.status, refusal.reason) == (INVALID, "INVALID_ARGUMENT")
    assert refusal.text


@pytest.mark.parametrize(
    "path",
    [
        "/fila.v1.FilaService/Enqueue",
        "/fila.v1.FilaService/EnqueueBatch",
        "/fila.v1.FilaService/AckBatch",
        "/fila.v1.FilaAdmin/CreateQueue",
    ],
)
@pytest.mark.parametrize("encoded", [b"\n\x02\xff\xfe", b"\xff\xff\xff\xff", b"\n\x7fshort"])
def test_bytes_that_are_no_request(wire: Wire, path: str, encoded: bytes) -> None:
    refusal = refused(lambda: wire.channel.unary_unary(path)(encoded, timeout=30))
    assert (refusal.status, refusal.reason) == (INVALID, "INVALID_ARGUMENT")
    assert "cannot be decoded" in refusal.text


def test_bytes_that_are_no_consume_request(wire: Wire) -> None:
    stream = wire.channel.unary_stream("/fila.v1.FilaService/Consume")(b"\n\x01\xff", timeout=30)
    refusal = refused(lambda: next(stream))
    assert (refusal.status, refusal.reason) == (INVALID, "INVALID_ARGUMENT")


def test_unknown_fields_are_ignored(wire: Wire) -> None:
    queue = wire.queue()
    request = sp.EnqueueRequest(queue=queue, payload=b"p").SerializeToString()
    unknown = b"\xfa\x3e\x03abc" + b"\xf0\x3e\x05"
    for encoded in (request + unknown, unknown + request):
        wire.channel.unary_unary("/fila.v1.FilaService/Enqueue")(encoded, timeout=30)
    messages = wire.receive(queue, 2)
    assert [message.payload for message in messages] == [b"p", b"p"]
    assert all(b"abc" not in message.SerializeToString() for message in messages)


@pytest.mark.parametrize(
    "path", ["/fila.v1.FilaService/Nothing", "/fila.v9.FilaService/Enqueue", "/x/y"]
)
def test_unknown_call(wire: Wire, path: str) -> None:
    refusal = refused(lambda: wire.channel.unary_unary(path)(b"", timeout=30))
    assert refusal.status is grpc.StatusCode.UNIMPLEMENTED
