# SPDX-License-Identifier: AGPL-3.0-only
"""Results for people and for programs: the terminal, report/junit.xml and report/report.json."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

from fila_conformance.outcome import Outcome, Score, Verdict

# Wide enough for seven subjects where the output is no terminal.
_COLUMNS_WITHOUT_TERMINAL = 120
_SLOWEST_SHOWN = 3

Results = Mapping[str, list[Outcome]]


class Screen:
    """What a person sees while the suite runs and at its end."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, markup=False, soft_wrap=True)
        if not self._console.is_terminal:
            self._console.width = _COLUMNS_WITHOUT_TERMINAL
        self._began = time.monotonic()
        self._held: list[str] = []

    def later(self, text: str) -> None:
        """Says something that must not come first; a person at a terminal sees it at once."""
        if self._console.is_terminal:
            self.say(text)
        else:
            self._held.append(text)

    def first(self, text: str) -> None:
        self.say(text)
        for held in self._held:
            self.say(held)
        self._held.clear()

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def missing(self, subject: str, why: str) -> None:
        self.say(f"{subject}: TOOLCHAIN MISSING: {why}")

    def not_built(self, subject: str, lines: Sequence[str]) -> None:
        self.say(f"{subject}: cannot be built: " + "\n    ".join(lines))

    def begins(self, subject: str, state: str) -> None:
        self.say(f"{subject}: {state}, running")
        self._began = time.monotonic()

    def progress(self, outcome: Outcome) -> None:
        if not outcome.verdict.is_bad:
            return
        self.say(f"{outcome.verdict.upper()} {outcome.subject} {outcome.case.id}")
        self.say(f"    {outcome.text}")
        for line in outcome.details:
            self.say(f"    {line}")

    def ends(self, subject: str, described: str, outcomes: list[Outcome]) -> None:
        slowest = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:_SLOWEST_SHOWN]
        names = ", ".join(f"{o.case.id} {o.seconds:.1f} s" for o in slowest)
        seconds = time.monotonic() - self._began
        score = Score.of(outcomes)
        self.say(f"{subject} ({described}): {score} in {seconds:.0f} s; slowest: {names}")

    def summary(self, results: Results, missing: Mapping[str, str], suites: Sequence[str]) -> None:
        """The matrix, and one closing line per subject and one for all."""
        self._console.print(matrix(results, missing, suites))
        for name, why in missing.items():
            self.say(f"conformance: {name}: TOOLCHAIN MISSING: {why}")
        for name, outcomes in results.items():
            if lacking := Score.lacking(outcomes):
                self.say(f"conformance: {name}: not applicable: {lacking}")
        for name, outcomes in results.items():
            self.say(f"conformance: {name}: {Score.of(outcomes)}")
        every = [outcome for outcomes in results.values() for outcome in outcomes]
        self.say(f"conformance: {Score.of(every)}")


def matrix(results: Results, missing: Mapping[str, str], suites: Sequence[str]) -> Table:
    """Suites by subjects: how many passed of how many apply."""
    table = Table("suite", *results, *missing)
    for suite in suites:
        cells = [
            cell([outcome for outcome in outcomes if outcome.case.suite == suite])
            for outcomes in results.values()
        ]
        table.add_row(suite, *cells, *("MISSING" for _ in missing))
    return table


def cell(outcomes: list[Outcome]) -> str:
    """Some outcomes of a matrix in few words."""
    score = Score.of(outcomes)
    if score.failed:
        return f"{score.failed} FAILED of {len(outcomes)}"
    if score.known:
        return f"{score.passed} + {score.known} known"
    return str(score.passed)


def write_files(folder: Path, results: Results, missing: Mapping[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    write_json(folder / "report.json", results, missing)
    tree = ElementTree.ElementTree(as_junit(results, missing))
    ElementTree.indent(tree)
    tree.write(folder / "junit.xml", encoding="utf-8", xml_declaration=True)


def write_json(path: Path, results: Results, missing: Mapping[str, str]) -> None:
    """Raises OSError."""
    document = as_json(results, missing)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def as_json(results: Results, missing: Mapping[str, str]) -> dict[str, object]:
    return {
        "subjects": {
            name: {
                "score": str(Score.of(outcomes)),
                "cases": {
                    outcome.case.id: {
                        "verdict": outcome.verdict.value,
                        "level": outcome.case.level.value,
                        "seconds": round(outcome.seconds, 3),
                        "text": outcome.text,
                        "details": outcome.details,
                    }
                    for outcome in outcomes
                },
            }
            for name, outcomes in results.items()
        },
        "toolchain_missing": dict(missing),
    }


def as_junit(results: Results, missing: Mapping[str, str]) -> ElementTree.Element:
    """One test suite per subject, one test case per case."""
    root = ElementTree.Element("testsuites", name="conformance")
    for name, outcomes in results.items():
        score = Score.of(outcomes)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=name,
            tests=str(len(outcomes)),
            failures=str(score.failed),
            skipped=str(score.not_applicable + score.known),
            time=f"{sum(outcome.seconds for outcome in outcomes):.3f}",
        )
        for outcome in outcomes:
            _junit_case(suite, outcome)
    for name, why in missing.items():
        suite = ElementTree.SubElement(root, "testsuite", name=name, tests="1", errors="1")
        case = ElementTree.SubElement(suite, "testcase", classname=name, name="toolchain")
        ElementTree.SubElement(case, "error", message=why, type="toolchain-missing")
    return root


def _junit_case(suite: ElementTree.Element, outcome: Outcome) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"{outcome.subject}.{outcome.case.suite}",
        name=outcome.case.name,
        time=f"{outcome.seconds:.3f}",
    )
    if outcome.verdict.is_bad:
        kind = "error" if outcome.verdict is Verdict.COULD_NOT_RUN else "failure"
        element = ElementTree.SubElement(case, kind, message=_xml_text(outcome.text))
        element.set("type", outcome.verdict.value)
        element.text = _xml_text("\n".join(outcome.details))
    elif outcome.verdict is not Verdict.PASS:
        ElementTree.SubElement(case, "skipped", message=outcome.verdict.value)


def _xml_text(text: str) -> str:
    # XML has no way to write most control characters.
    return "".join(char if char.isprintable() or char in "\t\n" else "�" for char in text)
