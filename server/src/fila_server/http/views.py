# SPDX-License-Identifier: AGPL-3.0-only
"""Answers of the broker as JSON, cut to what a page can show.

Names of fields are the contract's. Numbers are numbers, also where protobuf's own mapping has
texts, but for positions, which outgrow a browser's. Times are milliseconds since 1970. Long lists
are made in slices, with a round of the event loop between them.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable
from heapq import nlargest
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from fila.v1 import admin_pb2 as pb
from fila.v1.messages_pb2 import Failure, FailureCause
from fila.v1.messages_pb2 import Message as QueuedMessage

QUEUES_MAX = 200
KEYS_MAX = 100
MESSAGES_MAX = 100
SETTINGS_MAX = 500
API_KEYS_MAX = 500
THROTTLES_MAX = 200
WAITERS_MAX = 20
_SLICE = 500
_ERROR_CHARS = 1000
_VALUE_CHARS = 4096
_PAYLOAD_BYTES = 4096
_HEADERS_MAX = 50
_HEADER_CHARS = 500

Json = dict[str, Any]


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def plain(message: Message) -> Json:
    """Return a small message as protobuf maps it, all fields included."""
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def ms(at: Timestamp) -> int:
    return at.ToMilliseconds()


def _ms_if_set(message: Any, field: str) -> int | None:
    return ms(getattr(message, field)) if message.HasField(field) else None


def _numbers(message: Message | None) -> Json | None:
    """Return a message that holds nothing but numbers."""
    if message is None:
        return None
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}


def _part(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


# --- Overview -------------------------------------------------------------------------------------


async def queues(rows: Iterable[pb.QueueInfo]) -> tuple[list[Json], int]:
    """Return the queues that need a look most, and how many there are; letters go with theirs."""
    found: list[pb.QueueInfo] = []
    names: set[str] = set()
    letters: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        found.append(row)
        names.add(row.name)
        if row.dead_letter_of:
            letters[row.dead_letter_of] = row.depth + row.delayed + row.in_flight
        if number % _SLICE == 0:
            await asyncio.sleep(0)
    worst: list[pb.QueueInfo] = []
    count = 0
    for start in range(0, len(found), _SLICE):
        # Letters whose queue is gone, or may not be seen, are shown by themselves.
        shown = [row for row in found[start : start + _SLICE] if row.dead_letter_of not in names]
        count += len(shown)
        worst = nlargest(
            QUEUES_MAX, [*worst, *shown], key=lambda row: _trouble(row, letters.get(row.name, 0))
        )
        await asyncio.sleep(0)
    return [_queue(row, letters.get(row.name, 0)) for row in worst], count


def _trouble(row: pb.QueueInfo, letters: int) -> tuple[bool, bool, int, int, int]:
    is_stuck = bool(row.depth) and (row.paused or not row.active_consumers)
    dead = bool(row.dead_letters or letters)
    return is_stuck, dead, row.throttled, row.oldest_pending_age_ms, row.depth


def _queue(row: pb.QueueInfo, letters: int) -> Json:
    return {
        "name": row.name,
        "depth": row.depth,
        "in_flight": row.in_flight,
        "delayed": row.delayed,
        "active_consumers": row.active_consumers,
        "paused": row.paused,
        "dead_letter_of": row.dead_letter_of,
        "dead_letters": row.dead_letters or letters,
        "oldest_pending_age_ms": row.oldest_pending_age_ms,
        "throttled": row.throttled,
        "counters": _numbers(_part(row, "counters")),
    }


def status(response: pb.GetStatusResponse) -> Json:
    """Return how the broker is doing, without what is wrong: that depends on who asks."""
    skipped = ("troubles", "started_at")
    fields = [it.name for it in response.DESCRIPTOR.fields if it.name not in skipped]
    return {name: getattr(response, name) for name in fields} | {
        "started_at": _ms_if_set(response, "started_at")
    }


def trouble(row: pb.Trouble) -> Json:
    return {
        "severity": pb.Severity.Name(row.severity).removeprefix("SEVERITY_").lower(),
        "kind": row.kind,
        "queue": row.queue,
        "what": row.what,
        "remedy": row.remedy,
    }


# --- One queue ------------------------------------------------------------------------------------


def stats(response: pb.GetStatsResponse) -> Json:
    hooks = _part(response, "hooks")
    return {
        "depth": response.depth,
        "in_flight": response.in_flight,
        "delayed": response.delayed,
        "throttled": response.throttled,
        "paused": response.paused,
        "active_fairness_keys": response.active_fairness_keys,
        "active_consumers": response.active_consumers,
        "consumer_credit": response.consumer_credit,
        "oldest_pending_age_ms": response.oldest_pending_age_ms,
        "quantum": response.quantum,
        "dead_letter_of": response.dead_letter_of,
        "round_key": response.round_key,
        "counters": _numbers(response.counters),
        "config": plain(response.config),
        "hooks": None if hooks is None else plain(hooks),
        "per_key_stats": [_key(row) for row in response.per_key_stats[:KEYS_MAX]],
        "per_throttle_stats": [throttle(row) for row in response.per_throttle_stats[:KEYS_MAX]],
        "consumers": [
            {
                "number": row.number,
                "in_flight": row.in_flight,
                "credit": row.credit,
                "max_batch": row.max_batch,
                "key_id": row.key_id,
            }
            for row in response.consumers[:KEYS_MAX]
        ],
        "waits": [
            {
                "cause": row.cause,
                "count": row.count,
                "p50_ms": row.p50_ms,
                "p95_ms": row.p95_ms,
            }
            for row in response.waits
        ],
    }


def _key(row: pb.PerFairnessKeyStats) -> Json:
    return {
        "key": row.key,
        "pending_count": row.pending_count,
        "weight": row.weight,
        "delivered": row.delivered,
        "throttled": row.throttled,
        "paused": row.paused,
        "round_position": row.round_position if row.HasField("round_position") else None,
        "traffic": _numbers(_part(row, "traffic")),
    }


def held_most(response: pb.GetStatsResponse) -> list[pb.PerFairnessKeyStats]:
    """Return the keys of which limits hold back most, those first."""
    held = [row for row in response.per_key_stats if row.throttled]
    return nlargest(WAITERS_MAX, held, key=lambda row: row.throttled)


def waiter(row: pb.PerFairnessKeyStats, answer: pb.ExplainResponse) -> Json:
    """Return the throttle keys that a key's messages wait for."""
    names = [reason.throttle_key for reason in answer.reasons if reason.throttle_key]
    return {"key": row.key, "throttled": row.throttled, "throttle_keys": names}


