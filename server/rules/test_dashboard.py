# SPDX-License-Identifier: AGPL-3.0-only
"""Every query of Grafana's dashboard shows what a broker with a known workload does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from server.rules.engine import Recording, ask, sample
from server.rules.ward import SCRAPES

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana/fila.json").read_text())
# As far apart as a Prometheus scrapes by default in Grafana's eyes.
INTERVAL_S = 15


class Target(NamedTuple):
    """One query, and what the curves that it gives are called."""

    panel: str
    legend: str
    query: str

    @property
    def labels(self) -> list[str]:
        return re.findall(r"{{(\w+)}}", self.legend)


TARGETS = [
    Target(panel["title"], target["legendFormat"], target["expr"])
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
]


def of(label: str, *values: str) -> list[dict[str, str]]:
    return [{label: value} for value in values]


ONE: list[dict[str, str]] = [{}]
FULL = of("queue_id", "orders", "slow", "alone", "mail.dlq")
TAKEN = [
    {"queue_id": queue, "fairness_key": key}
    for queue, keys in {
        "orders": ("acme", "globex", "held"),
        "mail": ("acme",),
        "broken": ("default",),
        "slow": ("default",),
        "patient": ("default",),
    }.items()
    for key in keys
]
# Those in the round: "held" and "frozen" are parked, and of the others nothing waits.
IN_TURN = [TAKEN[0], TAKEN[1], {"queue_id": "slow", "fairness_key": "default"}]
CAUSES = of("cause", "turn", "throttle", "concurrency", "pause", "delay", "no_consumer")

# What each query gives for the broker of ward.py that has every trouble: which curves there are
# whose values compare so. A query that is not here fails, and one whose condition ward.py does not
# bring about.
CURVES: dict[tuple[str, str], tuple[str, list[dict[str, str]]]] = {
    ("Messages per second", "enqueued"): ("> 0", ONE),
    ("Messages per second", "delivered"): ("> 0", ONE),
    ("Messages per second", "acked"): ("> 0", ONE),
    ("Messages per second", "nacked"): ("> 0", ONE),
    ("Depth by queue", "{{queue_id}}"): ("> 0", FULL),
    ("Oldest waiting message", "{{queue_id}}"): ("> 0", FULL),
    ("What messages waited for, 95 of 100", "{{cause}}"): ("> 0", CAUSES),
    ("Share of its entitlement, by key", "{{queue_id}} {{fairness_key}}"): ("> 0.5 < 2", IN_TURN),
    ("Deliveries by key", "{{queue_id}} {{fairness_key}}"): ("> 0", TAKEN),
    ("Throttled", "{{queue_id}}"): ("> 0", of("queue_id", "orders")),
    ("Tokens left", "{{throttle_key}}"): (">= 0", of("throttle_key", "bank", "mailgun", "stripe")),
    ("Dead letters and expired leases per second", "dead {{queue_id}}"): (
        "> 0",
        of("queue_id", "mail"),
    ),
    ("Dead letters and expired leases per second", "expired {{queue_id}}"): (
        "> 0",
        of("queue_id", "slow"),
    ),
    ("Hooks, 99 of 100 calls", "{{queue_id}}"): ("> 0", of("queue_id", "mail", "broken")),
    ("fsync and turns, 95 of 100", "fsync"): ("> 0", ONE),
    ("fsync and turns, 95 of 100", "turn"): ("> 0", ONE),
    ("Disk and memory", "disk free"): ("> 1e6", ONE),
    ("Disk and memory", "refused below"): ("> 1e6", ONE),
    ("Disk and memory", "tables"): (">= 0", ONE),
    ("Disk and memory", "memory"): ("> 1e6", ONE),
}


def test_every_curve_is_there_and_nothing_else(recording: Recording, tmp_path: Path) -> None:
    """Names every query that is not as it should be, with what it gave instead."""
    asked = []
    for target in TARGETS:
        compared, curves = CURVES[target.panel, target.legend]
        asked.append(
            {
                "expr": f"count by ({', '.join(target.labels)}) (({target.query}) {compared})",
                "eval_time": f"{(SCRAPES - 1) * INTERVAL_S}s",
                "exp_samples": [sample(curve, 1) for curve in curves],
            }
        )
    ask(tmp_path, [], [recording.question(INTERVAL_S, "ill", promql_expr_test=asked)])


def test_a_query_that_gives_nothing_is_noticed(recording: Recording, tmp_path: Path) -> None:
    asked = {"expr": "count(fila_no_such_thing)", "eval_time": "1m", "exp_samples": [sample({}, 1)]}
    with pytest.raises(AssertionError, match="fila_no_such_thing"):
        ask(tmp_path, [], [recording.question(INTERVAL_S, "ill", promql_expr_test=[asked])])
