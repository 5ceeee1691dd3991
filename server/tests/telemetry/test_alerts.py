# SPDX-License-Identifier: AGPL-3.0-only
"""Alert rules, Grafana's dashboard, the runbook and the page of metrics speak of what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from fila_server.telemetry.instruments import INSTRUMENTS
from fila_server.telemetry.prometheus import prometheus_name
from tools import metrics_page

ROOT = Path(__file__).parents[3]
RULES = yaml.safe_load((ROOT / "deploy/prometheus/fila-alerts.yaml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((ROOT / "deploy/grafana/fila.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
RUNBOOK = (ROOT / "docs/guides/runbook.md").read_text()

_NAME = re.compile(r"\b(?:fila_\w+|up)\b")
_LABEL = re.compile(r"by \(([^)]*)\)|(\w+)(?:=~?|!~|!=)\"")


def scraped() -> dict[str, tuple[str, ...]]:
    """Every series that a scrape may have, with its labels."""
    found: dict[str, tuple[str, ...]] = {"up": ("job",)}
    for name, instrument in INSTRUMENTS.items():
        plain = prometheus_name(name)
        if instrument.kind == "histogram":
            found[plain + "_bucket"] = (*instrument.labels, "le")
            found[plain + "_sum"] = found[plain + "_count"] = instrument.labels
        else:
            found[plain + ("_total" if instrument.kind == "counter" else "")] = instrument.labels
    return found


@pytest.mark.parametrize("query", [*(rule["expr"] for rule in ALERTS), *QUERIES])
def test_a_query_names_series_and_labels_that_exist(query: str) -> None:
    series = scraped()
    names = _NAME.findall(query)
    assert names
    assert set(names) <= series.keys()
    labels = {label for name in names for label in series[name]}
    for grouped, matched in _LABEL.findall(query):
        assert {it.strip() for it in (grouped or matched).split(",")} <= labels
    assert query.count("(") == query.count(")") and query.count("[") == query.count("]")
    # A rate is of a counter, and a counter is never looked at by itself.
    for name in names:
        is_counter = name.endswith(("_total", "_bucket"))
        assert is_counter == bool(re.search(rf"(?:rate|increase)\({name}\b", query))


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_has_its_section_in_a_page(rule: dict[str, dict[str, str]]) -> None:
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    text = (ROOT / page).read_text()
    if anchor:
        headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert anchor in {heading.lower().replace(" ", "-") for heading in headings}
        assert f"`{rule['alert']}`" in text


def test_the_runbook_names_what_there_is() -> None:
    for name in _NAME.findall(RUNBOOK):
        assert name in scraped(), name
    alerts = {rule["alert"] for rule in ALERTS}
    assert set(re.findall(r"`(Fila[A-Z]\w+)`", RUNBOOK)) <= alerts


def test_the_page_of_metrics_is_fresh() -> None:
    page = (ROOT / metrics_page.TARGET).read_text()
    assert page == metrics_page.render(), "python -m tools.metrics_page"
