# SPDX-License-Identifier: AGPL-3.0-only
"""What people see of queues and messages: which columns, in which order, under which words."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fila_server.cli.render import plain
from fila_server.cli.sheet import Column, Line, Part, Table
from fila_server.cli.words import (
    ago,
    counted,
    duration,
    one_line,
    preview,
    quoted,
    shell_word,
    since,
    until,
)
from fila_server.limits import DEFAULT_IDEMPOTENCY_WINDOW_MS, DEFAULT_RETRY_DELAY_MAX_MS

if TYPE_CHECKING:
    from fila import (
        ConsumeMessage,
        ConsumerStats,
        Explanation,
        Failure,
        HookStats,
        PeekPage,
        QueueInfo,
        QueueStats,
        ThrottleKeyStats,
        WaitStats,
    )
    from fila_server.hooks.dryrun import DryRun

# A payload's share of a line in a table; --json and --payload-only show all of it.
_PREVIEW_CHARS = 60


def queue_list(queues: "Sequence[QueueInfo]") -> Table:
    """One row per queue."""
    return Table(
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


def settings(name: str, stats: "QueueStats") -> list[Part]:
    """A queue's settings, defaults spelled out, and its scripts."""
    config = stats.config
    note = _note(stats)
    rows = [
        ("visibility timeout", _ms(config.visibility_timeout_ms, "broker's default")),
        ("max attempts", config.max_attempts or "no limit"),
        ("retry delay", _ms(config.retry_delay_ms, "none")),
        ("longest retry delay", duration(config.retry_delay_max_ms or DEFAULT_RETRY_DELAY_MAX_MS)),
        ("default time to live", _ms(config.default_ttl_ms, "none")),
        (
            "idempotency window",
            duration(config.idempotency_window_ms or DEFAULT_IDEMPOTENCY_WINDOW_MS),
        ),
        ("max messages", config.max_messages or "no limit"),
        ("quantum", config.quantum or f"{stats.quantum} (broker's default)"),
        ("on hook error", _policy(config.on_hook_error)),
        ("hook timeout", _ms(config.hook_timeout_ms, "broker's default")),
        ("hook memory", f"{config.hook_memory_limit_bytes or '''broker's default'''}"),
        ("on_enqueue", _script_size(config.on_enqueue_script)),
        ("on_failure", _script_size(config.on_failure_script)),
    ]
    parts: list[Part] = [
        Line((f"Queue {quoted(name)}{f' ({one_line(note)})' if note else ''}", "bold")),
        "",
        Table([Column("SETTING", keep=True), Column("VALUE")], rows),
    ]
    for title, source in (
        ("on_enqueue", config.on_enqueue_script),
        ("on_failure", config.on_failure_script),
    ):
        if source:
            lines = [one_line(line.replace("\t", "    ")) for line in source.splitlines()]
            parts += ["", Line((title, "bold")), *(f"  {line}" for line in lines)]
    return parts


def _ms(value: int, default: str) -> str:
    return duration(value) if value else default


def _policy(value: Any) -> str:
    name = str(plain(value) or "default")
    return "refuse the message" if name.endswith("reject") else "take it under the default key"


def _script_size(source: str) -> str:
    return f"{len(source.splitlines())} lines, below" if source else "none"


def stats(stats: "QueueStats") -> list[Part]:
    """A queue's numbers: now, since the broker started, by fairness key and by throttle key."""
    parts: list[Part] = [_totals(stats)]
    if stats.hooks is not None and stats.hooks.last_error:
        parts += ["", hook_trouble(stats.hooks)]
    turn = f"the turn of {quoted(stats.round_key)}" if stats.round_key else "nobody's turn"
    parts += ["", f"Round: {turn}, quantum {stats.quantum:,}"]
    if stats.per_key_stats:
        parts += ["", *_fairness_keys(stats)]
    if stats.per_throttle_stats:
        parts += ["", throttles(stats.per_throttle_stats)]
    if stats.waits:
        parts += ["", waits_line(stats.waits)]
    if stats.consumers:
        parts += ["", consumers(stats.consumers)]
    return parts


