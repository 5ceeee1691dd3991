# SPDX-License-Identifier: AGPL-3.0-only
"""The heads of what travels through a pipeline: taken off as protobuf would, and put on."""

import random

import pytest
from google.protobuf.message import DecodeError

from fila.v1 import service_pb2 as sp
from fila_server.core.wire.pipelines import CALLS, cut_request, encode_answer, encode_refusal
from fila_server.errors import InvalidArgument, QueueNotFound

ENQUEUE, ACK = CALLS["enqueue"], CALLS["ack"]


def test_a_request_is_cut_out_as_it_came() -> None:
    for size in (0, 1, 200, 70_000):
        batch = sp.EnqueueBatchRequest(messages=[sp.EnqueueRequest(payload=bytes(size))])
        encoded = sp.PipelineRequest(enqueue=batch).SerializeToString()
        assert cut_request(encoded) == (ENQUEUE, batch.SerializeToString())


def test_an_answer_is_what_protobuf_reads() -> None:
    response = sp.AckBatchResponse()
    response.results.add()
    encoded = encode_answer(ACK, response.SerializeToString())
    assert sp.PipelineResponse.FromString(encoded) == sp.PipelineResponse(ack=response)
    refusal = sp.PipelineResponse.FromString(encode_refusal(QueueNotFound("no such queue")))
    assert refusal.error.message == "no such queue"


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        (b"", "names no call"),
        (b"\x3a\x01x", "names no call"),  # fields that nobody knows, of every kind
        (b"\x38\x01", "names no call"),
        (b"\x39" + bytes(8), "names no call"),
        (b"\x3d" + bytes(4), "names no call"),
        (b"\x3b\x3c", "cannot be decoded"),  # a group
        (b"\x0a", "cannot be decoded"),
        (b"\x0a\x02x", "cannot be decoded"),
        (b"\x3d\x00", "cannot be decoded"),
        (b"\x80" * 100, "cannot be decoded"),
        (b"\x38\x01" * 17, "cannot be decoded"),
    ],
)
def test_bytes_that_are_no_request_are_refused(encoded: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        cut_request(encoded)


def test_what_protobuf_reads_is_read_alike() -> None:
    """Whole fields in any order, some of them damaged: the same call, with the same content."""
    rng = random.Random(8)
    parts = [
        sp.PipelineRequest(
            enqueue=sp.EnqueueBatchRequest(messages=[sp.EnqueueRequest(queue="a")])
        ).SerializeToString(),
        sp.PipelineRequest(
            ack=sp.AckBatchRequest(acks=[sp.AckRequest(queue="b")])
        ).SerializeToString(),
        b"\x38\x01",
        b"\x3a\x02xy",
    ]
    compared = 0
    for _ in range(3000):
        raw = bytearray(b"".join(rng.choices(parts, k=rng.randint(1, 4))))
        if rng.random() < 0.5:
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        try:
            number, content = cut_request(bytes(raw))
        except InvalidArgument:
            continue
        name = next(name for name, known in CALLS.items() if known == number)
        try:
            request = sp.PipelineRequest.FromString(bytes(raw))
        except DecodeError:
            continue  # what is inside is not looked at here
        assert request.WhichOneof("call") == name
        kind = type(getattr(request, name))
        assert kind.FromString(content) == getattr(request, name)
        compared += 1
    assert compared > 1000
