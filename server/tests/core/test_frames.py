# SPDX-License-Identifier: AGPL-3.0-only
"""What is sent by hand means what protobuf says it means."""

import pytest

from fila.v1.messages_pb2 import FAILURE_CAUSE_EXPIRED, FAILURE_CAUSE_NACK, Message
from fila.v1.service_pb2 import ConsumeResponse
from fila_server.core.wire import frames
from fila_server.core.wire.records import stamp
from fila_server.core.wire.records_pb2 import StoredFailure


@pytest.mark.parametrize("wall_ns", [0, 1, 999_999_999, 10**9, 1_800_000_000 * 10**9 + 123])
def test_timestamps(wall_ns: int) -> None:
    leased = frames.timestamp_field(2, wall_ns) + frames.timestamp_field(3, wall_ns + 5)
    encoded = frames.delivery_timestamps(stamp(wall_ns), leased)
    times = Message.FromString(encoded).timestamps
    assert times.enqueued_at.ToNanoseconds() == wall_ns
    assert times.leased_at.ToNanoseconds() == wall_ns
    assert times.lease_expires_at.ToNanoseconds() == wall_ns + 5


@pytest.mark.parametrize("size", [0, 1, 127, 128, 4095, 4096, 5000, 3_000_000])
def test_frames(size: int) -> None:
    message = Message(payload=bytes(size)).SerializeToString()
    frame = frames.frame_prefix(len(message)) + message
    (parsed,) = ConsumeResponse.FromString(frame).messages
    assert len(parsed.payload) == size


def test_metadata_is_put_together_from_what_is_shared_and_what_is_not() -> None:
    token = frames.token_field("1f")
    shared = frames.lane_metadata("q", "acme", 3, ("mail", "sms"), 5)
    failures = [
        StoredFailure(failed_at_ns=5, cause=FAILURE_CAUSE_NACK, error="no"),
        StoredFailure(failed_at_ns=10**18 + 7, cause=FAILURE_CAUSE_EXPIRED),
    ]
    own = frames.retry_fields(2, "no", failures)
    for fields in (shared, shared + own):
        metadata = Message.FromString(frames.framed_metadata(fields, len(token)) + token).metadata
        assert (metadata.queue_id, metadata.fairness_key, metadata.weight) == ("q", "acme", 3)
        assert (list(metadata.throttle_keys), metadata.throttle_cost) == (["mail", "sms"], 5)
        assert metadata.lease_token == "1f"
    assert (metadata.attempt_count, metadata.last_error) == (2, "no")
    assert [(it.failed_at.ToNanoseconds(), it.cause, it.error) for it in metadata.failures] == [
        (5, FAILURE_CAUSE_NACK, "no"),
        (10**18 + 7, FAILURE_CAUSE_EXPIRED, ""),
    ]
