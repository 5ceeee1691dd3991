# SPDX-License-Identifier: AGPL-3.0-only
"""Fila beside Redis Streams, RabbitMQ, NATS JetStream and beanstalkd, in one run on one machine.

Brokers run side by side on loopback, each in a temporary folder; clients are processes of their
own. A broker that is not installed is named in the result.
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.peers import page, plots, report
from bench.peers.goclient import go_client
from bench.peers.peer import Running
from bench.peers.roster import PEERS
from bench.peers.runner import Runner
from bench.peers.workloads import FULL, QUICK, SMOKE, Length, cases

CLIENTS = ("python", "go")
Say = Callable[[str], None]
IDLE_S = 2
FILES = ("--json", "--plots", "--from")
EXAMPLES = """examples:
  nox -s bench -- peers --quick                        all brokers, some minutes
  nox -s bench -- peers --json all.json --plots plots  the full run: about an hour
  nox -s bench -- peers --only fila,redis --case go-1,go-8
  nox -s bench -- peers --smoke                        does every part of it work?
  nox -s bench -- peers --page                         measure in full, rewrite docs/performance.md
  nox -s bench -- peers --from all.json --page         the page again, from an earlier run

Debian has the peers: apt-get install redis-server rabbitmq-server beanstalkd (and stop the services
that it starts); NATS is built with Go, once."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="fewer rounds, sizes and rates")
    length.add_argument("--smoke", action="store_true", help="a few messages of everything")
    length.add_argument("--from", dest="source", metavar="FILE", help="show an earlier result")
    parser.add_argument("--only", default="", help=f"some of: {','.join(PEERS)}")
    clients = ",".join(CLIENTS)
    parser.add_argument("--clients", default=clients, help=f"some of: {clients}")
    parser.add_argument("--case", default="", help="names of cases, or how they begin")
    parser.add_argument("--rounds", type=int, help="instead of the run's own number")
    parser.add_argument("--json", dest="json_file", metavar="FILE", help="write the result here")
    parser.add_argument("--plots", metavar="FOLDER", help="write SVG pictures here")
    parser.add_argument("--page", action="store_true", help="rewrite docs/performance.md")


def run(chosen: argparse.Namespace) -> None:
    """Measure, show, and write what was asked for. Exits 1 if anything failed."""
    width = None if sys.stdout.isatty() else 150
    console = Console(stderr=chosen.json, highlight=False, width=width)
    if chosen.source:
        result = json.loads(Path(chosen.source).read_text())
    else:
        result = measure(chosen, console)
    _store(result, chosen.json_file)
    report.show(result, console)
    if chosen.json:
        print(json.dumps(result))
    if chosen.plots:
        plots.draw(result, Path(chosen.plots))
    if chosen.page:
        for path in page.write(result):
            console.print(f"wrote {path}")
    failures = [label for case in result["cases"] for label in case["failures"]]
    if failures:
        sys.exit(f"{len(failures)} measurements failed; they are named above")


