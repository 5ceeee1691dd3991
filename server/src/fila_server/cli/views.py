# SPDX-License-Identifier: AGPL-3.0-only
"""What people see of queues and messages: which columns, in which order, under which words."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fila_server.cli.render import Column, plain, table
from fila_server.cli.words import duration, one_line, preview, quoted, since, until

if TYPE_CHECKING:
    from fila import (
        ConsumeMessage,
        Explanation,
        Message,
        PeekedMessage,
        PeekPage,
        QueueInfo,
        QueueStats,
    )
    from fila_server.hooks.dryrun import DryRun

# A payload's share of a line in a table; --json and --payload-only show all of it.
_PREVIEW_CHARS = 60


def queue_list(queues: "Sequence[QueueInfo]") -> Table:
    """One row per queue."""
    return table(
        [
            Column("QUEUE"),
            Column("WAITING", number=True),
            Column("IN FLIGHT", number=True),
            Column("DELAYED", number=True),
            Column("CONSUMERS", number=True),
            Column("NOTE"),
        ],
        [
            (
                info.name,
                info.depth,
                info.in_flight,
                info.delayed,
                info.active_consumers,
                _note(info),
            )
            for info in queues
        ],
    )


def _note(info: "QueueInfo | QueueStats") -> str:
    notes = ["paused"] if info.paused else []
    if info.dead_letter_of:
        notes.append(f"dead letters of {info.dead_letter_of}")
    return ", ".join(notes)


def settings(name: str, stats: "QueueStats") -> list[RenderableType]:
    """A queue's settings, defaults spelled out, and its scripts."""
    config = stats.config
    note = _note(stats)
    rows = [
        ("visibility timeout", _ms(config.visibility_timeout_ms, "broker's default")),
        ("max attempts", config.max_attempts or "no limit"),
        ("retry delay", _ms(config.retry_delay_ms, "none")),
        ("longest retry delay", _ms(config.retry_delay_max_ms, "1h")),
        ("default time to live", _ms(config.default_ttl_ms, "none")),
        ("idempotency window", _ms(config.idempotency_window_ms, "1d")),
        ("max messages", config.max_messages or "no limit"),
        ("quantum", config.quantum or f"{stats.quantum} (broker's default)"),
        ("on hook error", _policy(config.on_hook_error)),
        ("hook timeout", _ms(config.hook_timeout_ms, "broker's default")),
        ("hook memory", f"{config.hook_memory_limit_bytes or '''broker's default'''}"),
        ("on_enqueue", _script_size(config.on_enqueue_script)),
        ("on_failure", _script_size(config.on_failure_script)),
    ]
    parts: list[RenderableType] = [
        Text(f"Queue {quoted(name)}{f' ({one_line(note)})' if note else ''}", style="bold"),
        "",
        table([Column("SETTING", keep=True), Column("VALUE")], rows),
    ]
    for title, source in (
        ("on_enqueue", config.on_enqueue_script),
        ("on_failure", config.on_failure_script),
    ):
        if source:
            lines = [one_line(line.replace("\t", "    ")) for line in source.splitlines()]
            parts += ["", Text(title, style="bold"), Padding(Text("\n".join(lines)), (0, 0, 0, 2))]
    return parts


def _ms(value: int, default: str) -> str:
    return duration(value) if value else default


def _policy(value: Any) -> str:
    name = str(plain(value) or "default")
    return "refuse the message" if name.endswith("reject") else "take it under the default key"


def _script_size(source: str) -> str:
    return f"{len(source.splitlines())} lines, below" if source else "none"


def stats(stats: "QueueStats", max_keys: int | None = None) -> list[RenderableType]:
    """A queue's numbers: now, since the broker started, by fairness key and by throttle key."""
    parts: list[RenderableType] = [_totals(stats)]
    if stats.hooks is not None and (stats.hooks.failures or stats.hooks.circuit_open):
        state = "open, the hook is bypassed" if stats.hooks.circuit_open else "closed"
        parts += [
            "",
            Text(
                f"Hook: {stats.hooks.failures:,} of {stats.hooks.calls + stats.hooks.failures:,} "
                f"calls failed, circuit breaker {state}, "
                f"last error: {one_line(stats.hooks.last_error)}"
            ),
        ]
    if stats.per_key_stats:
        parts += ["", *_fairness_keys(stats, max_keys)]
    if stats.per_throttle_stats:
        parts += ["", _throttle_keys(stats)]
    return parts


def _totals(stats: "QueueStats") -> Table:
    happened = stats.counters
    now: list[tuple[str, object]] = [
        ("waiting", stats.depth),
        ("throttled", stats.throttled),
        ("delayed", stats.delayed),
        ("in flight", stats.in_flight),
        ("oldest waiting", duration(stats.oldest_pending_age_ms) if stats.depth else "-"),
        ("fairness keys", stats.active_fairness_keys),
        ("consumers", stats.active_consumers),
        ("unused credit", stats.consumer_credit),
    ]
    before: list[tuple[str, object]] = [
        ("enqueued", happened.enqueued),
        ("delivered", happened.delivered),
        ("acked", happened.acked),
        ("nacked", happened.nacked),
        ("lease expired", happened.expired),
        ("dead-lettered", happened.dead_lettered),
        ("timed out", happened.timed_out),
        ("duplicates", happened.duplicates),
    ]
    return table(
        [
            Column("PAUSED" if stats.paused else "NOW", keep=True),
            Column("", number=True),
            Column("SINCE START", keep=True),
            Column("", number=True),
        ],
        [(*left, *right) for left, right in zip(now, before, strict=True)],
    )


