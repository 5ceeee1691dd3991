# SPDX-License-Identifier: AGPL-3.0-only
"""What a command of `fila` costs to start: its processor time, beside Python's and gRPC's own.

Every command runs once before it is measured, so that Python's bytecode is there, as it is after
an installation.
"""

import argparse
import os
import shutil
import subprocess
import sys
from statistics import median

from bench.broker import serving
from bench.report import Report

BAR_MS = 150
COMMANDS = (
    ("enqueue", "orders", "--payload", "hello"),
    ("stats", "orders"),
    ("queue", "list"),
    ("status",),
    ("peek", "orders"),
    ("--help",),
)
PARTS = ("pass", "import grpc")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=9, help="runs of each command (9)")


def run(chosen: argparse.Namespace) -> None:
    report = Report(f"startup: medians of {chosen.rounds} rounds", chosen.json)
    fila = shutil.which("fila") or sys.exit("there is no command fila here")
    programs = {f"python: {part}": [sys.executable, "-c", part] for part in PARTS}
    programs |= {f"fila {' '.join(words)}": [fila, *words] for words in COMMANDS}
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    spent: dict[str, list[float]] = {name: [] for name in programs}
    with serving() as (broker, _):
        environment = {**kept, "FILA_ADDR": broker.address}
        _cpu_ms([fila, "queue", "create", "orders"], environment)
        for turn in range(chosen.rounds + 1):
            for name, program in programs.items():
                used = _cpu_ms(program, environment)
                if turn:
                    spent[name].append(used)
    for name, used_ms in spent.items():
        bar = f", bar {BAR_MS}" if name.startswith("fila") else ""
        figure = name.replace(":", "").replace(" ", "_") + "_ms"
        report.add(
            name,
            f"{median(used_ms):.0f} ms",
            f"best {min(used_ms):.0f}{bar}",
            **{figure: round(median(used_ms), 1)},
        )
    report.show()


def _cpu_ms(program: list[str], environment: dict[str, str]) -> float:
    with subprocess.Popen(
        program, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(program)} ended with {process.returncode}")
    return (used.ru_utime + used.ru_stime) * 1000
