# SPDX-License-Identifier: AGPL-3.0-only
"""`python -m fila_conformance.selftest`: the suite tests itself.

The cases that mutants name pass on the Python driver as it is, and every one of them fails on its
mutant. A mutant that survives means that a case has gone blind. Exit 0 when all are caught, else 1.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from fila_conformance import cases, subjects
from fila_conformance.broker import ProcessBroker
from fila_conformance.cases import Case
from fila_conformance.layout import MUTANTS as FOLDER
from fila_conformance.mutants import MUTANTS, Mutant
from fila_conformance.outcome import Outcome, Verdict
from fila_conformance.report import Screen
from fila_conformance.runner import Options, SubjectRun
from fila_conformance.stage import Brokers
from fila_conformance.subjects import SUBJECTS, BuildError, Subject

# Mutants mostly wait for what does not happen.
_AT_ONCE = 4


def subject_of(mutant: Mutant) -> Subject:
    """The Python driver with the mutant's defect."""
    name = "python" if mutant.flavour == "sync" else "python-async"
    python = next(subject for subject in SUBJECTS if subject.name == name)
    launch = (python.launch[0], str(FOLDER / "launch.py"), mutant.name, mutant.flavour)
    return replace(python, name=f"mutant-{mutant.name}", launch=launch)


def named_cases(mutant: Mutant, known: dict[str, Case]) -> list[Case]:
    return [known[name] for name in mutant.killed_by]


def run(subject: Subject, wanted: Sequence[Case], brokers: Brokers) -> list[Outcome]:
    # Strict, because a reply that breaks the protocol is one of the defects.
    options = Options(is_strict=True)
    return SubjectRun(subject.launched(), brokers, {}, options, lambda outcome: None).run(wanted)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="selftest", description=__doc__)
    parser.add_argument("mutants", nargs="*", metavar="MUTANT", help="only these")
    wanted = parser.parse_args(argv).mutants
    chosen = [mutant for mutant in MUTANTS if not wanted or mutant.name in wanted]
    screen = Screen()
    known = {case.id: case for suite in cases.load() for case in suite.cases}
    brokers = Brokers(ProcessBroker)
    try:
        for subject in SUBJECTS[:2]:
            subjects.build(subject)
        sound = check_sound(chosen, known, brokers, screen)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            caught = list(
                pool.map(lambda mutant: check_caught(mutant, known, brokers, screen), chosen)
            )
    except BuildError as error:
        screen.say(f"selftest: {error}")
        return 2
    finally:
        brokers.close()
    survived = caught.count(False)
    # A mutant passes when it is caught.
    screen.say(f"selftest: {len(chosen) - survived} passed, {survived} failed")
    return 0 if sound and not survived else 1


def check_sound(
    chosen: Sequence[Mutant], known: dict[str, Case], brokers: Brokers, screen: Screen
) -> bool:
    """Whether the named cases pass without a defect."""
    is_sound = True
    for subject in SUBJECTS[:2]:
        flavour = "async" if subject.name.endswith("async") else "sync"
        names = {name for m in chosen if m.flavour == flavour for name in m.killed_by}
        outcomes = run(subject, [known[name] for name in sorted(names)], brokers)
        for outcome in outcomes:
            if outcome.verdict is not Verdict.PASS:
                is_sound = False
                screen.say(f"{subject.name} itself: {outcome.case.id}: {outcome.text}")
    return is_sound


def check_caught(mutant: Mutant, known: dict[str, Case], brokers: Brokers, screen: Screen) -> bool:
    outcomes = run(subject_of(mutant), named_cases(mutant, known), brokers)
    for outcome in outcomes:
        is_crash = "the driver crashed" in outcome.text
        if outcome.verdict is not mutant.verdict or is_crash is not mutant.is_crash:
            told = f"{outcome.verdict} {outcome.text}".strip()
            screen.say(f"SURVIVED {mutant.name} ({mutant.about}): {outcome.case.id}: {told}")
            return False
    first = outcomes[0]
    screen.say(f"caught {mutant.name} by {', '.join(mutant.killed_by)}: {first.text[:140]}")
    return True


if __name__ == "__main__":
    sys.exit(main())
