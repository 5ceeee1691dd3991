# SPDX-License-Identifier: AGPL-3.0-only
"""What a row of the table says."""

from dataclasses import dataclass

from fila_conformance.outcome import Verdict


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect. Every case that is named must fail on it."""

    name: str
    about: str
    killed_by: tuple[str, ...]
    flavour: str = "sync"
    # How it is caught. A crash would also hide that a defect no longer fits the SDK.
    verdict: Verdict = Verdict.FAIL
    is_crash: bool = False
