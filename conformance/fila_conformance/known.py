# SPDX-License-Identifier: AGPL-3.0-only
"""Known failures: cases that a subject is allowed to fail, for now and for a stated reason.

One line of known_failures/<subject>.txt:

    suite/case  # why | "how the failure's text begins"

Listed cases run all the same. One that passes, fails in another way or did not run makes the run
fail, so a list cannot outlive its reasons. `*` stands for a whole component, and for few cases.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

# A pattern that covers more is a way not to look.
EXPANSIONS_MAX = 5

# Enough to tell failures of one step apart, and short of what changes from run to run.
_BEGINNING_CHARACTERS = 60

_LINE = re.compile(r'(?P<pattern>\S+)\s+#\s*(?P<why>.*?)\s*\|\s*"(?P<text>.*)"')


class KnownError(Exception):
    """A list is malformed or names what does not exist."""


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One case that may fail, and how."""

    case: str
    why: str
    text: str

    def covers(self, failure: str) -> bool:
        return failure.startswith(self.text)


def load(path: Path, cases: Collection[str]) -> dict[str, KnownFailure]:
    """The known failures of a subject, by case. Raises KnownError."""
    if not path.is_file():
        return {}
    return parse(path.read_text(encoding="utf-8"), cases, path.name)


def parse(text: str, cases: Collection[str], source: str) -> dict[str, KnownFailure]:
    found: dict[str, KnownFailure] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        where = f"{source}:{number}"
        parts = _LINE.fullmatch(line.strip())
        if parts is None or not parts["why"] or not parts["text"]:
            raise KnownError(f'{where}: write `suite/case  # why | "beginning of the failure"`')
        matched = [case for case in cases if _is_match(parts["pattern"], case)]
        if not matched:
            raise KnownError(f"{where}: {parts['pattern']} matches no case")
        if len(matched) > EXPANSIONS_MAX:
            raise KnownError(
                f"{where}: {parts['pattern']} covers {len(matched)} cases, "
                f"at most {EXPANSIONS_MAX} are allowed"
            )
        for case in matched:
            if case in found:
                raise KnownError(f"{where}: {case} is listed twice")
            found[case] = KnownFailure(case, parts["why"], parts["text"])
    return found


def beginning(failure: str) -> str:
    """As much of a failure's text as identifies it."""
    return failure.splitlines()[0][:_BEGINNING_CHARACTERS]


def write(failures: Iterable[KnownFailure]) -> str:
    """A list as a file's text."""
    ordered = sorted(failures, key=lambda failure: failure.case)
    return "".join(f'{entry.case}  # {entry.why} | "{entry.text}"\n' for entry in ordered)


def _is_match(pattern: str, case: str) -> bool:
    wanted, actual = pattern.split("/"), case.split("/")
    pairs = zip(wanted, actual, strict=False)
    return len(wanted) == len(actual) and all(w in ("*", a) for w, a in pairs)