def waits_line(waits: "Sequence[WaitStats]") -> str:
    """What deliveries waited for, each with the middle and the bad end of it."""
    causes = (
        f"{one_line(it.cause.replace('_', ' '))} {duration(it.p50_ms)} (p95 {duration(it.p95_ms)}, "
        f"{it.count:,}x)"
        for it in waits
        if it.count
    )
    return f"Waited for: {', '.join(causes) or 'nothing yet'}"


def consumers(rows: "Sequence[ConsumerStats]") -> Table:
    """One row per open stream."""
    columns = [
        Column("CONSUMER", number=True),
        Column("IN FLIGHT", number=True),
        Column("CREDIT", number=True),
        Column("BATCH", number=True),
        Column("API KEY"),
    ]
    cells = [(it.number, it.in_flight, it.credit, it.max_batch, it.key_id or "-") for it in rows]
    return Table(columns, cells)


def hook_trouble(hooks: "HookStats") -> str:
    """What is wrong with a queue's hook."""
    error = one_line(hooks.last_error)
    if not hooks.failures:  # nothing has called it since the broker started
        return f"Hook: not loaded: {error}"
    state = "open, the hook is bypassed" if hooks.circuit_open else "closed"
    return (
        f"Hook: {hooks.failures:,} of {counted(hooks.calls + hooks.failures, 'call')} failed, "
        f"circuit breaker {state}, last error: {error}"
    )


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
    return Table(
        [
            Column("PAUSED" if stats.paused else "NOW", keep=True),
            Column("", number=True),
            Column("SINCE START", keep=True),
            Column("", number=True),
        ],
        [(*left, *right) for left, right in zip(now, before, strict=True)],
    )


