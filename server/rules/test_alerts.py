# SPDX-License-Identifier: AGPL-3.0-only
"""Every alert fires for what it is meant for, with its labels and words, and for nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from server.rules.engine import Recording, ask, run
from server.rules.ward import SCRAPES

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/fila-alerts.yaml"
TESTS = ROOT / "deploy/prometheus/tests"
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
}
# What must be told of the brokers of ward.py. Those that are not named here would need hours; their
# files under deploy/prometheus/tests have them.
TOLD: dict[str, list[dict[str, str]]] = {
    "FilaDiskLow": [{"instance": "full"}],
    "FilaDiskFillsUp": [{"instance": "full"}],
    "FilaDown": [{"instance": "gone"}],
    "FilaBacklog": [],
    "FilaThrottledForHours": [],
    "FilaDeadLettersGrow": [{"instance": "ill", "queue_id": "mail"}],
    "FilaHookFails": [{"instance": "ill", "queue_id": "broken"}],
    "FilaConsumersStuck": [{"instance": "ill", "queue_id": "slow"}],
    "FilaNobodyConsumes": [{"instance": "ill", "queue_id": "alone"}],
    "FilaKeysRefused": [{"instance": "ill"}],
}


def test_prometheus_takes_the_rules() -> None:
    run("check", "rules", "--lint=all", "--lint-fatal", RULES)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_and_is_silent_as_its_file_says(alert: str) -> None:
    path = TESTS / f"{alert}.yaml"
    tests = yaml.safe_load(path.read_text())["tests"]
    asked = [it for test in tests for it in test["alert_rule_test"]]
    assert {it["alertname"] for it in asked} == {alert}
    assert {bool(it["exp_alerts"]) for it in asked} == {True, False}
    run("test", "rules", path)


def test_every_file_is_of_an_alert() -> None:
    assert {path.stem for path in TESTS.iterdir()} == ALERTS.keys() == TOLD.keys()


def test_real_brokers_raise_their_alerts_alone(recording: Recording, tmp_path: Path) -> None:
    """With a minute between two scrapes; the healthy one raises none."""
    asked = [
        {
            "eval_time": f"{SCRAPES - 1}m",
            "alertname": alert,
            "exp_alerts": [expected(alert, labels) for labels in TOLD[alert]],
        }
        for alert in ALERTS
    ]
    ask(tmp_path, [RULES], [recording.question(60, alert_rule_test=asked)])


def expected(alert: str, labels: dict[str, str]) -> dict[str, Any]:
    rule = ALERTS[alert]
    annotations = dict(rule["annotations"])
    queue = labels.get("queue_id", "")
    annotations["summary"] = annotations["summary"].replace("{{ $labels.queue_id }}", queue)
    return {
        "exp_labels": {**labels, "job": "fila", **rule["labels"]},
        "exp_annotations": annotations,
    }
