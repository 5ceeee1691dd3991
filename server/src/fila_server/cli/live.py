# SPDX-License-Identifier: AGPL-3.0-only
"""What `fila top` draws: all queues, or one queue with who gets how much of it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fila_server.cli import views
from fila_server.cli.overview import Rates, Row
from fila_server.cli.shares import Share, bar
from fila_server.cli.sheet import Column, Line, Part, Table
from fila_server.cli.words import counted, duration, one_line, quoted

if TYPE_CHECKING:
    from fila import FairnessKeyStats, QueueStats


def overview(title: str, rows: Sequence[Row], height: int) -> list[Part]:
    """All queues, those in trouble first, as many as fit."""
    waiting = sum(row.info.depth for row in rows)
    in_flight = sum(row.info.in_flight for row in rows)
    dead = sum(row.dead_letters for row in rows)
    totals = f"{counted(len(rows), 'queue')}, {waiting:,} waiting, {in_flight:,} in flight"
    parts: list[Part] = [
        Line((title, "bold")),
        f"{totals}, {counted(dead, 'dead letter')}",
        "",
    ]
    if not rows:
        return [*parts, "No queues yet. Create one with: fila queue create NAME"]
    # Title, totals, blank, head, and the line that says how many more there are.
    shown = rows[: max(1, height - 5)]
    parts.append(_queues(shown))
    if len(shown) < len(rows):
        parts.append(f"... and {len(rows) - len(shown):,} more, in less trouble")
    return parts


def _queues(rows: Sequence[Row]) -> Table:
    columns = [
        Column("QUEUE"),
        Column("WAITING", number=True),
        Column("OLDEST", number=True),
        Column("FLIGHT", number=True),
        Column("THROTTLED", number=True),
        Column("DEAD", number=True),
        Column("IN/S", number=True),
        Column("OUT/S", number=True),
        Column("ACK/S", number=True),
        Column("TROUBLE"),
    ]
    cells = [
        (
            row.info.name,
            row.info.depth,
            duration(row.info.oldest_pending_age_ms) if row.info.depth else "-",
            row.info.in_flight,
            row.info.throttled,
            row.dead_letters,
            *_per_second(row.rates),
            Line((", ".join(row.troubles), "yellow")),
        )
        for row in rows
    ]
    return Table(columns, cells)


def _per_second(rates: Rates | None) -> tuple[str, str, str]:
    if rates is None:
        return "-", "-", "-"
    return f"{rates.enqueued:,.0f}", f"{rates.delivered:,.0f}", f"{rates.acked:,.0f}"


def overview_line(at: str, row: Row) -> str:
    """One queue on one line, for a pipe."""
    info = row.info
    parts = [
        f"{at} {one_line(info.name)} waiting {info.depth:,} in flight {info.in_flight:,}",
        f"oldest {duration(info.oldest_pending_age_ms)} throttled {info.throttled:,}",
        f"dead {row.dead_letters:,} consumers {info.active_consumers:,}",
    ]
    parts += [rates_line(row.rates)] if row.rates is not None else []
    parts += [f"({', '.join(row.troubles)})"] if row.troubles else []
    return " ".join(parts)


def rates_line(rates: Rates | None) -> str:
    """What happens per second, on one line; empty at the first look."""
    if rates is None:
        return ""
    return f"in {rates.enqueued:,.0f}/s  delivered {rates.delivered:,.0f}/s  acked " + (
        f"{rates.acked:,.0f}/s" + (f"  nacked {rates.nacked:,.0f}/s" if rates.nacked else "")
    )


def queue(
    title: str,
    stats: "QueueStats",
    rates: Rates | None,
    shares: Mapping[str, Share],
    height: int,
) -> list[Part]:
    """One queue: its numbers, the share of each key against its entitled one, what holds it up."""
    parts: list[Part] = [
        Line((title, "bold")),
        _numbers(stats),
        rates_line(rates) or "rates follow with the next look",
    ]
    if stats.hooks is not None and stats.hooks.last_error:
        parts.append(views.hook_trouble(stats.hooks))
    below: list[Part] = []
    if stats.per_throttle_stats:
        below += ["", views.throttles(stats.per_throttle_stats[: _fitting(height, 4)])]
    if stats.waits:
        below += ["", views.waits_line(stats.waits)]
    if stats.consumers:
        below += ["", views.consumers(stats.consumers[: _fitting(height, 4)])]
    if stats.per_key_stats:
        shown = stats.per_key_stats[: _fitting(height, 2)]
        parts += ["", _keys(shown, shares)]
        if stats.active_fairness_keys > len(shown):
            more = stats.active_fairness_keys - len(shown)
            parts.append(f"... and {counted(more, 'more key')} with fewer waiting")
    return [*parts, *below]


def _fitting(height: int, part: int) -> int:
    """Rows for one table that may take one part of so many of the terminal's lines."""
    return max(3, height // part - 3)


def _numbers(stats: "QueueStats") -> str:
    state = "PAUSED  " if stats.paused else ""
    oldest = duration(stats.oldest_pending_age_ms) if stats.depth else "-"
    return (
        f"{state}waiting {stats.depth:,} (throttled {stats.throttled:,}, delayed "
        f"{stats.delayed:,})  oldest {oldest}  in flight {stats.in_flight:,}  consumers "
        f"{stats.active_consumers:,} (credit {stats.consumer_credit:,})  dead-lettered "
        f"{stats.counters.dead_lettered:,}"
    )


def _keys(keys: "Sequence[FairnessKeyStats]", shares: Mapping[str, Share]) -> Table:
    widest = max((max(it.share, it.entitled) for it in shares.values()), default=0.0) or 1.0
    columns = [
        Column("FAIRNESS KEY"),
        Column("WEIGHT", number=True),
        Column("WAITING", number=True),
        Column("THROTTLED", number=True),
        Column("SHARE", number=True),
        Column("ENTITLED", number=True),
        Column("", keep=True),
        Column("WAIT P50", number=True),
        Column("P95", number=True),
        Column("NOTE"),
    ]
    rows = []
    for key in keys:
        found = shares.get(key.key)
        waits = key.traffic
        rows.append(
            (
                key.key,
                key.weight,
                key.pending_count,
                key.throttled,
                f"{found.share:.1%}" if found else "-",
                f"{found.entitled:.1%}" if found else "-",
                Line((bar(found.share, found.entitled, widest), "green")) if found else "",
                duration(waits.wait_p50_ms) if waits else "-",
                duration(waits.wait_p95_ms) if waits else "-",
                "paused" if key.paused else "",
            )
        )
    if not any(key.paused for key in keys):
        return Table(columns[:-1], [row[:-1] for row in rows])
    return Table(columns, rows)


def title(queue: str | None, address: str, at: str, interval: float) -> str:
    """The line at the top of the screen."""
    what = f"Queue {quoted(queue)} at" if queue else "Fila at"
    return f"{what} {one_line(address)}  {at}  every {interval:g} s  (q quits)"
