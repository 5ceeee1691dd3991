# SPDX-License-Identifier: AGPL-3.0-only
"""Lists of known failures: how they are read, and what they do to an outcome."""

import pytest
from fila_conformance import known
from fila_conformance.cases import Case, Step
from fila_conformance.known import KnownError, KnownFailure
from fila_conformance.outcome import Outcome, Score, Verdict, judged

CASES = ["tls/one", "tls/two", *(f"errors/e{i}" for i in range(9))]
LINE = 'tls/one  # not there yet, issue 7 | "step 2"'


def outcome(verdict: Verdict, text: str = "") -> Outcome:
    case = Case("tls", "one", "about", ("FR1",), (Step("connect", {}),))
    return Outcome("go", case, verdict, text=text)


def test_a_line_names_case_reason_and_failure() -> None:
    found = known.parse(f"# a comment\n\n{LINE}\n", CASES, "go.txt")
    assert found == {"tls/one": KnownFailure("tls/one", "not there yet, issue 7", "step 2")}


def test_a_wildcard_stands_for_a_few_cases() -> None:
    assert set(known.parse('tls/*  # why | "x"', CASES, "go.txt")) == {"tls/one", "tls/two"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tls/one", "write"),
        ('tls/one  #  | "x"', "write"),
        ('tls/one  # why | ""', "write"),
        ('tls/three  # why | "x"', "matches no case"),
        ('errors/*  # why | "x"', "covers 9 cases"),
        (f"{LINE}\n{LINE}", "listed twice"),
    ],
)
def test_a_bad_line_is_refused(text: str, told: str) -> None:
    with pytest.raises(KnownError, match=told):
        known.parse(text, CASES, "go.txt")


def test_what_is_written_can_be_read() -> None:
    entry = KnownFailure("tls/one", "why", known.beginning("step 2 (ack): failed\nmore"))
    assert known.parse(known.write([entry]), CASES, "go.txt") == {"tls/one": entry}


ENTRY = KnownFailure("tls/one", "why", "step 2")


@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        (Verdict.FAIL, "step 2 (ack): no", Verdict.EXPECTED_FAIL),
        (Verdict.FAIL, "step 3 (ack): no", Verdict.FAIL),
        (Verdict.PASS, "", Verdict.UNEXPECTED_PASS),
        (Verdict.COULD_NOT_RUN, "step 2", Verdict.COULD_NOT_RUN),
        (Verdict.NOT_APPLICABLE, "", Verdict.FAIL),
    ],
)
def test_a_list_cannot_outlive_its_reasons(before: Verdict, text: str, after: Verdict) -> None:
    assert judged(outcome(before, text), ENTRY).verdict is after


def test_without_an_entry_an_outcome_stands() -> None:
    failed = outcome(Verdict.FAIL, "step 2")
    assert judged(failed, None) is failed


def test_only_bad_outcomes_count_as_failed() -> None:
    verdicts = list(Verdict)
    score = Score.of([outcome(verdict) for verdict in verdicts])
    assert (score.passed, score.failed, score.known, score.not_applicable) == (1, 3, 1, 1)
    assert str(score) == "1 passed, 3 failed, 1 known failures, 1 not applicable"
