# SPDX-License-Identifier: AGPL-3.0-only
"""The command line, the reports and the page: what needs no SDK to be tested."""

import io
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from fila_conformance import __main__ as command
from fila_conformance import cases, image, page, report, subjects
from fila_conformance.cases import Case, CaseError, Level, Step
from fila_conformance.known import KnownFailure
from fila_conformance.outcome import Outcome, Verdict
from fila_conformance.selection import is_named, selected
from fila_conformance.subjects import SUBJECTS
from rich.console import Console


def case(name: str) -> Case:
    return Case("tls", name, "about", ("FR1",), (Step("connect", {}),))


RESULTS = {
    "go": [
        Outcome("go", case("one"), Verdict.PASS, 0.5),
        Outcome("go", case("two"), Verdict.FAIL, 1.0, "step 1 (connect): no\x00", ["sent: x"]),
        Outcome("go", replace(case("three"), feature="mtls"), Verdict.NOT_APPLICABLE),
        Outcome("go", case("four"), Verdict.COULD_NOT_RUN, text="gone"),
    ]
}


@pytest.mark.parametrize(
    ("pattern", "is_match"),
    [
        ("tls/one", True),
        ("tls", True),
        ("tls/*", True),
        ("*/one", True),
        ("tls/on", False),
        ("auth", False),
    ],
)
def test_patterns_name_cases(pattern: str, is_match: bool) -> None:
    assert is_named("tls/one", pattern) is is_match


def test_a_row_of_a_table_is_named_with_or_without_its_value() -> None:
    assert is_named("errors/status[OK]", "errors/status")
    assert is_named("errors/status[OK]", "errors/status[OK]")
    assert not is_named("errors/status[OK]", "errors/status[NO]")


def test_selection_refuses_a_pattern_that_names_nothing() -> None:
    suites = cases.load()
    with pytest.raises(CaseError, match="names no case"):
        selected(suites, Level.FULL, ["tls/no-such-case"], [])
    wanted = selected(suites, Level.FULL, ["tls"], ["tls/mutual*"])
    assert wanted and all(c.suite == "tls" and "mutual" not in c.name for c in wanted)


def test_a_level_includes_those_before_it() -> None:
    suites = cases.load()
    counts = [len(selected(suites, level, [], [])) for level in Level]
    assert 0 < counts[0] < counts[1] < counts[2] == sum(len(suite.cases) for suite in suites)
    with pytest.raises(CaseError, match="names no case of level core"):
        selected(suites, Level.CORE, ["worker"], [])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--fix", "--run", "tls"],
        ["--fix", "--level", "core"],
        ["--check"],
        ["--sdk", "cobol"],
        ["--level", "most"],
    ],
)
def test_wrong_usage_exits_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        command.arguments(arguments)
    assert exited.value.code == 2


def test_the_summary_ends_with_plain_lines() -> None:
    output = io.StringIO()
    screen = report.Screen(Console(file=output, markup=False, highlight=False))
    screen.summary(RESULTS, {"rust": "cargo is not installed"}, ["tls"])
    lines = output.getvalue().splitlines()
    assert lines[-4:] == [
        "conformance: rust: TOOLCHAIN MISSING: cargo is not installed",
        "conformance: go: not applicable: mtls 1",
        "conformance: go: 1 passed, 2 failed, 1 not applicable",
        "conformance: 1 passed, 2 failed, 1 not applicable",
    ]
    assert any("2 FAILED of 4" in line and "MISSING" in line for line in lines)


def test_nothing_comes_before_the_first_line() -> None:
    output = io.StringIO()
    screen = report.Screen(Console(file=output, markup=False, highlight=False))
    screen.later("building")
    screen.first("conformance: container mode")
    assert output.getvalue().splitlines() == ["conformance: container mode", "building"]


def test_fix_keeps_the_reasons_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "KNOWN_FAILURES", tmp_path)
    old = KnownFailure("tls/two", "issue 7", "something else")
    command._fix(RESULTS, {"go": {"tls/two": old}})
    assert (tmp_path / "go.txt").read_text() == (
        'tls/two  # issue 7 | "step 1 (connect): no\x00"\n'
    )


def test_junit_tells_failures_from_errors() -> None:
    root = report.as_junit(RESULTS, {"rust": "cargo is not installed"})
    again = ElementTree.fromstring(ElementTree.tostring(root))
    suite = again.find("testsuite[@name='go']")
    assert suite is not None and suite.get("failures") == "2" and suite.get("skipped") == "1"
    assert len(again.findall(".//failure")) == 1
    assert [error.get("type") for error in again.findall(".//error")] == [
        "could-not-run",
        "toolchain-missing",
    ]


def test_json_has_every_case() -> None:
    document = report.as_json(RESULTS, {})
    assert "tls/two" in str(document) and "could-not-run" in str(document)


def test_the_page_depends_on_nothing_but_the_tree() -> None:
    suites = cases.load()
    text = page.render(suites)
    assert text == page.render(suites)
    assert text.count("\n# ") == 1
    for suite in suites:
        assert f"\n## {suite.name}\n" in text


def test_the_committed_page_is_fresh() -> None:
    assert page.write(cases.load(), is_check=True) == 0, "python -m fila_conformance --docs"


def test_a_missing_toolchain_is_named() -> None:
    go = next(subject for subject in SUBJECTS if subject.name == "go")
    absent = replace(go, probes=(("no-such-compiler", "--version"),))
    assert subjects.missing(absent) == "no-such-compiler is not installed"
    broken = replace(go, probes=(("false",),))
    assert subjects.missing(broken) == "`false` fails"
    assert "no driver" in str(subjects.missing(replace(go, language="cobol")))


def test_a_build_is_repeated_only_for_new_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "CACHE", tmp_path)
    python = SUBJECTS[0]
    subject = replace(python, build=(("touch", "{cache}/built"),), sources=("conformance/schema",))
    assert subjects.build(subject)
    assert (tmp_path / "python" / "built").is_file()
    assert not subjects.build(subject)
    assert subjects.build(replace(subject, sources=("conformance/certs",)))


def test_a_failed_build_says_what_the_build_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "CACHE", tmp_path)
    subject = replace(SUBJECTS[0], build=(("sh", "-c", "echo no luck; exit 1"),))
    with pytest.raises(subjects.BuildError, match="no luck"):
        subjects.build(subject)


def test_the_mirror_is_the_machines_own(tmp_path: Path) -> None:
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (folder / "a.list.disabled").write_text("deb http://disabled.example/debian x main\n")
    (folder / "b.sources").write_text("Types: deb\nURIs: http://mirror.example/debian\n")
    assert image.mirror(tmp_path) == "http://mirror.example/debian"
    text = (
        "# deb http://no.example x\ndeb [signed-by=/k] https://first.example/debian bookworm main\n"
    )
    (tmp_path / "sources.list").write_text(text)
    assert image.mirror(tmp_path) == "https://first.example/debian"
    with pytest.raises(image.ImageError, match="no package mirror"):
        image.mirror(tmp_path / "elsewhere")
