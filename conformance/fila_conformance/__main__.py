# SPDX-License-Identifier: AGPL-3.0-only
"""`python -m fila_conformance`: which cases on which subjects, and the exit code.

Exit 0 when every subject conforms, 1 when one does not, 2 for wrong usage or a defect of the suite,
3 when a toolchain is missing and nobody allowed that.
"""

import argparse
import signal
import sys
from collections.abc import Sequence

from fila_conformance import cases, known, page, report, subjects
from fila_conformance.broker import BrokerError
from fila_conformance.cases import Case, CaseError, Level, Suite
from fila_conformance.engine import EngineError, Place, find_place
from fila_conformance.known import KnownError, KnownFailure
from fila_conformance.layout import KNOWN_FAILURES, REPORT
from fila_conformance.outcome import Outcome, Verdict
from fila_conformance.runner import Options, SubjectRun
from fila_conformance.selection import selected
from fila_conformance.stage import Brokers
from fila_conformance.subjects import SUBJECTS, BuildError, Subject

OK, NOT_CONFORMANT, USAGE, TOOLCHAIN_MISSING = 0, 1, 2, 3


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    languages = sorted({subject.language for subject in SUBJECTS})
    parser = argparse.ArgumentParser(
        prog="fila_conformance", description="Hold every SDK to the same behaviour."
    )
    names = [subject.name for subject in SUBJECTS]
    parser.add_argument(
        "--sdk", action="append", choices=names, help="only this subject; can be repeated"
    )
    parser.add_argument(
        "--run", action="append", default=[], metavar="SUITE/CASE", help="only these; * matches any"
    )
    parser.add_argument(
        "--skip", action="append", default=[], metavar="SUITE/CASE", help="not these"
    )
    parser.add_argument(
        "--level", choices=[*Level], default=Level.FULL, type=Level, help="only cases up to this"
    )
    parser.add_argument(
        "--mode",
        choices=["auto", "container", "process"],
        default="auto",
        help="run the broker in a container or as a process; auto takes what there is",
    )
    parser.add_argument(
        "--allow-missing",
        action="append",
        default=[],
        metavar="LANG",
        choices=languages,
        help="a missing toolchain of this language is no failure",
    )
    parser.add_argument("--strict", action="store_true", help="check replies against the schema")
    parser.add_argument("--trace", action="store_true", help="show all traffic of failed cases")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--fix", action="store_true", help="rewrite the lists of known failures")
    parser.add_argument("--docs", action="store_true", help="write docs/conformance.md and stop")
    parser.add_argument("--check", action="store_true", help="with --docs: compare, do not write")
    found = parser.parse_args(argv)
    if found.fix and (found.run or found.skip or found.level is not Level.FULL):
        parser.error("--fix needs the whole suite: without --run, --skip and --level")
    if found.check and not found.docs:
        parser.error("--check goes with --docs")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    # Told to end, it still stops what it started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    screen = report.Screen()
    try:
        suites = cases.load()
        if options.docs:
            return page.write(suites, is_check=options.check)
        wanted = selected(suites, options.level, options.run, options.skip)
        if options.list:
            for case in wanted:
                screen.say(f"{case.id} ({case.level}): {case.about}")
            return OK
        lists = {s.name: _known(s, suites) for s in SUBJECTS}
    except (CaseError, KnownError) as error:
        sys.stderr.write(f"conformance: {error}\n")
        return USAGE
    chosen = [s for s in SUBJECTS if not options.sdk or s.name in options.sdk]
    try:
        with find_place(options.mode, screen.later) as place:
            screen.first(f"conformance: {place.sentence}")
            return _run(place, chosen, wanted, lists, options, screen)
    except (EngineError, BrokerError) as error:
        sys.stderr.write(f"conformance: {error}\n")
        return USAGE


def _known(subject: Subject, suites: Sequence[Suite]) -> dict[str, KnownFailure]:
    every = [case.id for suite in suites for case in suite.cases]
    return known.load(KNOWN_FAILURES / f"{subject.name}.txt", every)


def _run(
    place: Place,
    chosen: Sequence[Subject],
    wanted: Sequence[Case],
    lists: dict[str, dict[str, KnownFailure]],
    options: argparse.Namespace,
    screen: report.Screen,
) -> int:
    results: dict[str, list[Outcome]] = {}
    missing: dict[str, str] = {}
    brokers = Brokers(place.broker)
    try:
        for subject in chosen:
            why = subjects.missing(subject)
            if why is not None:
                missing[subject.name] = why
                screen.missing(subject.name, why)
                continue
            results[subject.name] = _run_subject(
                subject, brokers, wanted, lists[subject.name], options, screen
            )
        brokers.check()
    finally:
        brokers.close()
    if options.fix:
        _fix(results, lists)
    report.write_files(REPORT, results, missing)
    screen.summary(results, missing, [*dict.fromkeys(case.suite for case in wanted)])
    if any(outcome.verdict.is_bad for found in results.values() for outcome in found):
        return NOT_CONFORMANT
    forbidden = [s for s in chosen if s.name in missing and s.language not in options.allow_missing]
    return TOOLCHAIN_MISSING if forbidden else OK


def _run_subject(
    subject: Subject,
    brokers: Brokers,
    wanted: Sequence[Case],
    known_failures: dict[str, KnownFailure],
    options: argparse.Namespace,
    screen: report.Screen,
) -> list[Outcome]:
    try:
        is_new = subjects.build(subject)
    except BuildError as error:
        first, *rest = str(error).splitlines()
        outcomes = [
            Outcome(subject.name, case, Verdict.COULD_NOT_RUN, text=first) for case in wanted
        ]
        screen.not_built(subject.name, [first, *rest])
        return outcomes
    screen.begins(subject.name, "built" if is_new else "up to date")
    run = SubjectRun(
        subject.launched(),
        brokers,
        known_failures,
        Options(is_strict=options.strict, is_traced=options.trace),
        screen.progress,
    )
    outcomes = run.run(wanted)
    screen.ends(subject.name, run.described, outcomes)
    return outcomes


def _fix(results: dict[str, list[Outcome]], lists: dict[str, dict[str, KnownFailure]]) -> None:
    for name, outcomes in results.items():
        entries = []
        for outcome in outcomes:
            if outcome.verdict in (Verdict.FAIL, Verdict.EXPECTED_FAIL):
                old = lists[name].get(outcome.case.id)
                why = old.why if old else "say why, with a link to the issue"
                entries.append(KnownFailure(outcome.case.id, why, known.beginning(outcome.text)))
        (KNOWN_FAILURES / f"{name}.txt").write_text(known.write(entries), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
