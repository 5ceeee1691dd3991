# SPDX-License-Identifier: AGPL-3.0-only
"""`fila-conformance`: holds a client that this repository does not know to a level.

It needs a command that starts the client's driver, and nothing of the checkout: what cases are made
of is in the wheel, and the broker is `fila-server`.

Exit 0 when the client conforms, 1 when it does not, 2 for wrong usage or where nothing could run.
"""

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fila_conformance import cases, report
from fila_conformance.broker import BrokerError, ProcessBroker
from fila_conformance.cases import Case, CaseError, Level
from fila_conformance.driver import Driver, DriverError, Launch
from fila_conformance.layout import PROTOCOL_PAGE
from fila_conformance.outcome import Outcome, Score
from fila_conformance.runner import Options, SubjectRun
from fila_conformance.selection import selected
from fila_conformance.stage import Brokers

OK, NOT_CONFORMANT, USAGE = 0, 1, 2

_EXAMPLES = """\
examples:
  fila-conformance --driver "python driver.py" --level core
  fila-conformance --driver ./driver --run errors              one suite
  fila-conformance --driver ./driver --run errors/queue-full --trace
  fila-conformance --driver ./driver --json report.json
  fila-conformance --list --level core                         what a level asks for
  fila-conformance --protocol                                  what a driver must do
"""


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fila-conformance",
        description="Hold a client of Fila to the behaviour of its level, against a real broker.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--driver", metavar="CMD", help="the command that starts the driver")
    parser.add_argument(
        "--level",
        choices=[*Level],
        type=Level,
        default=Level.CORE,
        help="how much the client claims; each level includes those before it (default: core)",
    )
    parser.add_argument(
        "--run", action="append", default=[], metavar="SUITE/CASE", help="only these; * matches any"
    )
    parser.add_argument(
        "--skip", action="append", default=[], metavar="SUITE/CASE", help="not these"
    )
    parser.add_argument(
        "--server",
        metavar="CMD",
        help="the command that starts a broker (default: the installed fila-server)",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every outcome there")
    parser.add_argument("--trace", action="store_true", help="show all traffic of failed cases")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--protocol", action="store_true", help="print the protocol and stop")
    parser.add_argument("--version", action="store_true", help="print the suite's version and stop")
    found = parser.parse_args(argv)
    if not (found.driver or found.list or found.protocol or found.version):
        parser.error('say how to start your driver: --driver "CMD"')
    return found


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    # Told to end, it still stops what it started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    console = Console(highlight=False, markup=False)
    if options.version:
        console.print(version("fila-conformance"))
        return OK
    if options.protocol:
        print(PROTOCOL_PAGE.read_text(encoding="utf-8"))  # noqa: T201 - it is what was asked for
        return OK
    try:
        wanted = selected(cases.load(), options.level, options.run, options.skip)
        if options.list:
            for case in wanted:
                console.print(f"{case.id} ({case.level}): {case.about}", soft_wrap=True)
            return OK
        return _run(options, wanted, console)
    except (CaseError, DriverError, BrokerError, OSError, ValueError) as error:
        sys.stderr.write(f"fila-conformance: {error}\n")
        return USAGE


def _run(options: argparse.Namespace, wanted: Sequence[Case], console: Console) -> int:
    launch = Launch("client", tuple(shlex.split(options.driver)), cwd=Path.cwd())
    said = _greeted(launch)
    console.print(f"{said}: level {options.level}, {len(wanted)} cases", soft_wrap=True)
    server = tuple(shlex.split(options.server)) if options.server else None
    brokers = Brokers(lambda kind: ProcessBroker(kind, server))
    try:
        outcomes = _outcomes(options, launch, wanted, brokers, console)
    finally:
        brokers.close()
    if options.json is not None:
        report.write_json(options.json, {said: outcomes}, {})
    console.print(table(outcomes))
    if lacking := Score.lacking(outcomes):
        console.print(f"not applicable, by the feature it lacks: {lacking}", soft_wrap=True)
    score = Score.of(outcomes)
    verdict = "does not conform" if score.failed else "conforms"
    part = "" if not (options.run or options.skip) else " in what was run"
    console.print(f"{said} {verdict} at level {options.level}{part}: {score}", soft_wrap=True)
    return NOT_CONFORMANT if score.failed else OK


def _greeted(launch: Launch) -> str:
    """What the driver says of itself. Raises DriverError, with the driver's own last words."""
    driver = Driver(launch, is_strict=True)
    try:
        hello = driver.hello()
        return f"{hello['sdk']} {hello['sdk_version']} ({hello['language']})"
    except DriverError as error:
        words = "".join(f"\n    {line}" for line in list(driver.stderr)[-5:])
        raise DriverError(f"{shlex.join(launch.command)}: {error}{words}") from error
    finally:
        driver.kill()


def _outcomes(
    options: argparse.Namespace,
    launch: Launch,
    wanted: Sequence[Case],
    brokers: Brokers,
    console: Console,
) -> list[Outcome]:
    screen = report.Screen(console)
    bar = Progress(
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("cases", total=len(wanted))

        def progress(outcome: Outcome) -> None:
            screen.progress(outcome)
            bar.update(task, advance=1, description=outcome.case.suite)

        settings = Options(is_strict=True, is_traced=options.trace)
        return SubjectRun(launch, brokers, {}, settings, progress).run(wanted)


def table(outcomes: Sequence[Outcome]) -> Table:
    """Suites by levels: how many cases passed, and what did not."""
    levels = [level for level in Level if any(it.case.level is level for it in outcomes)]
    found = Table("suite", *levels)
    for column in found.columns[1:]:
        column.justify = "right"
    for suite in dict.fromkeys(outcome.case.suite for outcome in outcomes):
        rows = [
            [o for o in outcomes if (o.case.suite, o.case.level) == (suite, level)]
            for level in levels
        ]
        found.add_row(suite, *(report.cell(row) if row else "" for row in rows))
    return found


if __name__ == "__main__":
    sys.exit(main())
