# SPDX-License-Identifier: AGPL-3.0-only
"""Which cases a run is about: by level, and by patterns of names."""

import re
from collections.abc import Sequence

from fila_conformance.cases import Case, CaseError, Level, Suite


def selected(
    suites: Sequence[Suite], level: Level, run: Sequence[str], skip: Sequence[str]
) -> list[Case]:
    """The cases of a level that some pattern of `run` names, and none of `skip`.

    Raises CaseError for a pattern that names none.
    """
    wanted = [case for suite in suites for case in suite.cases if level.includes(case.level)]
    for pattern in (*run, *skip):
        if not any(is_named(case.id, pattern) for case in wanted):
            raise CaseError(f"{pattern} names no case of level {level}")
    return [
        case
        for case in wanted
        if (not run or any(is_named(case.id, pattern) for pattern in run))
        and not any(is_named(case.id, pattern) for pattern in skip)
    ]


def is_named(case_id: str, pattern: str) -> bool:
    """Whether a pattern names a case: by suite, by name with or without its row, or with `*`."""
    text = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(rf"{text}(/.*)?(\[.*\])?", case_id) is not None
