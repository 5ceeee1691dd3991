# SPDX-License-Identifier: AGPL-3.0-only
"""What people see of answers that a test cannot make a broker give at will."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fila import Explanation, Failure, FailureCause, HookStats, ThrottleKeyStats
from fila_server.cli import documents, render, views


def throttle(key: str, **fields: Any) -> ThrottleKeyStats:
    nothing: dict[str, Any] = dict.fromkeys(
        "tokens rate_per_second burst passed blocked concurrency_limit in_flight waiting "
        "passed_per_second blocked_per_second".split(),
        0,
    )
    nothing |= {"paused_until": None, "pattern": "", "unset": False, "paused": False}
    return ThrottleKeyStats(key=key, **{**nothing, **fields})


def shown(capsys: pytest.CaptureFixture[str], *parts: object) -> list[list[str]]:
    render.show(*parts)
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def soon() -> datetime:
    """A time whose distance is written in whole minutes for the next half a minute."""
    return datetime.now(UTC) + timedelta(minutes=10, seconds=30)


def test_rates_and_sources_of_throttle_keys(capsys: pytest.CaptureFixture[str]) -> None:
    limits = {"rate_per_second": 25.0, "tokens": 3.5, "burst": 50.0, "concurrency_limit": 5}
    rates = {"passed_per_second": 24.96, "blocked_per_second": 0.5, "in_flight": 4, "waiting": 1200}
    rows = [
        throttle("own", **limits, **rates),
        throttle("stripe:a", **limits, pattern="stripe:*"),
        throttle("loose", unset=True, in_flight=7),
    ]
    assert shown(capsys, views.throttles(rows))[1:] == [
        ["own", "exact", "25", "3.5", "4/5", "1,200", "25", "0.5"],
        ["stripe:a", "stripe:*", "25", "3.5", "0/5", "0", "0", "0"],
        ["loose", "unset", "-", "-", "7", "0", "0", "0"],
    ]
    sources = [documents.throttle(row)["source"] for row in rows]
    assert sources == ["exact", "pattern", "unset"]


def test_who_has_paused_a_throttle_key(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        throttle("by-operator", paused=True),
        throttle("for-a-time", paused=True, paused_until=soon()),
        throttle("by-consumer", paused_until=soon()),
        throttle("free"),
    ]
    head, *lines = shown(capsys, views.throttles(rows))
    assert head[-1] == "PAUSED"
    assert [line[8:] for line in lines] == [
        ["until", "resumed"],
        ["10m", lines[1][-1]],
        ["10m", lines[2][-2], "backpressure"],
        [],
    ]


def test_failures_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    moment = datetime.now(UTC) - timedelta(days=2)
    failures = (
        Failure(moment, FailureCause.EXPIRED, ""),
        Failure(moment, FailureCause.NACK, "\x1b[2J[bold]boom\n"),
        Failure(None, None, "of a newer broker"),
    )
    explanation = Explanation(
        summary="message x waits",
        reasons=(),
        estimated_at=None,
        fairness_key="k",
        pending_count=1,
        ahead=0,
        state=None,
        failures=failures,
        unset_throttle_keys=("a'b", "c"),
    )
    lines = shown(capsys, *views.explanation(explanation))
    assert lines[2:] == [
        """Nobody has set a limit for "a'b", "c"; set one with: """.split()
        + """fila throttle set 'a'"'"'b' --rate R""".split(),
        [],
        ["FAILED", "CAUSE", "ERROR"],
        ["2d", "ago", "expired", "-"],
        ["2d", "ago", "nack", r"\x1b[2J[bold]boom\n"],
        ["-", "unknown", "of", "a", "newer", "broker"],
    ]


def test_trouble_with_a_hook_is_told() -> None:
    assert views.hook_trouble(HookStats(0, 0, 0, False, "line 3: x")) == (
        "Hook: not loaded: line 3: x"
    )
    assert views.hook_trouble(HookStats(1, 3, 9, True, "line 3: x")) == (
        "Hook: 3 of 4 calls failed, circuit breaker open, the hook is bypassed, "
        "last error: line 3: x"
    )
