# SPDX-License-Identifier: AGPL-3.0-only
"""Every call with bytes that mean nothing and with requests that mean something odd.

Whatever comes, the answer is a status that says whose fault it was, and the broker goes on. The
seed is the test's parameter, so a failure can be had again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from fila.v1 import admin_pb2, service_pb2
from server.tests.broker_process import BrokerProcess
from server.tests.rpc.wire import Wire

LIMIT_S = 60.0
ROUNDS = 25
QUEUES = ("a", "b", "a.dlq", "b.dlq")
SETTINGS = ("throttle:t:rate", "throttle.t*", "weight:a:*", "concurrency:t:limit")
STATUS = grpc.StatusCode
# What a caller can be told. The others say that the broker did not know what happened to it.
TOLD = {
    STATUS.OK,
    STATUS.INVALID_ARGUMENT,
    STATUS.NOT_FOUND,
    STATUS.ALREADY_EXISTS,
    STATUS.FAILED_PRECONDITION,
    STATUS.PERMISSION_DENIED,
    STATUS.RESOURCE_EXHAUSTED,
}
SERVICES = (
    service_pb2.DESCRIPTOR.services_by_name["FilaService"],
    admin_pb2.DESCRIPTOR.services_by_name["FilaAdmin"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
)
METHODS = [method for service in SERVICES for method in service.methods]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of its own: it is treated badly."""
    broker = BrokerProcess(tmp_path_factory.mktemp("fuzzed"))
    broker.start()
    yield broker
    broker.close()


@pytest.fixture(scope="module")
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    wire = Wire(broker.address)
    yield wire
    wire.close()


class Requests:
    """Makes requests up: the right fields with the wrong contents, now and then the right ones."""

    def __init__(self, rng: random.Random, ids: list[str]) -> None:
        self.rng = rng
        self.ids = ids

    def noise(self) -> bytes:
        rng = self.rng
        return rng.randbytes(rng.choice((0, 1, 2, 7, 50, 1000)))

    def damaged(self, kind: Descriptor) -> bytes:
        """Return a request with some of its bytes changed, cut off or doubled."""
        rng = self.rng
        raw = bytearray(self.message(kind).SerializeToString())
        for _ in range(rng.randint(1, 4)):
            if raw:
                raw[rng.randrange(len(raw))] = rng.randrange(256)
        return bytes(raw[: rng.randint(0, len(raw))] + raw * rng.randint(0, 1))

    def message(self, kind: Descriptor, depth: int = 0) -> Any:
        message: Any = GetMessageClass(kind)()
        for field in kind.fields:
            if self.rng.random() < 0.6 and depth < 4:
                self._fill(message, field, depth)
        return message

    def _fill(self, message: Any, field: FieldDescriptor, depth: int) -> None:
        count = self.rng.choice((1, 1, 2, 5)) if field.is_repeated else 1
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        for _ in range(count):
            if is_map:
                getattr(message, field.name)[self._text(field.name)] = self._text(field.name)
            elif field.message_type is not None:
                value = self.message(field.message_type, depth + 1)
                if field.is_repeated:
                    getattr(message, field.name).append(value)
                else:
                    getattr(message, field.name).CopyFrom(value)
            elif field.is_repeated:
                getattr(message, field.name).append(self._scalar(field))
            else:
                setattr(message, field.name, self._scalar(field))

    def _scalar(self, field: FieldDescriptor) -> Any:
        rng = self.rng
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            is_bytes = field.type == FieldDescriptor.TYPE_BYTES
            return self.noise() if is_bytes else self._text(field.name)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return rng.choice((0.0, -1.0, 1e308, float("nan"), float("inf")))
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return rng.choice((0, 1, 2, 99, -1))
        bits = 32 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
        is_signed = kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
        most = (1 << (bits - is_signed)) - 1
        if field.name == "wait_ms":  # a long wait is no answer
            return rng.choice((0, 1, 20, most))
        return rng.choice((0, 1, 2, 1000, most, -1 if is_signed else most // 2))

    def _text(self, field: str) -> str:
        rng = self.rng
        if field in ("queue", "name", "dlq_queue") and rng.random() < 0.8:
            return rng.choice(QUEUES)
        if field == "message_id" and self.ids and rng.random() < 0.8:
            return rng.choice(self.ids)
        if field == "key" and rng.random() < 0.5:
            return rng.choice(SETTINGS)
        return rng.choice(
            ("", "t", "5", "5,5", "-1", "*", "é\u0000\u2028", "a b", "x" * 300, "y" * 70_000, "1e9")
        )


def call(wire: Wire, method: MethodDescriptor, body: bytes) -> Any:
    """Make a call and return its status; of a stream, that of its beginning."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    try:
        if method.client_streaming:
            list(wire.channel.stream_stream(path, None, None)(iter([body]), timeout=LIMIT_S))
        elif method.server_streaming:
            stream = wire.channel.unary_stream(path, None, None)(body, timeout=LIMIT_S)
            try:
                opened = stream.initial_metadata()
                if not opened:  # refused, or open with nothing to tell
                    return STATUS.OK if stream.is_active() else stream.code()
            finally:
                stream.cancel()
        else:
            wire.channel.unary_unary(path, None, None)(body, timeout=LIMIT_S)
    except grpc.RpcError as error:
        failed: Any = error
        return failed.code()
    return STATUS.OK


def prepare(wire: Wire) -> list[str]:
    """See that there are queues with messages in them, and return some ids."""
    ids = []
    for name in ("a", "b"):
        request = admin_pb2.CreateQueueRequest(name=name)
        call(wire, method_of("CreateQueue"), request.SerializeToString())
        wire.call(admin_pb2.ResumeRequest(queue=name))
        ids += [wire.enqueue(name) for _ in range(3)]
        ids += [message.id for message in wire.receive(name, 2)]
    return ids


def method_of(name: str) -> MethodDescriptor:
    return next(method for method in METHODS if method.name == name)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_whatever_comes_is_answered(
    broker: BrokerProcess, wire: Wire, method: MethodDescriptor, seed: int
) -> None:
    rng = random.Random(f"{method.full_name} {seed}")
    requests = Requests(rng, prepare(wire))
    for _ in range(ROUNDS):
        how = rng.randrange(4)
        if how == 0:
            body = requests.noise()
        elif how == 1:
            body = requests.damaged(method.input_type)
        else:
            body = requests.message(method.input_type).SerializeToString()
        status = call(wire, method, body)
        assert status in TOLD, (status, body)
    assert prepare(wire)
    log = Path(broker.log_file).read_text()
    assert "Traceback" not in log and '"level": "error"' not in log, log[-2000:]
