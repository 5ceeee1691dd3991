# SPDX-License-Identifier: AGPL-3.0-only
"""What became of one case on one subject, and what that means for the run."""

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fila_conformance.cases import Case
from fila_conformance.known import KnownFailure


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    EXPECTED_FAIL = "expected-fail"
    UNEXPECTED_PASS = "unexpected-pass"
    NOT_APPLICABLE = "not-applicable"
    # The driver or the broker was not there to be judged. Never a known failure.
    COULD_NOT_RUN = "could-not-run"

    @property
    def is_bad(self) -> bool:
        return self in (Verdict.FAIL, Verdict.UNEXPECTED_PASS, Verdict.COULD_NOT_RUN)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One cell of the result."""

    subject: str
    case: Case
    verdict: Verdict
    seconds: float = 0.0
    # The failure in one line, and what helps to understand it.
    text: str = ""
    details: list[str] = field(default_factory=list)


def judged(outcome: Outcome, known: KnownFailure | None) -> Outcome:
    """The outcome in the light of the subject's known failures."""
    if known is None:
        return outcome
    if outcome.verdict is Verdict.PASS:
        text = f"passed, but is a known failure ({known.why}): remove it from the list"
        return replace(outcome, verdict=Verdict.UNEXPECTED_PASS, text=text)
    if outcome.verdict is Verdict.FAIL:
        if known.covers(outcome.text):
            return replace(outcome, verdict=Verdict.EXPECTED_FAIL)
        text = f"{outcome.text} (known to fail, but with {known.text!r})"
        return replace(outcome, text=text)
    if outcome.verdict is Verdict.NOT_APPLICABLE:
        text = "does not apply, but is a known failure: remove it from the list"
        return replace(outcome, verdict=Verdict.FAIL, text=text)
    return outcome


@dataclass(frozen=True, slots=True)
class Score:
    """A subject's outcomes, counted."""

    passed: int
    failed: int
    known: int
    not_applicable: int

    @classmethod
    def of(cls, outcomes: list[Outcome]) -> "Score":
        verdicts = [outcome.verdict for outcome in outcomes]
        return cls(
            passed=verdicts.count(Verdict.PASS),
            failed=sum(verdict.is_bad for verdict in verdicts),
            known=verdicts.count(Verdict.EXPECTED_FAIL),
            not_applicable=verdicts.count(Verdict.NOT_APPLICABLE),
        )

    @staticmethod
    def lacking(outcomes: list[Outcome]) -> str:
        """What did not apply: the features that were not there, and how many cases need each."""
        lacking = [it.case.feature or "" for it in outcomes if it.verdict is Verdict.NOT_APPLICABLE]
        return ", ".join(
            f"{feature} {count}" for feature, count in sorted(Counter(lacking).items())
        )

    def __str__(self) -> str:
        text = f"{self.passed} passed, {self.failed} failed"
        if self.known:
            text += f", {self.known} known failures"
        if self.not_applicable:
            text += f", {self.not_applicable} not applicable"
        return text
