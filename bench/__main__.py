# SPDX-License-Identifier: AGPL-3.0-only
"""`python -m bench [lifecycle | fairness | ...]`, or `nox -s bench -- ...`; `--help` lists all."""

import argparse
import sys

from bench import (
    backup,
    curve,
    fairness,
    labels,
    lifecycle,
    memory,
    pages,
    restart,
    startup,
    telemetry,
    turns,
)
from bench.peers import command as peers

MEASUREMENTS = {
    "lifecycle": lifecycle,
    "fairness": fairness,
    "turns": turns,
    "labels": labels,
    "memory": memory,
    "curve": curve,
    "restart": restart,
    "backup": backup,
    "pages": pages,
    "telemetry": telemetry,
    "startup": startup,
    "peers": peers,
}

EXAMPLES = """examples:
  nox -s bench                                   the full lifecycle through the Python SDK
  nox -s bench -- lifecycle --messages 400000 --batch 1000
  nox -s bench -- fairness                       what fairness, throttling and hooks cost
  nox -s bench -- turns                          how long one call can hold up all others
  nox -s bench -- labels                         what metrics show of a million keys
  nox -s bench -- memory                         what a message takes in memory
  nox -s bench -- curve                          what a message costs as backlog and keys grow
  nox -s bench -- restart --messages 1000000     how long a restart with a backlog takes
  nox -s bench -- backup                         how long a backup holds up everybody
  nox -s bench -- pages                          what open pages of the dashboard cost
  nox -s bench -- telemetry                      what metrics cost, on against off
  nox -s bench -- startup                        what a command of `fila` costs to start
  nox -s bench -- peers --quick                  Fila beside Redis, RabbitMQ, NATS, beanstalkd
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench",
        description="Measure Fila on this machine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    commands = parser.add_subparsers(dest="what")
    for name, module in MEASUREMENTS.items():
        summary = (module.__doc__ or "").partition("\n")[0]
        module.options(commands.add_parser(name, help=summary, description=summary))
    arguments = sys.argv[1:]
    if not any(word in MEASUREMENTS for word in arguments) and not {"-h", "--help"} & {*arguments}:
        arguments.append("lifecycle")
    chosen = parser.parse_args(arguments)
    MEASUREMENTS[chosen.what].run(chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