def _fairness_keys(stats: "QueueStats", max_keys: int | None) -> list[RenderableType]:
    shown = stats.per_key_stats[:max_keys]
    rows = [
        (
            key.key,
            key.weight,
            key.pending_count,
            key.throttled,
            key.delivered,
            key.current_deficit,
            "paused" if key.paused else "",
        )
        for key in shown
    ]
    columns = [
        Column("FAIRNESS KEY"),
        Column("WEIGHT", number=True),
        Column("WAITING", number=True),
        Column("THROTTLED", number=True),
        Column("DELIVERED", number=True),
        Column("DEFICIT", number=True),
        Column("NOTE"),
    ]
    if not any(key.paused for key in shown):
        columns, rows = columns[:-1], [row[:-1] for row in rows]  # type: ignore[misc]
    parts: list[RenderableType] = [table(columns, rows)]
    more = stats.active_fairness_keys - len(shown)
    if more > 0:
        parts.append(f"... and {more:,} more keys with fewer waiting")
    return parts


def _throttle_keys(stats: "QueueStats") -> Table:
    return table(
        [
            Column("THROTTLE KEY"),
            Column("RATE/S", number=True),
            Column("TOKENS", number=True),
            Column("BURST", number=True),
            Column("IN USE", number=True),
            Column("LIMIT", number=True),
            Column("WAITING", number=True),
            Column("PASSED", number=True),
        ],
        [
            (
                key.key,
                key.rate_per_second or "-",
                key.tokens if key.rate_per_second else "-",
                key.burst or "-",
                key.in_flight,
                key.concurrency_limit or "-",
                key.waiting,
                key.passed,
            )
            for key in stats.per_throttle_stats
        ],
    )


def peeked(page: "PeekPage") -> Table:
    """One row per message, oldest first."""
    return table(
        [
            Column("MESSAGE", keep=True),
            Column("STATE", keep=True),
            Column("KEY"),
            Column("TRIES", number=True),
            Column("AGE", number=True),
            Column("PAYLOAD"),
        ],
        [
            (
                found.message.id,
                plain(found.state),
                found.message.fairness_key,
                found.message.attempt_count,
                since(found.message.enqueued_at),
                preview(found.message.payload, _PREVIEW_CHARS),
            )
            for found in page.messages
        ],
    )


def message(found: "ConsumeMessage") -> Group:
    """One delivered message: who and when, headers, payload."""
    facts = [f"key {one_line(found.fairness_key)}", f"waited {since(found.enqueued_at)}"]
    if found.attempt_count:
        facts.append(f"failed {found.attempt_count}x")
    if found.last_error:
        facts.append(f"last error: {one_line(found.last_error)}")
    head = Text.assemble((found.id, "bold"), "  ", ", ".join(facts))
    body = [
        Text(f"  {one_line(k)}: {one_line(v)}", "dim") for k, v in sorted(found.headers.items())
    ]
    return Group(head, *body, Text(f"  {preview(found.payload, 2_000)}"))


def explanation(found: "Explanation") -> list[RenderableType]:
    """Why something waits: the sentence, then every reason."""
    parts: list[RenderableType] = [Text(one_line(found.summary))]
    if found.estimated_at is not None:
        parts.append(f"Next delivery expected in {until(found.estimated_at)}.")
    if found.reasons:
        rows = [
            (plain(reason.kind), reason.throttle_key or "-", until(reason.until), reason.detail)
            for reason in found.reasons
        ]
        columns = [
            Column("REASON", keep=True),
            Column("THROTTLE KEY"),
            Column("FOR"),
            Column("DETAIL"),
        ]
        parts += ["", table(columns, rows)]
    return parts


def message_document(found: "Message") -> dict[str, object]:
    """A message for programs: every field but its lease token, the payload also as text."""
    document: dict[str, object] = plain(found)
    document.pop("lease_token", None)
    try:
        document["payload_text"] = found.payload.decode()
    except UnicodeDecodeError:
        document["payload_text"] = None
    return document


def peeked_document(found: "PeekedMessage") -> dict[str, object]:
    """A message in its queue for programs: the same, and where it is in its life."""
    place = {"state": plain(found.state), "position": found.position}
    return {**message_document(found.message), **place}


def hook_runs(found: "DryRun") -> list[RenderableType]:
    """What each hook of a script decided, and how long it took."""
    parts: list[RenderableType] = []
    for name, run in (("on_enqueue", found.on_enqueue), ("on_failure", found.on_failure)):
        if run is None:
            continue
        parts.append(Text.assemble((name, "bold"), f" decided in {run.elapsed_ns / 1_000:.0f} µs"))
        decision = plain(run.decision) or {"decision": "left to the queue's settings"}
        rows = [
            (f"  {field.removesuffix('_ms').replace('_', ' ')}", _decided(field, decision))
            for field in decision
        ]
        parts.append(table([Column("", keep=True), Column("")], rows, header=False))
    return parts


def _label(field: str) -> str:
    return f"  {field.removesuffix('_ms').replace('_', ' ')}"


def _decided(field: str, decision: dict[str, Any]) -> str:
    value = decision[field]
    if field == "weight" and not value:
        return "as the key has it"
    if field == "delay_ms":
        return duration(value)
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)
