# SPDX-License-Identifier: AGPL-3.0-only
"""What is stored by hand means what protobuf says it means."""

import hypothesis.strategies as st
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given

from fila.v1.messages_pb2 import Message
from fila_server.core.wire import records
from fila_server.core.wire.records_pb2 import Head, StoredMessage
from fila_server.core.wire.varint import read_varint, varint

ID = "0198aaaa-bbbb-7ccc-8ddd-00000000000a"
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


def test_keys_sort_by_queue_and_number() -> None:
    keys = [
        records.message_key(queue, number)
        for queue in (0, 1, 255, 256, 2**32 - 2)
        for number in (0, 1, 255, 256, 2**64 - 1)
    ]
    assert keys == sorted(keys)
    start, end = records.queue_range(255)
    assert [records.key_number(key) for key in keys if start <= key < end] == [
        0,
        1,
        255,
        256,
        2**64 - 1,
    ]


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31, 2**63])
def test_numbers(value: int) -> None:
    assert records.from_u64(records.u64(value)) == value
    encoded = varint(value)
    assert read_varint(b"x" + encoded + b"x", 1) == (value, 1 + len(encoded))
    assert Timestamp.FromString(b"\x08" + encoded).seconds == value - (
        2**64 if value >= 2**63 else 0
    )


@given(
    texts,
    st.integers(0, 1000),
    st.lists(texts.filter(bool), max_size=5),
    st.integers(1, 1000),
    st.integers(0, 2**63 - 1),
    st.binary(max_size=500),
)
def test_a_stored_message_can_be_taken_apart_and_parsed(
    key: str, weight: int, throttle_keys: list[str], cost: int, wall_ns: int, payload: bytes
) -> None:
    head = Head(fairness_key=key, weight=weight, throttle_keys=throttle_keys, throttle_cost=cost)
    body = Message(id=ID, headers={"a": "b"}, payload=payload).SerializeToString()
    stamp = records.stamp(wall_ns)
    value = records.full_head(head, stamp) + body
    head_bytes, found_stamp, found_body = records.split(value)
    assert (Head.FromString(head_bytes), found_body) == (head, body)
    assert records.stamp_ns(found_stamp) == wall_ns
    assert records.body_id(found_body) == ID
    stored = StoredMessage.FromString(value)
    assert (stored.id, stored.head.enqueued_at_ns) == (ID, wall_ns)
    plain = records.lane_head(key, weight, tuple(throttle_keys), cost) + stamp + body
    assert records.split(plain)[1:] == (stamp, body)
    assert Head.FromString(records.split(plain)[0]).fairness_key == key


def test_an_id_is_found_however_the_body_is_encoded() -> None:
    body = Message(id="short", payload=b"x").SerializeToString()
    assert records.body_id(body) == "short"


def test_an_id_carries_the_number_of_its_message() -> None:
    assert records.id_number(ID) == 10
    assert records.id_number(ID[:24] + "ffffffffffff") == (1 << 48) - 1
    for text in ("", "nonsense", ID.upper(), ID + "\n", "x" * 24 + "1_0", "f" * 36):
        assert records.id_number(text) is None


def test_the_lane_of_a_head() -> None:
    assert records.lane_key_of(Head(fairness_key="a", weight=3)) == records.PLAIN
    assert records.lane_key_of(Head(throttle_keys=["x", "y"])) == (("x", "y"), 1)
    assert records.lane_key_of(Head(throttle_keys=["x"], throttle_cost=4)) == (("x",), 4)
    assert records.lane_key_of(Head(throttle_cost=4)) == records.PLAIN
