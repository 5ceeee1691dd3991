# SPDX-License-Identifier: AGPL-3.0-only
"""docs/conformance.md, made from the cases, the table of subjects and the known failures.

Nothing in it depends on a run or on the day, so it can be compared with what is committed.
"""

from collections import Counter
from collections.abc import Sequence

from fila_conformance import known
from fila_conformance.cases import Case, Level, Suite
from fila_conformance.layout import DOCS_PAGE, KNOWN_FAILURES
from fila_conformance.subjects import SUBJECTS

_HEAD = """\
<!-- Generated from conformance/cases by `python -m fila_conformance --docs`. DO NOT EDIT. -->

# Conformance

What clients of Fila do, as cases that every SDK here passes against a real broker. The
[suite](../conformance/README.md) runs them; how it talks to a client is its
[protocol](../conformance/PROTOCOL.md). For a client of your own there is a
[walk-through](guides/write-a-client.md).
"""

_LEVELS = """\
Each level includes those before it, and is what a client may claim.

- **core**: messages go in, come out and are settled, and each failure is known for what it is.
- **recommended**: what production asks for: batches, retries that do no harm, connections that
  break, leases that are kept, TLS. Single calls travel as batches of one.
- **full**: everything that the SDKs here do: workers, coalescing, grants, tracing, administration.
"""

_FEATURES = """\
What a client may lack at any level, and says so when it greets the runner
([what they are](../conformance/PROTOCOL.md#features)). Cases that need it do not apply then.
"""


def render(suites: Sequence[Suite]) -> str:
    """The page."""
    every = [case for suite in suites for case in suite.cases]
    parts = [_HEAD, f"{len(every)} cases in {len(suites)} suites.\n"]
    parts += ["## Levels\n", _LEVELS, _levels(suites)]
    parts += ["## Features\n", _FEATURES, _features(every)]
    parts += ["## Subjects\n", _subjects(every)]
    for suite in suites:
        parts += [f"## {suite.name}\n", f"{suite.about}\n", _table(suite)]
    return "\n".join(parts)


def _levels(suites: Sequence[Suite]) -> str:
    rows = [["suite", *Level], ["---"] * (len(Level) + 1)]
    for suite in suites:
        counted = Counter(case.level for case in suite.cases)
        link = f"[{suite.name}](#{suite.name})"
        rows.append([link, *(str(counted[level] or "") for level in Level)])
    total = Counter(case.level for suite in suites for case in suite.cases)
    rows.append(["**all**", *(f"**{total[level]}**" for level in Level)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _features(every: Sequence[Case]) -> str:
    counted = Counter(case.feature for case in every if case.feature is not None)
    rows = [f"| `{feature}` | {count} |\n" for feature, count in sorted(counted.items())]
    return "| feature | cases |\n| --- | --- |\n" + "".join(rows)


def _subjects(every: Sequence[Case]) -> str:
    rows = ["| subject | known failures |\n| --- | --- |\n"]
    for subject in SUBJECTS:
        failures = known.load(KNOWN_FAILURES / f"{subject.name}.txt", [it.id for it in every])
        rows.append(f"| {subject.name} | {len(failures) or 'none'} |\n")
    return "".join(rows)


def _table(suite: Suite) -> str:
    rows = ["| case | level | what it shows | on |\n| --- | --- | --- | --- |\n"]
    seen: set[str] = set()
    for case in suite.cases:
        name = case.name.partition("[")[0]
        if name not in seen:
            seen.add(name)
            times = _times(suite, name)
            rows.append(f"| `{name}`{times} | {case.level} | {case.about} | {_where(case)} |\n")
    return "".join(rows)


def _times(suite: Suite, name: str) -> str:
    count = sum(case.name.partition("[")[0] == name for case in suite.cases)
    return f" ×{count}" if count > 1 else ""


def _where(case: Case) -> str:
    needs = "" if case.feature is None else f"; needs `{case.feature}`"
    if case.mode == "scripted":
        return f"scripted server{needs}"
    words = [] if case.broker == "plain" else [case.broker]
    words.append("broker of its own" if case.mode == "exclusive" else "broker")
    words += ["wiretap"] * case.has_wiretap + ["proxy"] * case.has_proxy
    return ", ".join(words) + needs


def write(suites: Sequence[Suite], *, is_check: bool) -> int:
    """Writes the page, or says with 1 that the committed one is another."""
    text = render(suites)
    if is_check:
        is_fresh = DOCS_PAGE.is_file() and DOCS_PAGE.read_text(encoding="utf-8") == text
        return 0 if is_fresh else 1
    DOCS_PAGE.write_text(text, encoding="utf-8")
    return 0
