# SPDX-License-Identifier: AGPL-3.0-only
"""`python -m server.tests.torture [NAME...] [--long] [--json]`, or `nox -s torture -- ...`.

Prints one line per torture with its figures, and exits 1 when one of them broke a rule.
"""

import argparse
import json
import logging
import sys
import time
import traceback
from typing import Any, NamedTuple

from server.tests.torture import (
    clock,
    connections,
    damage,
    disk,
    floods,
    fsync,
    kill9,
    readers,
)
from server.tests.torture.figures import Broken, Figures, Scale

TORTURES = {
    "kill9": kill9,
    "disk": disk,
    "fsync": fsync,
    "damage": damage,
    "connections": connections,
    "floods": floods,
    "readers": readers,
    "clock": clock,
}


class Outcome(NamedTuple):
    """How one torture ended."""

    name: str
    seconds: float
    figures: Figures
    broken: list[str]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "passed": not self.broken,
            "seconds": round(self.seconds, 1),
            "figures": self.figures.values,
            "broken": self.broken,
        }

    def __str__(self) -> str:
        verdict = "FAILED" if self.broken else "passed"
        line = f"{self.name:<12} {verdict}  {self.seconds:5.0f} s  {self.figures}"
        return "\n".join([line, *(f"{'':<12} broken: {rule}" for rule in self.broken)])


def inflict(name: str, scale: Scale) -> Outcome:
    began = time.monotonic()
    broken: list[str] = []
    try:
        figures = TORTURES[name].run(scale)
    except Broken as error:
        figures, broken = error.figures, error.figures.broken
    except Exception as error:  # the torture itself is at a loss: nothing of it can be believed
        traceback.print_exc()
        figures, broken = Figures(), [f"{type(error).__name__}: {' '.join(str(error).split())}"]
    return Outcome(name, time.monotonic() - began, figures, broken)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="torture", description="Torture a broker, and print how it fared."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TORTURES)} (all)")
    parser.add_argument("--long", action="store_true", help="many times as hard; takes an hour")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    chosen = parser.parse_args()
    logging.getLogger("fila").setLevel(logging.ERROR)  # that a stream is lost is the point here
    if unknown := sorted(set(chosen.names) - set(TORTURES)):
        parser.error(f"there is no torture {unknown[0]!r}; there are {', '.join(TORTURES)}")
    outcomes = []
    for name in chosen.names or TORTURES:
        outcomes.append(inflict(name, Scale(chosen.long)))
        if not chosen.json:
            print(outcomes[-1], flush=True)
    failed = sum(bool(outcome.broken) for outcome in outcomes)
    if chosen.json:
        print(json.dumps({"tortures": [outcome.as_json() for outcome in outcomes]}))
    else:
        print(f"torture: {len(outcomes) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