def _fairness_keys(stats: "QueueStats") -> list[Part]:
    shown = stats.per_key_stats
    rows = [
        (
            key.key,
            key.weight,
            key.pending_count,
            key.throttled,
            key.delivered,
            key.current_deficit,
            _place_in_round(key.round_position),
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
        Column("ROUND", number=True),
        Column("NOTE"),
    ]
    if not any(key.paused for key in shown):
        columns, rows = columns[:-1], [row[:-1] for row in rows]  # type: ignore[misc]
    parts: list[Part] = [Table(columns, rows)]
    more = stats.active_fairness_keys - len(shown)
    if more > 0:
        parts.append(f"... and {counted(more, 'more key')} with fewer waiting")
    return parts


def _place_in_round(position: int | None) -> str:
    if position is None:
        return "-"
    return "now" if position == 0 else f"{position:,}"


def throttles(rows: "Sequence[ThrottleKeyStats]") -> Table:
    """One row per throttle key: its limits, what they let through, what they hold back."""
    columns = [
        Column("THROTTLE KEY"),
        Column("SOURCE"),
        Column("RATE/S", number=True),
        Column("TOKENS", number=True),
        Column("IN FLIGHT", number=True),
        Column("WAITING", number=True),
        Column("PASSED/S", number=True),
        Column("BLOCKED/S", number=True),
        Column("PAUSED"),
    ]
    cells: list[Sequence[object]] = [
        (
            row.key,
            _source(row),
            row.rate_per_second or "-",
            row.tokens if row.rate_per_second else "-",
            _of_limit(row),
            row.waiting,
            row.passed_per_second,
            row.blocked_per_second,
            _pause(row),
        )
        for row in rows
    ]
    if not any(_pause(row) for row in rows):
        columns, cells = columns[:-1], [row[:-1] for row in cells]
    return Table(columns, cells)


def _source(row: "ThrottleKeyStats") -> str:
    if row.unset:
        return "unset"
    return row.pattern or "exact"


def _of_limit(row: "ThrottleKeyStats") -> str:
    limit = f"/{row.concurrency_limit:,}" if row.concurrency_limit else ""
    return f"{row.in_flight:,}{limit}"


def _pause(row: "ThrottleKeyStats") -> str:
    """How long the key rests; a consumer may have asked for it, as well as an operator."""
    if row.paused:
        return until(row.paused_until) if row.paused_until else "until resumed"
    return f"{until(row.paused_until)}, backpressure" if row.paused_until else ""


def peeked(page: "PeekPage") -> Table:
    """One row per message, oldest first, and under it one per failure that it remembers."""
    rows: list[Sequence[object]] = []
    for found in page.messages:
        message = found.message
        rows.append(
            (
                message.id,
                plain(found.state),
                message.fairness_key,
                message.attempt_count,
                since(message.enqueued_at),
                preview(message.payload, _PREVIEW_CHARS),
            )
        )
        rows += [
            tuple(
                Line((text, "dim")) for text in ("", _cause(it), "", "", since(it.failed_at), error)
            )
            for it in message.failures
            for error in [one_line(it.error) or "-"]
        ]
    columns = [
        Column("MESSAGE", keep=True),
        Column("STATE", keep=True),
        Column("KEY"),
        Column("TRIES", number=True),
        Column("AGE", number=True),
        Column("PAYLOAD"),
    ]
    return Table(columns, rows)


def _failures(found: "Sequence[Failure]") -> Table:
    """One row per failure, oldest first."""
    columns = [Column("FAILED", keep=True), Column("CAUSE", keep=True), Column("ERROR")]
    rows = [(ago(it.failed_at), _cause(it), it.error or "-") for it in found]
    return Table(columns, rows)


def _cause(failure: "Failure") -> str:
    return str(failure.cause or "unknown").replace("_", " ")


def message(found: "ConsumeMessage") -> list[Part]:
    """One delivered message: who and when, headers, payload."""
    facts = [f"key {one_line(found.fairness_key)}", f"waited {since(found.enqueued_at)}"]
    if found.attempt_count:
        facts.append(f"failed {found.attempt_count}x")
    if found.last_error and not found.failures:  # backpressure is no failure
        facts.append(f"last error: {one_line(found.last_error)}")
    head = Line((found.id, "bold"), "  ", ", ".join(facts))
    body = [
        Line((f"  {_cause(it)} {ago(it.failed_at)}: {one_line(it.error) or '-'}", "dim"))
        for it in found.failures
    ]
    body += [
        Line((f"  {one_line(k)}: {one_line(v)}", "dim")) for k, v in sorted(found.headers.items())
    ]
    return [head, *body, f"  {preview(found.payload, 2_000)}"]


def explanation(found: "Explanation") -> list[Part]:
    """Why something waits: the sentence, then every reason."""
    parts: list[Part] = [one_line(found.summary)]
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
        parts += ["", Table(columns, rows)]
    if found.unset_throttle_keys:
        keys = ", ".join(quoted(key) for key in found.unset_throttle_keys)
        example = shell_word(found.unset_throttle_keys[0])
        way_out = f"set one with: fila throttle set {example} --rate R"
        parts += ["", f"Nobody has set a limit for {keys}; {way_out}"]
    if found.failures:
        parts += ["", _failures(found.failures)]
    return parts


def hook_runs(found: "DryRun") -> list[Part]:
    """What each hook of a script decided, and how long it took."""
    parts: list[Part] = []
    for name, run in (("on_enqueue", found.on_enqueue), ("on_failure", found.on_failure)):
        if run is None:
            continue
        parts.append(Line((name, "bold"), f" decided in {run.elapsed_ns / 1_000:.0f} µs"))
        decision = plain(run.decision) or {"decision": "left to the queue's settings"}
        rows = [
            (f"  {field.removesuffix('_ms').replace('_', ' ')}", _decided(field, decision))
            for field in decision
        ]
        parts.append(Table([Column("", keep=True), Column("")], rows, header=False))
    return parts


def _decided(field: str, decision: dict[str, Any]) -> str:
    value = decision[field]
    if field == "delay_ms":
        return duration(value)
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)
