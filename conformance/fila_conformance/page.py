# SPDX-License-Identifier: AGPL-3.0-only
"""docs/conformance.md, made from the cases, the table of subjects and the known failures.

Nothing in it depends on a run or on the day, so it can be compared with what is committed.
"""

from collections.abc import Mapping, Sequence

from fila_conformance import known
from fila_conformance.cases import Case, Suite
from fila_conformance.layout import DOCS_PAGE, KNOWN_FAILURES
from fila_conformance.subjects import SUBJECTS, Subject

_HEAD = """\
<!-- Generated from conformance/cases by `python -m fila_conformance --docs`. DO NOT EDIT. -->

# Conformance

What every SDK does, as cases that every SDK passes against a real broker. The
[suite](../conformance/README.md) runs them; how it talks to an SDK is its
[protocol](../conformance/PROTOCOL.md).
"""


def render(suites: Sequence[Suite]) -> str:
    """The page."""
    every = [case for suite in suites for case in suite.cases]
    lists = {
        s.name: known.load(KNOWN_FAILURES / f"{s.name}.txt", [case.id for case in every])
        for s in SUBJECTS
    }
    parts = [_HEAD, f"{len(every)} cases in {len(suites)} suites, {len(SUBJECTS)} subjects.\n"]
    parts.append("## Subjects\n")
    parts.append(_matrix(suites, lists))
    for suite in suites:
        parts += [f"## {suite.name}\n", f"{suite.about}\n", _table(suite)]
    return "\n".join(parts)


def _matrix(suites: Sequence[Suite], lists: Mapping[str, Mapping[str, object]]) -> str:
    rows = [
        ["suite", *(subject.name for subject in SUBJECTS)],
        ["---"] * (len(SUBJECTS) + 1),
    ]
    for suite in suites:
        cells = [_cell(suite, subject, lists[subject.name]) for subject in SUBJECTS]
        rows.append([f"[{suite.name}](#{suite.name})", *cells])
    legend = (
        "\nHow many cases hold for each subject. A case that needs what a language cannot do "
        "(giving up\non a blocking call) is not counted; a known failure is shown.\n"
    )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + legend


def _cell(suite: Suite, subject: Subject, failures: Mapping[str, object]) -> str:
    applicable = [c for c in suite.cases if c.feature is None or c.feature in subject.features]
    failing = sum(case.id in failures for case in applicable)
    count = str(len(applicable) - failing)
    return f"{count}, {failing} known to fail" if failing else count


def _table(suite: Suite) -> str:
    rows = ["| case | what it shows | on |\n| --- | --- | --- |\n"]
    seen: set[str] = set()
    for case in suite.cases:
        name = case.name.partition("[")[0]
        if name not in seen:
            seen.add(name)
            rows.append(f"| `{name}`{_times(suite, name)} | {case.about} | {_where(case)} |\n")
    return "".join(rows)


def _times(suite: Suite, name: str) -> str:
    count = sum(case.name.partition("[")[0] == name for case in suite.cases)
    return f" ×{count}" if count > 1 else ""


def _where(case: Case) -> str:
    if case.mode == "scripted":
        return "scripted server"
    words = [] if case.broker == "plain" else [case.broker]
    words.append("broker of its own" if case.mode == "exclusive" else "broker")
    words += ["wiretap"] * case.has_wiretap + ["proxy"] * case.has_proxy
    return ", ".join(words)


def write(suites: Sequence[Suite], *, is_check: bool) -> int:
    """Writes the page, or says with 1 that the committed one is another."""
    text = render(suites)
    if is_check:
        is_fresh = DOCS_PAGE.is_file() and DOCS_PAGE.read_text(encoding="utf-8") == text
        return 0 if is_fresh else 1
    DOCS_PAGE.write_text(text, encoding="utf-8")
    return 0
