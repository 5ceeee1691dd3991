# SPDX-License-Identifier: AGPL-3.0-only
"""FilaService: producing, consuming, settling. Translates between calls and the engine's
commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from operator import attrgetter, itemgetter
from typing import Any

from google.protobuf.message import Message

from fila.v1 import service_pb2 as pb
from fila_server.config import LimitsConfig
from fila_server.core.access import CONSUME, PRODUCE
from fila_server.core.commands import (
    Ack,
    Command,
    Enqueue,
    Extend,
    Nack,
    SettleGrants,
)
from fila_server.core.wire.answers import (
    Duplicate,
    encode_enqueue_results,
    encode_extensions,
    encode_grant_results,
    encode_results,
)
from fila_server.core.wire.cuts import BLOCK_BYTES, DraftBatch, count_fields, count_within
from fila_server.core.wire.intake import ITEM_TAG, Cut, Draft, Intake, canonical
from fila_server.core.wire.varint import read_varint
from fila_server.errors import FilaError, InvalidArgument, MessageTooLarge, PermissionDenied
from fila_server.rpc.auth import CALLER, check, denials, restricted
from fila_server.rpc.method import Call, Decode, Handler, Method, Shared, bidi, parsed, streaming
from fila_server.rpc.pipeline import Pipelines
from fila_server.runtime.engine import Engine
from fila_server.runtime.sink import Sink

_PATH = "/fila.v1.FilaService/"

_draft_queue: Callable[[Any], str] = itemgetter(0)
_item_queue: Callable[[Any], str] = attrgetter("queue")


# What a call is about that is handed in together with others: as much as makes it a light one.
_FEW_ITEMS = 32
_FEW_BYTES = 16 * 1024


class Service:
    """The handlers of FilaService."""

    def __init__(self, engine: Engine, limits: LimitsConfig, cut: Cut | None = None) -> None:
        self._engine = engine
        self._limits = limits
        self.intake = Intake(limits, cut)
        self._reading = asyncio.Lock()
        self.lasting = engine.lasting

    async def enqueue(self, draft: Draft, call: Call) -> pb.EnqueueResponse:
        (result,) = await self._each(Enqueue, [draft], PRODUCE, _draft_queue, len(draft[1]))
        if isinstance(result, FilaError):
            raise result
        return pb.EnqueueResponse(message_id=result, duplicate=isinstance(result, Duplicate))

    async def enqueue_batch(self, encoded: bytes, call: Call) -> bytes:
        self.check_items(encoded)
        batch = DraftBatch(self.intake)
        caller = restricted()
        queues: set[str] = set()
        # One at a time: so many at once would leave the others as little as one in a single piece.
        async with self._reading if len(encoded) > BLOCK_BYTES else nullcontext():
            clock = asyncio.get_running_loop().time
            began_s = clock()
            for request in parsed(batch.read(encoded)):
                self._check_batch(batch.count)
                if caller is not None:
                    queues.update(item.queue for item in request.messages)
                if batch.has_more:
                    await self._engine.rest(began_s)
                    began_s = clock()
        denied = {} if caller is None else denials(caller, PRODUCE, queues)
        return await self._enqueue_all(batch, denied, call)

    async def _enqueue_all(
        self, batch: DraftBatch, denied: dict[str, PermissionDenied], call: Call
    ) -> bytes:
        return encode_enqueue_results(
            await self._engine.ask(lambda ticket: Enqueue(ticket, batch, denied), batch.size)
        )

    async def ack(self, request: pb.AckRequest, call: Call) -> pb.AckResponse:
        (error,) = await self._each(Ack, [request])
        if error is not None:
            raise error
        return pb.AckResponse()

    async def nack(self, request: pb.NackRequest, call: Call) -> pb.NackResponse:
        (error,) = await self._each(Nack, [request])
        if error is not None:
            raise error
        return pb.NackResponse()

    async def ack_batch(self, request: pb.AckBatchRequest, call: Call) -> bytes:
        return encode_results(await self._settle(Ack, request.acks))

    async def nack_batch(self, request: pb.NackBatchRequest, call: Call) -> bytes:
        return encode_results(await self._settle(Nack, request.nacks))

    async def extend_lease(self, request: pb.ExtendLeaseRequest, call: Call) -> bytes:
        return encode_extensions(await self._settle(Extend, request.extensions))

    async def settle_grants(self, request: pb.SettleGrantsRequest, call: Call) -> bytes:
        return encode_grant_results(await self._settle(SettleGrants, request.settlements))

    async def consume(self, request: pb.ConsumeRequest, call: Call) -> None:
        engine = self._engine
        sink = await self._open(
            request.queue,
            request.max_in_flight,
            request.max_batch,
            request.visibility_timeout_ms,
        )
        try:
            # At once, so that a client that waits for them knows that the stream is open.
            await call.open()
            while True:
                await call.write(await sink.next())
                engine.sent(sink)
        finally:
            engine.close(sink)

    async def receive(self, request: pb.ReceiveRequest, call: Call) -> None:
        limits = self._limits
        if request.wait_ms > limits.max_wait_ms:
            raise InvalidArgument(f"wait_ms {request.wait_ms} exceeds {limits.max_wait_ms}")
        count = request.max_messages or 1
        if count > limits.max_frame_messages:
            raise InvalidArgument(f"max_messages {count} exceeds {limits.max_frame_messages}")
        sink = await self._open(
            request.queue, count, count, request.visibility_timeout_ms, is_once=True
        )
        try:
            frame = sink.peek()
            if frame is None and request.wait_ms:
                frame = await _next_within(sink, request.wait_ms / 1000)
            await call.finish(frame or b"")
            if frame is not None:
                sink.sent()
        finally:
            self._engine.close(sink)

    async def _settle(
        self, make: Callable[[Any, Any], Command], items: Sequence[Any]
    ) -> Sequence[Any]:
        """Ask for something about a batch of delivered messages."""
        self._check_batch(len(items))
        return await self._each(make, items)

    async def _each(
        self,
        make: Callable[[Any, Any], Command],
        items: Sequence[Any],
        permission: int = CONSUME,
        queue_of: Callable[[Any], str] = _item_queue,
        size: int = 0,
    ) -> Sequence[Any]:
        """Ask for the items that the caller may touch; refuse the others, each in its place."""
        caller = restricted()
        refused = {}
        if caller is not None:
            queues = list(map(queue_of, items))
            refused = denials(caller, permission, queues)
        if not refused:
            results: Sequence[Any] = await self._engine.ask(
                lambda ticket: make(ticket, items), size
            )
            return results
        allowed = [item for item, queue in zip(items, queues, strict=True) if queue not in refused]
        answers: Any = ()
        if allowed:
            answers = await self._engine.ask(lambda ticket: make(ticket, allowed), size)
        answer = iter(answers)
        return [refused[queue] if queue in refused else next(answer) for queue in queues]

    async def _open(
        self,
        queue: str,
        max_in_flight: int,
        max_batch: int,
        visibility_ms: int,
        is_once: bool = False,
    ) -> Sink:
        check(CONSUME, queue)
        caller = CALLER.get()
        key_id = "" if caller is None else caller.key_id
        return await self._engine.open(
            queue, max_in_flight, max_batch, visibility_ms, is_once, key_id
        )

    def check_items(self, encoded: bytes) -> None:
        """Refuse a large batch of far too many items before protobuf makes objects of them."""
        limit = self._limits.max_batch_messages
        if len(encoded) > BLOCK_BYTES and count_fields(encoded, limit) > limit:
            raise MessageTooLarge(f"a batch of more than {limit} exceeds the limit")

    def grants(self, encoded: bytes) -> pb.SettleGrantsRequest:
        """Read settlements, and refuse too many, the messages that they except included."""
        self.check_items(encoded)
        limit = self._limits.max_batch_messages * len(pb.GrantSettlement.DESCRIPTOR.fields)
        if len(encoded) > BLOCK_BYTES and count_within(encoded, limit) > limit:
            raise MessageTooLarge("a batch names more grants and messages than the limit allows")
        request = pb.SettleGrantsRequest.FromString(encoded)
        items = request.settlements
        self._check_batch(len(items) + sum(len(item.except_message_ids) for item in items))
        return request

    def _check_batch(self, count: int) -> None:
        limit = self._limits.max_batch_messages
        if count > limit:
            raise MessageTooLarge(f"a batch of {count} exceeds the limit of {limit}")


async def _next_within(sink: Sink, seconds: float) -> bytes | None:
    try:
        return await asyncio.wait_for(sink.next(), seconds)
    except TimeoutError:
        return sink.peek()


def methods(service: Service, *, is_traced: bool = False) -> list[Method]:
    """Return FilaService.

    Where every call has a span of its own, none is handed in together with others.
    """

    def counted(kind: type[Message]) -> Decode:
        def decode(encoded: bytes) -> Any:
            service.check_items(encoded)
            return kind.FromString(encoded)

        return decode

    shared = {} if is_traced else _shared(service.intake)

    def unary(name: str, handler: Handler, decode: Decode) -> Method:
        return Method(_PATH + name, handler, decode, shared=shared.get(name))

    batches = {
        "enqueue": unary("EnqueueBatch", service.enqueue_batch, bytes),  # read piece by piece
        "ack": unary("AckBatch", service.ack_batch, counted(pb.AckBatchRequest)),
        "nack": unary("NackBatch", service.nack_batch, counted(pb.NackBatchRequest)),
        "extend": unary("ExtendLease", service.extend_lease, counted(pb.ExtendLeaseRequest)),
        "settle": unary("SettleGrants", service.settle_grants, service.grants),
    }
    return [
        unary("Enqueue", service.enqueue, service.intake.draft),
        unary("Ack", service.ack, pb.AckRequest.FromString),
        unary("Nack", service.nack, pb.NackRequest.FromString),
        *batches.values(),
        bidi(_PATH + "Pipeline", Pipelines(service.lasting, batches).run),
        # Writes its one response by itself: so it learns whether the transport took it over.
        streaming(_PATH + "Receive", service.receive, pb.ReceiveRequest.FromString),
        streaming(_PATH + "Consume", service.consume, pb.ConsumeRequest.FromString),
    ]


# --- Calls that are handed in together
# ------------------------------------------------------------


def _shared(intake: Intake) -> dict[str, Shared]:
    """Return how, by the names of the methods."""

    def drafts(body: bytes) -> Sequence[Draft] | None:
        if len(body) > _FEW_BYTES:
            return None
        size, at = read_varint(body, 1)
        if body[0] == ITEM_TAG and at + size == len(body):  # a lone call: a batch of one
            return (intake.draft(body[at:]),)
        return _few(intake.drafts(canonical(pb.EnqueueBatchRequest, body)[1]))

    def items(kind: Any, field: str) -> Callable[[bytes], Sequence[Any] | None]:
        read = attrgetter(field)

        def few(body: bytes) -> Sequence[Any] | None:
            return None if len(body) > _FEW_BYTES else _few(read(kind.FromString(body)))

        return few

    def grants(body: bytes) -> Sequence[Any] | None:
        few = settlements(body)
        if few is None or any(item.except_message_ids for item in few):
            return None
        # What they settle counts, as far as they say.
        return few if sum(item.expected_messages or 1 for item in few) <= _FEW_ITEMS else None

    def one(read: Callable[[bytes], Any]) -> Callable[[bytes], Sequence[Any]]:
        return lambda body: (read(body),)

    def settle(
        command: Callable[[Any, Any], Command],
        read: Callable[[bytes], Sequence[Any] | None],
        encode: Callable[[Sequence[Any]], bytes | FilaError],
    ) -> Shared:
        return Shared(command, CONSUME, _item_queue, _no_size, read, encode)

    settlements = items(pb.SettleGrantsRequest, "settlements")
    ack, nack = one(pb.AckRequest.FromString), one(pb.NackRequest.FromString)
    return {
        "Enqueue": Shared(
            Enqueue, PRODUCE, _draft_queue, _draft_size, one(intake.draft), _enqueued
        ),
        "Ack": settle(Ack, ack, _settled),
        "Nack": settle(Nack, nack, _settled),
        "EnqueueBatch": Shared(
            Enqueue, PRODUCE, _draft_queue, _draft_size, drafts, encode_enqueue_results
        ),
        "AckBatch": settle(Ack, items(pb.AckBatchRequest, "acks"), encode_results),
        "NackBatch": settle(Nack, items(pb.NackBatchRequest, "nacks"), encode_results),
        "ExtendLease": settle(
            Extend, items(pb.ExtendLeaseRequest, "extensions"), encode_extensions
        ),
        "SettleGrants": settle(SettleGrants, grants, encode_grant_results),
    }


def _few(items: Sequence[Any]) -> Sequence[Any] | None:
    return items if 0 < len(items) <= _FEW_ITEMS else None


def _no_size(item: Any) -> int:
    return 0


def _draft_size(draft: Draft) -> int:
    return len(draft[1])


def _enqueued(results: Sequence[Any]) -> bytes | FilaError:
    (result,) = results
    if isinstance(result, FilaError):
        return result
    response = pb.EnqueueResponse(message_id=result, duplicate=isinstance(result, Duplicate))
    return response.SerializeToString()


def _settled(results: Sequence[Any]) -> bytes | FilaError:
    (result,) = results
    return result if isinstance(result, FilaError) else b""