def measure(chosen: argparse.Namespace, console: Console) -> dict[str, Any]:
    length = SMOKE if chosen.smoke else QUICK if chosen.quick else FULL
    if chosen.rounds is not None:
        if chosen.rounds < 1:
            sys.exit(f"--rounds is {chosen.rounds}; a median needs at least 1")
        length = replace(length, rounds=chosen.rounds, tenant_rounds=chosen.rounds)
    names = _chosen("--only", chosen.only, list(PEERS))
    clients = _chosen("--clients", chosen.clients, list(CLIENTS))
    began = time.monotonic()

    def say(text: str) -> None:
        spent = time.monotonic() - began
        console.print(f"  {spent:5.0f} s  {text}", style="dim", markup=False)

    result = _heading(length)
    missing = {name: why for name in names if (why := PEERS[name].missing())}
    for name, why in missing.items():
        _miss(result, name, (PEERS[name].title, why, PEERS[name].install), say)
    if "go" in clients and shutil.which("go") is None:
        clients.remove("go")
        _miss(result, "go", ("Go clients", "there is no Go to build them with", "Go 1.26"), say)
    if "go" in clients:
        say("building the Go client, where it has changed")
        go_client()
    present = [name for name in names if name not in missing]
    wanted = tuple(filter(None, chosen.case.split(",")))
    known = [case.name for case in cases(length, present, clients)]
    if not any(name.startswith(wanted or "") for name in known):
        sys.exit(f'no case begins with "{chosen.case}"; there are {", ".join(known)}')
    with ExitStack() as stack:
        brokers: dict[str, Running] = {}
        for name in present:
            try:
                brokers[name] = _started(name, stack, say)
            except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
                what = PEERS[name].title, f"it did not start: {error}", PEERS[name].install
                _miss(result, name, what, say)
        found = cases(length, list(brokers), clients)
        todo = [case for case in found if case.name.startswith(wanted or "")]
        result["peers"] = _described(brokers)
        runner = Runner(brokers, length, say)
        try:
            for case in todo:
                result["cases"].append(runner.run(case))
                _store(result, chosen.json_file)
        except KeyboardInterrupt:
            say("interrupted; what was measured so far follows")
        say("stopping the brokers")
    return result


def _miss(result: dict[str, Any], name: str, what: tuple[str, str, str], say: Say) -> None:
    """Name what is not there, now and in the result."""
    title, why, install = what
    result["missing"][name] = {"title": title, "why": why, "install": install}
    say(f"MISSING: {title}: {why}. To have it: {install}")


def _store(result: dict[str, Any], file: str | None) -> None:
    """After every case, so that a run which is cut short has not been for nothing."""
    if file:
        Path(file).write_text(json.dumps(result, indent=1) + "\n")


def _chosen(option: str, text: str, known: list[str]) -> list[str]:
    """The names in a list with commas; all of them if it is empty."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            sys.exit(f'{option} does not know "{name}"; there are {", ".join(known)}')
    return [name for name in known if not names or name in names]


def _started(name: str, stack: ExitStack, say: Say) -> Running:
    say(f"starting {PEERS[name].title}")
    folder = tempfile.TemporaryDirectory(prefix=f"bench-{name}-", ignore_cleanup_errors=True)
    return stack.enter_context(PEERS[name].start(Path(stack.enter_context(folder))))


def _described(brokers: dict[str, Running]) -> dict[str, Any]:
    """Who takes part, and what each costs when nobody asks anything of it."""
    before = {name: broker.cpu_s() for name, broker in brokers.items()}
    time.sleep(IDLE_S)
    return {
        name: {
            "title": PEERS[name].title,
            "version": broker.version,
            "guarantee": PEERS[name].guarantee,
            "python_client": PEERS[name].python_client,
            "go_client": PEERS[name].go_client,
            "idle_cpu": (broker.cpu_s() - before[name]) / IDLE_S,
        }
        for name, broker in brokers.items()
    }


def _heading(length: Length) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": shlex.join(["nox", "-s", "bench", "--", *told(sys.argv[1:])]),
        "length": length.name,
        "rounds": length.rounds,
        "machine": _machine(),
        "peers": {},
        "missing": {},
        "cases": [],
    }


def told(arguments: Sequence[str]) -> list[str]:
    """What a command was told of the measurement; where its results went is nobody's business."""
    kept: list[str] = []
    left = iter(arguments)
    for word in left:
        if word in FILES:
            next(left, None)
        elif not word.startswith(tuple(f"{option}=" for option in FILES)):
            kept.append(word)
    return kept


def _machine() -> dict[str, Any]:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    try:
        go = subprocess.run(["go", "version"], capture_output=True, text=True).stdout.split()[2]
    except FileNotFoundError:
        go = "no Go"
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "go": go,
        "load": os.getloadavg()[0],
    }
