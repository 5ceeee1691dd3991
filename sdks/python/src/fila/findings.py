# SPDX-License-Identifier: AGPL-3.0-only
"""What a broker finds when it is asked about queues and messages, as plain values. No I/O.

Fields have the names of the contract, where each is described. Queues are in `queues.py`,
numbers in `stats.py`.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from fila._answers import member, moment, plain
from fila.message import Failure, Message, read_failures
from fila.stats import ThrottleKeyStats, read_throttles
from fila.v1 import admin_pb2


class MessageState(StrEnum):
    """Where a message is in its life."""

    PENDING = "pending"
    DELAYED = "delayed"
    LEASED = "leased"


class WaitKind(StrEnum):
    """Why something waits."""

    THROTTLED = "throttled"
    CONCURRENCY = "concurrency"
    TURN = "turn"
    DELAYED = "delayed"
    PAUSED = "paused"
    NO_CREDIT = "no_credit"
    LEASED = "leased"
    BACKPRESSURE = "backpressure"
    HOOK_BYPASSED = "hook_bypassed"


@dataclass(frozen=True, slots=True)
class DeletedQueue:
    """How much went with a queue."""

    messages: int
    dead_letters: int


@dataclass(frozen=True, slots=True)
class ThrottlePage:
    """Some throttle keys, by key. `total_count` includes those beyond the limit."""

    throttles: tuple[ThrottleKeyStats, ...]
    total_count: int


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """One message as it lies in its queue."""

    message: Message
    state: MessageState | None
    position: int


@dataclass(frozen=True, slots=True)
class PeekPage:
    """Some messages, oldest first. `next_position` is 0 when nothing follows."""

    messages: tuple[PeekedMessage, ...]
    next_position: int
    end_position: int


@dataclass(frozen=True, slots=True)
class WaitReason:
    """One reason to wait."""

    kind: WaitKind | None
    detail: str
    throttle_key: str
    until: datetime | None
    count: int
    limit: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a message or a fairness key waits; the reason that decides comes first."""

    summary: str
    reasons: tuple[WaitReason, ...]
    estimated_at: datetime | None
    fairness_key: str
    pending_count: int
    ahead: int
    state: MessageState | None
    failures: tuple[Failure, ...]
    unset_throttle_keys: tuple[str, ...]


# --- Reading --------------------------------------------------------------------------------------


def read_deleted(raw: admin_pb2.DeleteQueueResponse) -> DeletedQueue:
    return plain(DeletedQueue, raw)


def read_throttle_page(raw: admin_pb2.ListThrottlesResponse) -> ThrottlePage:
    return plain(ThrottlePage, raw, throttles=read_throttles(raw.throttles))


def read_page(raw: admin_pb2.PeekResponse) -> PeekPage:
    found = tuple(
        PeekedMessage(
            Message(row.message),
            member(MessageState, admin_pb2.MessageState, row.state),
            row.position,
        )
        for row in raw.messages
    )
    return plain(PeekPage, raw, messages=found)


def read_explanation(raw: admin_pb2.ExplainResponse) -> Explanation:
    reasons = tuple(
        plain(
            WaitReason,
            reason,
            kind=member(WaitKind, admin_pb2.WaitKind, reason.kind),
            until=moment(reason, "until"),
        )
        for reason in raw.reasons
    )
    return plain(
        Explanation,
        raw,
        reasons=reasons,
        estimated_at=moment(raw, "estimated_at"),
        state=member(MessageState, admin_pb2.MessageState, raw.state),
        failures=read_failures(raw.failures),
        unset_throttle_keys=tuple(raw.unset_throttle_keys),
    )
