# SPDX-License-Identifier: AGPL-3.0-only
"""The loader, and the data itself: every case can be read, is explained, and has its place."""

import re
from pathlib import Path

import pytest
from fila_conformance import admin, cases
from fila_conformance.cases import Case, CaseError
from fila_conformance.driver import protocol_schema
from fila_conformance.layout import CONFORMANCE, KNOWN_FAILURES, ROOT
from fila_conformance.mutants import MUTANTS
from fila_conformance.stage import queue_name
from fila_conformance.steps import driver_verbs
from fila_conformance.subjects import SUBJECTS
from fila_conformance.values import resolve

SUITES = cases.load()
CASES = [case for suite in SUITES for case in suite.cases]
MINIMAL = "suite: a\nabout: A suite.\nlevel: full\ncases:\n"
CASE = "- {name: x, about: Long enough., spec: [FR1], steps: [{connect: {}}]}\n"


def load(folder: Path, text: str) -> list[cases.Suite]:
    (folder / "a.yaml").write_text(text)
    return cases.load(folder)


def test_scalars_are_those_of_json(tmp_path: Path) -> None:
    text = MINIMAL + CASE.replace(
        "connect: {}", "check: [on, no, 1:30, 012, 0x1f, 1e3, 1_000, ~, 7, -1.5, true, null]"
    )
    (suite,) = load(tmp_path, text)
    assert suite.cases[0].steps[0].arguments == [
        *("on", "no", "1:30", "012", "0x1f", "1e3", "1_000", "~"),
        *(7, -1.5, True, None),
    ]


def test_a_table_is_a_case_per_row(tmp_path: Path) -> None:
    row = CASE.replace("steps:", "each: [{code: A, n: 1}, {code: B, n: 2}], steps:")
    (suite,) = load(tmp_path, MINIMAL + row)
    assert [case.name for case in suite.cases] == ["x[A]", "x[B]"]
    assert suite.cases[1].each == {"code": "B", "n": 2}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (MINIMAL + CASE + CASE, "two cases are called x"),
        (MINIMAL + CASE.replace("name: x", "name: Not-Kebab"), "does not match"),
        (MINIMAL + CASE.replace("steps:", "colour: red, steps:"), "unexpected"),
        (MINIMAL + CASE.replace("connect: {}", "dance: {}"), "dance"),
        (MINIMAL + CASE.replace("connect: {}", "connect: {}, close: {}"), "one verb"),
        (MINIMAL + CASE.replace("connect: {}", "save: s"), "one verb"),
        (MINIMAL + CASE.replace("about: Long enough.", "about: no"), "too short"),
        (MINIMAL + "- {name: x, name: y}\n", "twice"),
        (MINIMAL.replace("suite: a", "suite: b") + CASE, "name them alike"),
        ("suite: [", "a.yaml"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(CaseError, match=told):
        load(tmp_path, text)


def test_a_folder_without_cases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="no cases"):
        cases.load(tmp_path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case_is_well_formed(case: Case) -> None:
    assert case.about.endswith("."), "a sentence"
    assert "|" not in case.about, "it becomes a cell of a table"
    saved = {"queue", "each", "target", "api_key", "certs"}
    started: set[str] = set()
    for step in case.steps:
        assert is_verb(step.verb), step.verb
        for name in re.findall(r"\$\{?([a-z_]+)", repr((step.arguments, step.expect, step.error))):
            known = f"${name}" in OPERATORS_AND_FUNCTIONS or name in (saved | {"i"})
            assert known, f"{name} is used before it is saved"
        if step.verb == "await":
            assert step.arguments in started
        if step.since is not None:
            assert step.since in saved | started
        if step.save is not None:
            saved.add(step.save)
        if step.start is not None:
            started.add(step.start)


OPERATORS_AND_FUNCTIONS = frozenset(
    """$absent $any_order $at_least $at_most $contains $counts $each $excludes $length $matches $not
    $one_of $present $sorted $unique $now_plus_ms $concat $repeat $entries""".split()
)


@pytest.mark.parametrize("case", [case for case in CASES if case.script], ids=lambda case: case.id)
def test_scripts_are_about_rpcs(case: Case) -> None:
    script = resolve(case.script, {"queue": "q", "each": case.each})
    assert set(script) <= set(admin.METHODS)


def is_verb(verb: str) -> bool:
    if verb.startswith("admin."):
        return admin.method_name(verb.removeprefix("admin.")) in admin.METHODS
    runner = "await broker check consume_first driver proxy proxy.stats wait wire".split()
    return verb in driver_verbs() or verb in runner


def test_verbs_stand_where_they_can_work() -> None:
    for case in CASES:
        verbs = {step.verb for step in case.steps}
        assert not case.is_slow or case.mode != "exclusive", case.id
        # Others run on the same driver.
        assert "driver" not in verbs or (not case.is_slow and case.mode == "shared"), case.id
        assert "broker" not in verbs or case.mode == "exclusive", case.id
        assert "wire" not in verbs or case.has_wiretap or case.mode == "scripted", case.id
        assert not {"proxy", "proxy.stats"} & verbs or case.has_proxy, case.id
        assert not case.script or case.mode == "scripted", case.id
        assert case.mode != "scripted" or not any(v.startswith("admin.") for v in verbs), case.id


def test_every_op_of_the_protocol_is_used() -> None:
    used = {step.verb for case in CASES for step in case.steps} | {"hello", "next", "consume"}
    assert set(driver_verbs()) <= used


def test_requirements_have_cases() -> None:
    named = {mark for case in CASES for mark in case.spec}
    assert {"FR48", "NFR12", "NFR19", "NFR20", "NFR21"} <= named
    # FR42 to FR47 ask for an SDK in each of six languages.
    assert {s.language for s in SUBJECTS} == {"python", "go", "js", "ruby", "java", "rust"}


def test_queue_names_are_unique_and_valid() -> None:
    names = [queue_name(subject.name, case) for subject in SUBJECTS for case in CASES]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9._/-]{1,230}", name) for name in names)
    assert not any(name.endswith(".dlq") for name in names)
    # A queue that a case creates beside its own must not be taken for another case's.
    assert not any(a.startswith(b + ".") for a in names for b in names if a != b)


def test_schema_has_what_the_protocol_page_has() -> None:
    page = (CONFORMANCE / "PROTOCOL.md").read_text()
    for op in driver_verbs():
        assert f"`{op}`" in page, f"{op} is not on the page"
    kinds = protocol_schema()["$defs"]["kind"]["enum"]
    assert [kind for kind in kinds if f"`{kind}`" not in page] == []


def test_mutants_name_cases_that_can_run_side_by_side() -> None:
    known = {case.id: case for case in CASES}
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 16
    for mutant in MUTANTS:
        for name in mutant.killed_by:
            assert known[name].mode != "exclusive", f"{mutant.name}: {name}"


def test_every_subject_has_a_list_of_known_failures() -> None:
    lists = {path.stem for path in KNOWN_FAILURES.glob("*.txt")}
    assert lists == {subject.name for subject in SUBJECTS}


def test_drivers_use_public_names_only() -> None:
    for path in (ROOT / "conformance/drivers/python").glob("*.py"):
        assert not re.search(r"fila\._|from fila import _|fila\.v1", path.read_text()), path.name