def throttle(row: pb.PerThrottleKeyStats) -> Json:
    return {
        "key": row.key,
        "tokens": round(row.tokens, 1),
        "rate_per_second": row.rate_per_second,
        "burst": row.burst,
        "concurrency_limit": row.concurrency_limit,
        "in_flight": row.in_flight,
        "waiting": row.waiting,
        "passed_per_second": round(row.passed_per_second, 1),
        "blocked_per_second": round(row.blocked_per_second, 1),
        "paused": row.paused,
        "paused_until": _ms_if_set(row, "paused_until"),
        "pattern": row.pattern,
        "unset": row.unset,
    }


# --- Answers to calls -----------------------------------------------------------------------------


def peeked(response: pb.PeekResponse) -> Json:
    """Return messages without their headers, or one message with all that it holds, cut."""
    rows = response.messages[:MESSAGES_MAX]
    is_whole = len(rows) == 1
    return {
        "messages": [_message(row, is_whole) for row in rows],
        "next_position": str(response.next_position),
    }


def _message(row: pb.PeekedMessage, is_whole: bool) -> Json:
    message = row.message
    metadata = message.metadata
    found = {
        "id": message.id,
        "position": str(row.position),
        "state": pb.MessageState.Name(row.state).removeprefix("MESSAGE_STATE_").lower(),
        "fairness_key": metadata.fairness_key,
        "weight": metadata.weight,
        "throttle_keys": list(metadata.throttle_keys),
        "attempt_count": metadata.attempt_count,
        "last_error": metadata.last_error[:_ERROR_CHARS],
        "enqueued_at": _ms_if_set(message.timestamps, "enqueued_at"),
        "failure_count": len(metadata.failures),
    }
    return found | _contents(message) if is_whole else found


def _contents(message: QueuedMessage) -> Json:
    payload = message.payload[:_PAYLOAD_BYTES]
    headers = sorted(message.headers.items())[:_HEADERS_MAX]
    try:
        text = {"payload_text": payload.decode()}
    except UnicodeDecodeError:
        text = {"payload_base64": base64.b64encode(payload).decode()}
    return {
        "headers": {name: value[:_HEADER_CHARS] for name, value in headers},
        "header_count": len(message.headers),
        "payload_bytes": len(message.payload),
        "failures": [failure(it) for it in message.metadata.failures],
        **text,
    }


def failure(row: Failure) -> Json:
    return {
        "failed_at": _ms_if_set(row, "failed_at"),
        "cause": FailureCause.Name(row.cause).removeprefix("FAILURE_CAUSE_").lower(),
        "error": row.error,
    }


def explained(response: pb.ExplainResponse) -> Json:
    return {
        "summary": response.summary,
        "fairness_key": response.fairness_key,
        "pending_count": response.pending_count,
        "ahead": response.ahead,
        "state": pb.MessageState.Name(response.state).removeprefix("MESSAGE_STATE_").lower(),
        "estimated_at": _ms_if_set(response, "estimated_at"),
        "unset_throttle_keys": list(response.unset_throttle_keys),
        "failures": [failure(row) for row in response.failures],
        "reasons": [
            {
                "kind": pb.WaitKind.Name(row.kind).removeprefix("WAIT_KIND_").lower(),
                "detail": row.detail,
                "throttle_key": row.throttle_key,
                "until": _ms_if_set(row, "until"),
                "count": row.count,
                "limit": row.limit,
            }
            for row in response.reasons
        ],
    }


def settings(response: pb.ListConfigResponse) -> Json:
    return {
        "entries": [
            {"key": row.key, "value": row.value[:_VALUE_CHARS], "size": len(row.value)}
            for row in response.entries[:SETTINGS_MAX]
        ],
        "total_count": response.total_count,
    }


def throttles(response: pb.ListThrottlesResponse) -> Json:
    rows = response.throttles[:THROTTLES_MAX]
    return {"throttles": [throttle(row) for row in rows], "total_count": response.total_count}


def api_keys(response: pb.ListApiKeysResponse) -> Json:
    return {
        "keys": [
            {
                "key_id": row.key_id,
                "name": row.name,
                "created_at": _ms_if_set(row, "created_at"),
                "expires_at": _ms_if_set(row, "expires_at"),
                "superadmin": row.superadmin,
                "acl": [{"kind": it.kind, "pattern": it.pattern} for it in row.acl],
            }
            for row in response.keys[:API_KEYS_MAX]
        ],
        "total_count": len(response.keys),
    }
