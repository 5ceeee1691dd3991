# SPDX-License-Identifier: AGPL-3.0-only
"""`python -m bench [lifecycle | fairness | restart] ...`, or `nox -s bench -- ...`."""

import argparse
import sys

from bench import fairness, lifecycle, restart

MEASUREMENTS = {"lifecycle": lifecycle, "fairness": fairness, "restart": restart}

EXAMPLES = """examples:
  nox -s bench                                   the full lifecycle through the Python SDK
  nox -s bench -- lifecycle --messages 400000 --batch 1000
  nox -s bench -- fairness                       what fairness, throttling and hooks cost
  nox -s bench -- restart --messages 1000000     how long a restart with a backlog takes
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
