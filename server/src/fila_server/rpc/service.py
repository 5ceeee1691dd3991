# SPDX-License-Identifier: AGPL-3.0-only
"""FilaService: producing, consuming, settling. Translates between the wire and the engine's
commands.

Batch answers are encoded by hand where every item succeeded: that is the common case and runs per
message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import grpc

from fila.v1 import service_pb2 as pb
from fila.v1.messages_pb2 import ItemResult
from fila_server.config import LimitsConfig
from fila_server.core.access import CONSUME, PRODUCE
from fila_server.core.commands import (
    Ack,
    CloseConsumer,
    Command,
    Duplicate,
    Enqueue,
    Extend,
    FrameTaken,
    Nack,
    OpenConsumer,
)
from fila_server.core.consumer import Consumer
from fila_server.core.intake import Draft, Intake
from fila_server.errors import FilaError, InvalidArgument, MessageTooLarge
from fila_server.rpc.auth import CALLER, check, denials, restricted
from fila_server.rpc.status import decoding, guarded, item_error, refuse
from fila_server.runtime.engine import Engine
from fila_server.runtime.sink import Sink

Context = grpc.aio.ServicerContext[Any, Any]

# An EnqueueResult that holds a message id of 36 characters and nothing else, up to the id itself.
_ID_RESULT = "\n&\n$"
# An empty ItemResult: the item was done.
_DONE_RESULT = b"\n\x00"

_draft_queue: Callable[[Any], str] = itemgetter(0)
_item_queue: Callable[[Any], str] = attrgetter("queue")


class Service:
    """The handlers of FilaService."""

    def __init__(self, engine: Engine, limits: LimitsConfig) -> None:
        self._engine = engine
        self._limits = limits
        self.intake = Intake(limits)

    async def enqueue(self, drafts: list[Draft], context: Context) -> pb.EnqueueResponse:
        (result,) = await self._each(Enqueue, drafts, PRODUCE, _draft_queue)
        if isinstance(result, FilaError):
            raise result
        return pb.EnqueueResponse(message_id=result, duplicate=isinstance(result, Duplicate))

    async def enqueue_batch(self, drafts: list[Draft], context: Context) -> bytes:
        self._check_batch(len(drafts))
        return encode_enqueue_results(await self._each(Enqueue, drafts, PRODUCE, _draft_queue))

    async def ack(self, request: pb.AckRequest, context: Context) -> pb.AckResponse:
        (error,) = await self._each(Ack, [request])
        if error is not None:
            raise error
        return pb.AckResponse()

    async def nack(self, request: pb.NackRequest, context: Context) -> pb.NackResponse:
        (error,) = await self._each(Nack, [request])
        if error is not None:
            raise error
        return pb.NackResponse()

    async def ack_batch(self, request: pb.AckBatchRequest, context: Context) -> bytes:
        self._check_batch(len(request.acks))
        return encode_results(await self._each(Ack, request.acks))

    async def nack_batch(self, request: pb.NackBatchRequest, context: Context) -> bytes:
        self._check_batch(len(request.nacks))
        return encode_results(await self._each(Nack, request.nacks))

    async def extend_lease(
        self, request: pb.ExtendLeaseRequest, context: Context
    ) -> pb.ExtendLeaseResponse:
        self._check_batch(len(request.extensions))
        results = await self._each(Extend, request.extensions)
        response = pb.ExtendLeaseResponse()
        for result in results:
            row = response.results.add()
            if isinstance(result, FilaError):
                row.error.CopyFrom(item_error(result))
            else:
                row.lease_expires_at.FromNanoseconds(result)
        return response

    async def consume(self, request: pb.ConsumeRequest, context: Context) -> AsyncIterator[bytes]:
        engine = self._engine
        sink = Sink()
        try:
            if isinstance(request, FilaError):
                raise request
            consumer = await self._open(
                sink,
                request.queue,
                request.max_in_flight,
                request.max_batch,
                request.visibility_timeout_ms,
            )
        except FilaError as error:
            await refuse(context, error)
        engine.attach(sink)
        try:
            while True:
                frame = await sink.next()
                engine.tell(FrameTaken(consumer))
                yield frame
        except FilaError as error:
            await refuse(context, error)
        finally:
            engine.detach(sink)
            engine.tell(CloseConsumer(consumer, sink.unsent()))

    async def receive(self, request: pb.ReceiveRequest, context: Context) -> bytes:
        limits = self._limits
        if request.wait_ms > limits.max_wait_ms:
            raise InvalidArgument(f"wait_ms {request.wait_ms} exceeds {limits.max_wait_ms}")
        count = request.max_messages or 1
        if count > limits.max_frame_messages:
            raise InvalidArgument(f"max_messages {count} exceeds {limits.max_frame_messages}")
        sink = Sink()
        consumer = await self._open(
            sink, request.queue, count, count, request.visibility_timeout_ms, is_once=True
        )
        self._engine.attach(sink)
        try:
            frame = sink.take()
            if frame is None and request.wait_ms:
                frame = await _next_within(sink, request.wait_ms / 1000)
            return frame or b""
        finally:
            self._engine.detach(sink)
            self._engine.tell(CloseConsumer(consumer, sink.unsent()))

    async def _each(
        self,
        make: Callable[[Any, Any], Command],
        items: Sequence[Any],
        permission: int = CONSUME,
        queue_of: Callable[[Any], str] = _item_queue,
    ) -> Sequence[Any]:
        """Ask for the items that the caller may touch; refuse the others, each in its place."""
        caller = restricted()
        refused = {}
        if caller is not None:
            queues = list(map(queue_of, items))
            refused = denials(caller, permission, queues)
        if not refused:
            results: Sequence[Any] = await self._engine.ask(lambda ticket: make(ticket, items))
            return results
        allowed = [item for item, queue in zip(items, queues, strict=True) if queue not in refused]
        answers: Any = ()
        if allowed:
            answers = await self._engine.ask(lambda ticket: make(ticket, allowed))
        answer = iter(answers)
        return [refused[queue] if queue in refused else next(answer) for queue in queues]

    async def _open(
        self,
        sink: Sink,
        queue: str,
        max_in_flight: int,
        max_batch: int,
        visibility_ms: int,
        is_once: bool = False,
    ) -> Consumer:
        check(CONSUME, queue)
        caller = CALLER.get()
        key_id = "" if caller is None else caller.key_id
        task = asyncio.ensure_future(
            self._engine.ask(
                lambda ticket: OpenConsumer(
                    ticket, queue, max_in_flight, max_batch, visibility_ms, is_once, sink, key_id
                )
            )
        )
        try:
            consumer: Consumer = await asyncio.shield(task)
        except asyncio.CancelledError:
            # The caller left before the answer: whatever was leased to it goes back.
            task.add_done_callback(lambda done: self._abandon(done, sink))
            raise
        return consumer

    def _abandon(self, done: asyncio.Future[Any], sink: Sink) -> None:
        if not done.cancelled() and done.exception() is None:
            self._engine.tell(CloseConsumer(done.result(), sink.unsent()))

    def _check_batch(self, count: int) -> None:
        limit = self._limits.max_batch_messages
        if count > limit:
            raise MessageTooLarge(f"a batch of {count} exceeds the limit of {limit}")


async def _next_within(sink: Sink, seconds: float) -> bytes | None:
    try:
        return await asyncio.wait_for(sink.next(), seconds)
    except TimeoutError:
        return sink.take()


def encode_enqueue_results(results: Sequence[str | FilaError]) -> bytes:
    """Encode an EnqueueBatchResponse."""
    if all(result.__class__ is str for result in results):
        return "".join([_ID_RESULT + result for result in results]).encode("ascii")  # type: ignore[operator]
    response = pb.EnqueueBatchResponse()
    for result in results:
        if isinstance(result, FilaError):
            response.results.add(error=item_error(result))
        else:
            response.results.add(message_id=result, duplicate=isinstance(result, Duplicate))
    return response.SerializeToString()


def encode_results(results: Sequence[FilaError | None]) -> bytes:
    """Encode an AckBatchResponse or a NackBatchResponse, which look the same."""
    if not any(results):
        return _DONE_RESULT * len(results)
    response = pb.AckBatchResponse()
    for error in results:
        response.results.append(
            ItemResult() if error is None else ItemResult(error=item_error(error))
        )
    return response.SerializeToString()


def handlers(service: Service) -> grpc.GenericRpcHandler[Any, Any]:
    """Return FilaService as gRPC registers it.

    Handlers that return bytes have encoded their answer.
    """

    def unary(handler: Any, decode: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            guarded(handler),
            request_deserializer=decoding(decode),
            response_serializer=_encoded,
        )

    return grpc.method_handlers_generic_handler(
        "fila.v1.FilaService",
        {
            "Enqueue": unary(service.enqueue, service.intake.draft),
            "EnqueueBatch": unary(service.enqueue_batch, service.intake.drafts),
            "Ack": unary(service.ack, pb.AckRequest.FromString),
            "Nack": unary(service.nack, pb.NackRequest.FromString),
            "AckBatch": unary(service.ack_batch, pb.AckBatchRequest.FromString),
            "NackBatch": unary(service.nack_batch, pb.NackBatchRequest.FromString),
            "ExtendLease": unary(service.extend_lease, pb.ExtendLeaseRequest.FromString),
            "Receive": unary(service.receive, pb.ReceiveRequest.FromString),
            "Consume": grpc.unary_stream_rpc_method_handler(
                service.consume,
                request_deserializer=decoding(pb.ConsumeRequest.FromString),
                response_serializer=_encoded,
            ),
        },
    )


def _encoded(response: Any) -> bytes:
    return response if response.__class__ is bytes else response.SerializeToString()
