# SPDX-License-Identifier: AGPL-3.0-only
"""FilaService with a span around what it does. It stands in for the plain one where traces are on,
so that where they are off there is nothing to ask.

What a span says, and when there is one, is the telemetry room's business.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from opentelemetry.context import Context as TraceContext
from opentelemetry.trace import Span

from fila.v1 import service_pb2 as pb
from fila.v1.messages_pb2 import ErrorReason, ItemError
from fila_server.config import LimitsConfig
from fila_server.core.schedule.queue import by_id
from fila_server.core.wire.cuts import DraftBatch
from fila_server.core.wire.intake import Cut, Draft, Terms
from fila_server.errors import PermissionDenied
from fila_server.rpc.method import Call, Metadata
from fila_server.rpc.service import Service
from fila_server.runtime.engine import Engine
from fila_server.telemetry.tracing import (
    ACK,
    DELIVER,
    ENQUEUE,
    LOOKED_AT,
    NACK,
    SETTLE,
    Operation,
    Subject,
    Tracing,
    answered,
    caller_context,
    ending,
    named,
)

# Some messages, and how many there are.
Look = tuple[Sequence[Subject], int]

_NOBODY = TraceContext()
_REASON = len("ERROR_REASON_")


class TracedService(Service):
    """The handlers of FilaService, traced."""

    def __init__(
        self, engine: Engine, limits: LimitsConfig, tracing: Tracing, cut: Cut | None = None
    ) -> None:
        super().__init__(engine, limits, cut)
        self._tracing = tracing

    async def enqueue(self, draft: Draft, call: Call) -> pb.EnqueueResponse:
        span = self._begin(ENQUEUE, call, draft[1], lambda: (self._drafted([draft]), 1))
        if span is None:
            return await super().enqueue(draft, call)
        with ending(span):
            response = await super().enqueue(draft, call)
            named(span, response.message_id)
            return response

    async def _enqueue_all(
        self, batch: DraftBatch, denied: dict[str, PermissionDenied], call: Call
    ) -> bytes:
        first = batch.blocks[0]

        def look() -> Look:
            return self._drafted(self.intake.piece(first, 0)[0]), batch.count

        span = self._begin(ENQUEUE, call, first, look)
        if span is None:
            return await super()._enqueue_all(batch, denied, call)
        with ending(span):
            encoded = await super()._enqueue_all(batch, denied, call)
            results = pb.EnqueueBatchResponse.FromString(encoded).results
            answered(span, list(map(_reason, results)))
            if len(results) == 1 and results[0].message_id:
                named(span, results[0].message_id)
            return encoded

    async def ack(self, request: pb.AckRequest, call: Call) -> pb.AckResponse:
        done: pb.AckResponse = await self._one(ACK, super().ack, request, call)
        return done

    async def nack(self, request: pb.NackRequest, call: Call) -> pb.NackResponse:
        done: pb.NackResponse = await self._one(NACK, super().nack, request, call)
        return done

    async def ack_batch(self, request: pb.AckBatchRequest, call: Call) -> bytes:
        return await self._many(ACK, super().ack_batch, request, request.acks, call)

    async def nack_batch(self, request: pb.NackBatchRequest, call: Call) -> bytes:
        return await self._many(NACK, super().nack_batch, request, request.nacks, call)

    async def settle_grants(self, request: pb.SettleGrantsRequest, call: Call) -> bytes:
        items = request.settlements
        span = self._begin(SETTLE, call, b"", lambda: self._granted(items))
        if span is None:
            return await super().settle_grants(request, call)
        with ending(span):
            encoded = await super().settle_grants(request, call)
            results = pb.SettleGrantsResponse.FromString(encoded).results
            answered(span, list(map(_reason, results)))
            return encoded

    async def consume(self, request: pb.ConsumeRequest, call: Call) -> None:
        # A stream outlives by far the span that opened it: its messages alone decide.
        await super().consume(request, _Deliveries(self._tracing, call, _NOBODY))

    async def receive(self, request: pb.ReceiveRequest, call: Call) -> None:
        caller = caller_context(call.metadata())
        await super().receive(request, _Deliveries(self._tracing, call, caller))

    async def _one(
        self, operation: Operation, handler: Callable[..., Any], request: Any, call: Call
    ) -> Any:
        span = self._begin(operation, call, b"", lambda: (self._settled([request]), 1))
        if span is None:
            return await handler(request, call)
        with ending(span):
            return await handler(request, call)

    async def _many(
        self,
        operation: Operation,
        handler: Callable[[Any, Call], Awaitable[bytes]],
        request: Any,
        items: Sequence[Any],
        call: Call,
    ) -> bytes:
        span = self._begin(operation, call, b"", lambda: (self._settled(items), len(items)))
        if span is None:
            return await handler(request, call)
        with ending(span):
            encoded = await handler(request, call)
            # Answers to acks and to nacks look the same.
            results = pb.AckBatchResponse.FromString(encoded).results
            answered(span, list(map(_reason, results)))
            return encoded

    def _begin(
        self,
        operation: Operation,
        call: Call,
        encoded: bytes,
        look: Callable[[], Look],
    ) -> Span | None:
        caller = caller_context(call.metadata())
        return self._tracing.begin(operation, caller, encoded, look)

    def _drafted(self, drafts: Sequence[Draft]) -> list[Subject]:
        """Return messages to enqueue; their keys are known unless a hook is to choose them."""
        found = []
        for queue, content, terms in drafts[:LOOKED_AT]:
            known = self._engine.queue(queue)
            is_chosen = known is None or (known.hooks is not None and known.hooks.has_on_enqueue)
            key = terms.fairness_key if isinstance(terms, Terms) and not is_chosen else ""
            headers = pb.EnqueueRequest.FromString(content).headers if b"tracep" in content else {}
            found.append(Subject(queue, "", key, headers))
        return found

    def _settled(self, items: Sequence[Any]) -> list[Subject]:
        """Return delivered messages, with the keys of those that are still leased."""
        found = []
        for item in items[:LOOKED_AT]:
            queue = self._engine.queue(item.queue)
            message = None if queue is None else by_id(queue.leases, item.message_id)
            key = "" if message is None else message.lane.key.name
            found.append(Subject(item.queue, item.message_id, key))
        return found

    def _granted(self, items: Sequence[pb.GrantSettlement]) -> Look:
        """Return messages of grants, and how many are under them."""
        found: list[Subject] = []
        count = 0
        for item in items[:LOOKED_AT]:
            for grant in self._engine.state.places.held_under(item.lease_token):
                if grant.queue.name == item.queue:
                    count += grant.left
                    room = LOOKED_AT - len(found)
                    found += [
                        Subject(item.queue, message.id, message.lane.key.name)
                        for message in grant.messages[:room]
                    ]
        return found or [Subject(item.queue) for item in items[:LOOKED_AT]], count


class _Deliveries:
    """A call that makes a span of each frame, from its lease to the transport."""

    def __init__(self, tracing: Tracing, call: Call, caller: TraceContext) -> None:
        self._tracing = tracing
        self._call = call
        self._caller = caller

    def metadata(self) -> Metadata:
        return self._call.metadata()

    async def open(self) -> None:
        await self._call.open()

    async def write(self, frame: bytes) -> None:
        await self._send(self._call.write, frame)

    async def finish(self, frame: bytes) -> None:
        await self._send(self._call.finish, frame)

    async def _send(self, send: Callable[[bytes], Awaitable[None]], frame: bytes) -> None:
        span = self._begin(frame) if frame else None
        if span is None:
            await send(frame)
            return
        with ending(span):
            await send(frame)

    def _begin(self, frame: bytes) -> Span | None:
        return self._tracing.begin(DELIVER, self._caller, frame, lambda: _delivered(frame))


def _delivered(frame: bytes) -> Look:
    messages = pb.ConsumeResponse.FromString(frame).messages
    leased_ns = messages[0].timestamps.leased_at.ToNanoseconds()
    leased_ns = min(leased_ns, time.time_ns())  # the clock may have been set back
    shown = [
        Subject(it.metadata.queue_id, it.id, it.metadata.fairness_key, it.headers, leased_ns)
        for it in messages[:LOOKED_AT]
    ]
    return shown, len(messages)


def _reason(result: Any) -> str | None:
    error: ItemError = result.error
    return ErrorReason.Name(error.reason)[_REASON:] if result.HasField("error") else None
