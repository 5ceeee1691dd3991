# SPDX-License-Identifier: AGPL-3.0-only
"""Prometheus's engine without a server: promtool evaluates rules and queries on series that it is
given. This module turns scrapes into such series, and questions into its file format.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tools.promtool import promtool

Labels = Mapping[str, str]
_TIMEOUT_S = 60


def run(*arguments: str | Path) -> str:
    """Run promtool; fail with what it said if it is not content."""
    done = subprocess.run(
        [promtool(), *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def selector(name: str, labels: Labels) -> str:
    inside = ",".join(f"{label}={json.dumps(text)}" for label, text in sorted(labels.items()))
    return f"{name}{{{inside}}}"


class Recording:
    """What scrapes found, one after the other, as a Prometheus would have stored it."""

    def __init__(self) -> None:
        self._series: dict[str, list[str]] = {}
        self.length = 0

    def add(self, pages: Mapping[str, str | None]) -> None:
        """Note the page of each instance at one time; None where nobody answered."""
        for instance, page in pages.items():
            target = {"instance": instance, "job": "fila"}
            self._note(selector("up", target), int(page is not None))
            for family in text_string_to_metric_families(page or ""):
                for sample in family.samples:
                    labels = {**sample.labels, **target}
                    self._note(selector(sample.name, labels), sample.value)
        self.length += 1
        for values in self._series.values():
            if len(values) < self.length:  # the series has ended
                values.append("stale" if values[-1] not in ("stale", "_") else "_")

    def _note(self, series: str, value: float) -> None:
        values = self._series.setdefault(series, ["_"] * self.length)
        assert len(values) == self.length, f"{series} is twice on one page"
        values.append(f"{value:.17g}")

    def question(self, interval_s: int, instance: str = "", **asked: Any) -> dict[str, Any]:
        """Return a test of promtool's: of one instance or all, so long between two scrapes."""
        wanted = f'instance="{instance}'
        found = [
            {"series": series, "values": " ".join(values)}
            for series, values in self._series.items()
            if wanted in series
        ]
        return {"interval": f"{interval_s}s", "input_series": found, **asked}


def sample(labels: Labels, value: float) -> dict[str, Any]:
    return {"labels": selector("", labels), "value": value}


def ask(folder: Path, rules: Iterable[Path], tests: Sequence[Mapping[str, Any]]) -> None:
    """Let promtool compare what is with what is expected."""
    path = folder / "questions.yaml"
    document = {
        "rule_files": [str(rule) for rule in rules],
        "evaluation_interval": "1m",
        "tests": tests,
    }
    path.write_text(json.dumps(document))  # which is YAML too
    run("test", "rules", path)
