# SPDX-License-Identifier: AGPL-3.0-only
"""The generated stubs of one channel: the contract as any client in any language sees it."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from fila.v1 import admin_pb2, admin_pb2_grpc, service_pb2, service_pb2_grpc
from fila.v1.messages_pb2 import Message

DEADLINE_S = 60.0
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Refusal:
    """How a call was refused."""

    status: grpc.StatusCode
    reason: str
    text: str


class Wire:
    """The stubs of one channel, and the few things that every test does with them."""

    def __init__(self, address: str) -> None:
        self.address = address
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),  # a connection of its own
        ]
        self.channel: Any = grpc.insecure_channel(address, options=options)
        self.service: Any = service_pb2_grpc.FilaServiceStub(self.channel)
        self.admin: Any = admin_pb2_grpc.FilaAdminStub(self.channel)

    def close(self) -> None:
        self.channel.close()

    def call(self, request: Any, **options: Any) -> Any:
        """Make the unary call that a request belongs to, such as AckRequest to Ack."""
        name = type(request).__name__.removesuffix("Request")
        stub = self.service if hasattr(self.service, name) else self.admin
        return getattr(stub, name)(request, timeout=DEADLINE_S, **options)

    def refusal(self, request: Any, **options: Any) -> Refusal:
        return refused(lambda: self.call(request, **options))

    def queue(self, **config: Any) -> str:
        """Create a queue with a fresh name."""
        name = f"q{next(_numbers)}"
        self.call(admin_pb2.CreateQueueRequest(name=name, config=admin_pb2.QueueConfig(**config)))
        return name

    def enqueue(self, queue: str, payload: bytes = b"x", **fields: Any) -> str:
        request = service_pb2.EnqueueRequest(queue=queue, payload=payload, **fields)
        message_id: str = self.call(request).message_id
        return message_id

    def receive(self, queue: str, count: int = 1, **fields: Any) -> list[Message]:
        request = service_pb2.ReceiveRequest(queue=queue, max_messages=count, **fields)
        return list(self.call(request).messages)

    def ack(self, queue: str, message: Message) -> None:
        token = message.metadata.lease_token
        self.call(service_pb2.AckRequest(queue=queue, message_id=message.id, lease_token=token))

    def nack(self, queue: str, message: Message, **fields: Any) -> None:
        self.call(service_pb2.NackRequest(queue=queue, message_id=message.id, **fields))

    def consume(self, queue: str, timeout: float | None = None, **fields: Any) -> Any:
        """Open a stream. It is an iterator of frames with a `cancel`."""
        request = service_pb2.ConsumeRequest(queue=queue, **fields)
        return self.service.Consume(request, timeout=timeout)

    def stats(self, queue: str) -> admin_pb2.GetStatsResponse:
        response: admin_pb2.GetStatsResponse = self.call(admin_pb2.GetStatsRequest(queue=queue))
        return response

    def dead_letter(self, queue: str, count: int = 1) -> None:
        """Put messages into the dead-letter queue of a queue with `max_attempts=1`."""
        for _ in range(count):
            self.enqueue(queue)
        for message in self.receive(queue, count):
            self.nack(queue, message, error="boom")


def refused(call: Callable[[], Any]) -> Refusal:
    """Return how a call is refused; one that is not refused fails the test."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    trailers = dict(error.trailing_metadata() or ())
    return Refusal(error.code(), trailers.get("fila-reason", ""), error.details())


def eventually(what: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.01)
