# SPDX-License-Identifier: AGPL-3.0-only
"""How the demo shows itself: a table that redraws, a line a second in a pipe, and the summary."""

from fila_server.cli.demo.load import CAPACITY_PER_SECOND, NOISY_FACTOR, PREMIUM_WEIGHT
from fila_server.cli.demo.score import RECENT_S, Record, TenantScore, Waits
from fila_server.cli.shares import bar
from fila_server.cli.sheet import Column, Line, Part, Table
from fila_server.cli.words import duration

# A quiet tenant that waits less than this part of the FIFO wait did not queue behind others.
_CLEARLY_BETTER = 0.5


def live(record: Record, now_s: float, left_s: float) -> list[Part]:
    """The table as it is now."""
    since = now_s - RECENT_S
    arriving = sum(tenant.per_second for tenant in record.tenants)
    head = (
        f"{arriving:,.0f} msg/s arrive, consumers handle {CAPACITY_PER_SECOND} msg/s, "
        f"{max(0.0, left_s):.0f} s left"
    )
    totals = (
        f"Delivered {len(record.deliveries):,}, now {_pace(record, now_s):,.0f} msg/s; "
        f"{record.backlog:,} waiting."
    )
    table = _tenants(record.scores(since))
    return [Line((head, "bold")), "", table, "", totals, _compared(record, since)]


def line(record: Record, now_s: float, elapsed_s: float) -> str:
    """The same on one line."""
    since = now_s - RECENT_S
    return (
        f"{elapsed_s:3.0f} s  delivered {len(record.deliveries):,} "
        f"({_pace(record, now_s):,.0f}/s)  waiting {record.backlog:,}  {_compared(record, since)}"
    )


def summary(record: Record, seconds: float) -> list[Part]:
    """What was seen, in plain words."""
    scores = record.scores()
    return [
        _tenants(scores),
        "",
        *_sentences(record, scores, seconds),
    ]


def document(record: Record, seconds: float) -> dict[str, object]:
    """What was seen, for programs."""
    quiet, fifo = record.quiet_waits(), record.quiet_fifo_waits()
    scores = record.scores()
    return {
        "seconds": round(seconds, 3),
        "enqueued": len(record.arrivals),
        "delivered": len(record.deliveries),
        "delivered_per_second": round(len(record.deliveries) / seconds, 1),
        "largest_share_error": round(_largest_error(scores), 4),
        "quiet_wait": _waits_document(quiet),
        "quiet_wait_if_fifo_computed": _waits_document(fifo),
        "tenants": [
            {
                "tenant": score.tenant.name,
                "weight": score.tenant.weight,
                "enqueued": score.enqueued,
                "delivered": score.delivered,
                "share": round(score.share, 4),
                "entitlement": round(score.entitlement, 4),
                "wait": _waits_document(score.waits),
            }
            for score in scores
        ],
    }


def _tenants(scores: list[TenantScore]) -> Table:
    widest = max(max(score.share, score.entitlement) for score in scores) or 1.0
    columns = [
        Column("TENANT", keep=True),
        Column("WEIGHT", number=True),
        Column("SENT", number=True),
        Column("GOT", number=True),
        Column("SHARE", number=True),
        Column("ENTITLED", number=True),
        Column("", keep=True),
        Column("WAIT P50", number=True),
        Column("P95", number=True),
    ]
    return Table(
        columns,
        [
            (
                score.tenant.name,
                score.tenant.weight,
                score.enqueued,
                score.delivered,
                f"{score.share:.1%}",
                f"{score.entitlement:.1%}",
                _bar(score, widest),
                duration(score.waits.p50_s * 1_000) if score.waits else "-",
                duration(score.waits.p95_s * 1_000) if score.waits else "-",
            )
            for score in scores
        ],
    )


def _bar(score: TenantScore, widest: float) -> Line:
    text = bar(score.share, score.entitlement, widest)
    return Line((text, "green" if score.tenant.is_quiet else "yellow"))


def _pace(record: Record, now_s: float) -> float:
    if not record.arrivals:
        return 0.0
    return record.delivered_per_second(max(now_s - RECENT_S, record.arrivals[0][1]), now_s)


def _compared(record: Record, since_s: float) -> str:
    quiet, fifo = record.quiet_waits(since_s), record.quiet_fifo_waits(since_s)
    if quiet is None or fifo is None:
        return "No quiet message delivered yet"
    return (
        f"Quiet tenants wait {duration(quiet.p50_s * 1_000)}, "
        f"plain FIFO {duration(fifo.p50_s * 1_000)} (computed)"
    )


def _sentences(record: Record, scores: list[TenantScore], seconds: float) -> list[str]:
    noisy, premium = scores[0], scores[1]
    sentences = [
        f"In {seconds:.0f} s {len(record.deliveries):,} messages were delivered "
        f"({len(record.deliveries) / seconds:,.0f} msg/s) and {record.backlog:,} are left waiting.",
        f'"noisy" sent {NOISY_FACTOR} times as much as each quiet tenant.',
        *_quiet_sentences(record.quiet_waits(), record.quiet_fifo_waits()),
    ]
    if noisy.delivered:
        sentences.append(
            f'"premium" (weight {PREMIUM_WEIGHT}) got {premium.delivered / noisy.delivered:.2f} '
            f'times the deliveries of "noisy" (weight 1); both always had messages waiting.'
        )
    sentences.append(
        f"No tenant was further than {_largest_error(scores):.1%} of all deliveries from its "
        f"entitled share."
    )
    sentences.append("Your turn: start fila-server, then: fila queue create orders")
    return sentences


def _quiet_sentences(quiet: Waits | None, fifo: Waits | None) -> list[str]:
    if quiet is None or fifo is None:
        return ["No message of a quiet tenant was delivered."]
    measured = f"{duration(quiet.p50_s * 1_000)} (p95 {duration(quiet.p95_s * 1_000)})"
    computed = f"{duration(fifo.p50_s * 1_000)} (p95 {duration(fifo.p95_s * 1_000)})"
    sentences = [
        f"Quiet tenants waited {measured}.",
        f"In one plain FIFO queue they would have waited {computed}: computed from the same "
        f"arrivals and deliveries.",
    ]
    if quiet.p50_s > fifo.p50_s * _CLEARLY_BETTER:
        sentences.append("So fair scheduling made no clear difference in this run.")
    return sentences


def _largest_error(scores: list[TenantScore]) -> float:
    return max(abs(score.share - score.entitlement) for score in scores)


def _waits_document(waits: Waits | None) -> dict[str, float] | None:
    if waits is None:
        return None
    return {"p50_ms": round(waits.p50_s * 1_000, 1), "p95_ms": round(waits.p95_s * 1_000, 1)}
