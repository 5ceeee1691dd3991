# SPDX-License-Identifier: AGPL-3.0-only
"""What a check found: how bad it is, what it is, and what to do about it.

The words for how bad are those of `GetStatus`, and `ok` for what is as it should be.
"""

from dataclasses import dataclass

OK = "ok"
# Worth knowing; a start works.
NOTICE = "notice"
# A start works, and something will hurt later.
WARNING = "warning"
# A start fails, or what it starts refuses messages at once.
CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `check` is a word for programs."""

    check: str
    severity: str
    what: str
    remedy: str = ""
