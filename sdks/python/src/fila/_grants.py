# SPDX-License-Identifier: AGPL-3.0-only
"""Whole frames: what is acked together, and came together, travels as one settlement of a grant.

A grant is what one delivery frame leases; its messages share a lease token. Acks of all of them
are the same as one settlement that expects exactly so many. Where the broker refuses that, since
some were settled before or their leases ended, each goes as an ack of its own and gets its own
answer. So nobody can tell the two ways apart, but for what they cost.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message as ProtobufMessage

from fila import _wire, errors
from fila._answers import moment
from fila._wire import Batch, Item
from fila.errors import FilaError, LeaseExpiredError, UnimplementedError
from fila.v1 import service_pb2

T = TypeVar("T")


class Settled(NamedTuple):
    """How many messages were settled, and when extended leases end."""

    messages: int
    lease_expires_at: datetime | None


SETTLE: Batch[Settled] = Batch(
    _wire.service_method("SettleGrants"),
    service_pb2.SettleGrantsResponse,
    lambda result: Settled(result.messages, moment(result, "lease_expires_at")),
)


class Peer(Protocol):
    """What is remembered of a broker."""

    has_grants: bool  # until it says that it knows no such call


class Request(NamedTuple):
    """One request to be sent."""

    method: str
    data: bytes
    response: type[ProtobufMessage]


Steps = Generator[Request, Any, list[T | FilaError]]


# --- Settlements ----------------------------------------------------------------------------------


def ack_item(
    queue: str, lease_token: str, except_message_ids: Iterable[str] = (), expected: int = 0
) -> Item:
    request = _settlement(queue, lease_token, except_message_ids)
    request.ack.SetInParent()
    request.expected_messages = expected
    # With a number, what a repeat finds gone is sent again as single acks, which can tell.
    return _wire.item(request, queue, lease_token, is_repeatable=bool(expected))


def nack_item(
    queue: str,
    lease_token: str,
    error: str,
    retry_after_ms: int | None,
    throttle_key: str | None,
    dead_letter: bool,
    except_message_ids: Iterable[str],
) -> Item:
    request = _settlement(queue, lease_token, except_message_ids)
    nack = service_pb2.GrantNack(
        error=error,
        retry_after_ms=retry_after_ms,
        throttle_key=throttle_key,
        dead_letter=dead_letter,
    )
    request.nack.CopyFrom(nack)
    return _wire.item(request, queue, lease_token)


def extend_item(
    queue: str, lease_token: str, ms: int | None, except_message_ids: Iterable[str]
) -> Item:
    request = _settlement(queue, lease_token, except_message_ids)
    request.extend.CopyFrom(service_pb2.GrantExtension(extend_ms=ms))
    return _wire.item(request, queue, lease_token, is_repeatable=True)


def _settlement(
    queue: str, lease_token: str, except_message_ids: Iterable[str]
) -> service_pb2.GrantSettlement:
    if isinstance(except_message_ids, str):
        raise TypeError("except_message_ids must be a list of str, not one str")
    try:
        return service_pb2.GrantSettlement(
            queue=queue, lease_token=lease_token, except_message_ids=except_message_ids
        )
    except TypeError as error:
        kinds = f"{type(queue).__name__} and {type(lease_token).__name__}"
        raise TypeError(f"queue, lease_token and ids must be str, not {kinds}") from error


# --- Frames ---------------------------------------------------------------------------------------


class Delivery(NamedTuple):
    """What an ack is about, and how many messages came together with it."""

    queue: str
    lease_token: str
    frame_size: int
    message_id: str | None


def whole_frames(deliveries: Sequence[Delivery]) -> list[list[int]]:
    """The places of deliveries that make up whole frames, frame by frame."""
    frames: dict[tuple[str, str], list[int]] = {}
    for at, (queue, lease_token, frame_size, _) in enumerate(deliveries):
        if frame_size > 1 and lease_token:
            frames.setdefault((queue, lease_token), []).append(at)
    return [places for places in frames.values() if _is_whole(deliveries, places)]


def _is_whole(deliveries: Sequence[Delivery], places: Sequence[int]) -> bool:
    size = deliveries[places[0]].frame_size
    return len(places) == size == len({deliveries[at].message_id for at in places})


def frame_item(first: Delivery) -> Item:
    """The settlement that stands for the acks of a frame."""
    return ack_item(first.queue, first.lease_token, expected=first.frame_size)


def exchange(rpc: Batch[T], items: Sequence[Item], peer: Peer) -> Steps[T]:
    """The requests that a batch takes, one after the other, and one outcome per item.

    Whoever sends them throws into it what a request failed with.
    """
    outcomes: dict[int, Any] = {}
    if rpc is _wire.ACK and peer.has_grants and any(it.frame_size > 1 for it in items):
        deliveries = [
            Delivery(it.queue, it.lease_token, it.frame_size, it.message_id) for it in items
        ]
        frames = whole_frames(deliveries)
        if frames:
            settlements = [frame_item(deliveries[places[0]]) for places in frames]
            try:
                answer = yield _request(SETTLE, settlements)
            except UnimplementedError:
                peer.has_grants = False
            except FilaError as error:
                return [errors.about(error, it.queue, it.message_id) for it in items]
            else:
                results = SETTLE.outcomes(answer, settlements)
                outcomes = dict(settled(deliveries, frames, results))
    left = [at for at in range(len(items)) if at not in outcomes]
    if left:
        rest = [items[at] for at in left] if outcomes else items
        try:
            answer = yield _request(rpc, rest)
        except FilaError as error:
            found: list[Any] = [errors.about(error, it.queue, it.message_id) for it in rest]
        else:
            found = rpc.outcomes(answer, rest)
        if not outcomes:
            return found
        outcomes.update(zip(left, found, strict=True))
    return [outcomes[at] for at in range(len(items))]


def settled(
    deliveries: Sequence[Delivery],
    frames: Sequence[Sequence[int]],
    results: Sequence[Settled | FilaError],
) -> Iterator[tuple[int, FilaError | None]]:
    """What became of the acks of frames, by their places; without those that have to be sent one by
    one.
    """
    for places, result in zip(frames, results, strict=True):
        if isinstance(result, LeaseExpiredError):
            continue
        for at in places:
            delivery = deliveries[at]
            if isinstance(result, FilaError):
                yield at, errors.about(result, delivery.queue, delivery.message_id)
            else:
                yield at, None


def _request(rpc: Batch[Any], items: Iterable[Item]) -> Request:
    return Request(rpc.method, _wire.join(items), rpc.response)
