# SPDX-License-Identifier: AGPL-3.0-only
"""Runs cases: brokers side by side, client processes one after the other, rounds in turn.

A measurement that fails is named in the result with what was said, and the others go on.
"""

import itertools
import json
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.peers import tenants
from bench.peers.driver import READY
from bench.peers.goclient import go_client
from bench.peers.peer import Running
from bench.peers.roster import PEERS
from bench.peers.workloads import Case, Entry, Length

RUN_SECONDS_MAX = 180
MESSAGES_MAX = 400_000
UNITS_MIN = 4  # of a fleet: what every caller sends, however slow the broker is
BYTES_MAX = 128 << 20  # a round of the largest messages is not a test of the disk's size

_numbers = itertools.count(1)


class Failed(Exception):
    """A client process ended without a result; the text is its last line."""


class Runner:
    """Brokers that run, and what is measured with them."""

    def __init__(
        self, brokers: Mapping[str, Running], length: Length, say: Callable[[str], None]
    ) -> None:
        self._brokers = brokers
        self._length = length
        self._say = say

    def run(self, case: Case) -> dict[str, Any]:
        """Measure a case; returns it as it is stored, one list of rounds per entry."""
        found: dict[str, list[dict[str, Any]]] = {entry.label: [] for entry in case.entries}
        failures: dict[str, str] = {}
        counts: dict[str, int] = {}
        for number in range(case.rounds):
            for entry in case.entries:
                if entry.label in failures:
                    continue
                words = f"round {number + 1} of {case.rounds}"
                self._say(f"{case.name}: {words}, {entry.label}")
                try:
                    if case.kind == "lifecycle" and entry.label not in counts:
                        counts[entry.label] = self._calibrated(case, entry)
                    more = {"messages": counts[entry.label]} if entry.label in counts else {}
                    found[entry.label].append(self._measure(case, entry, more))
                except Failed as error:
                    failures[entry.label] = str(error)
                    self._say(f"{case.name}: {entry.label} FAILED: {error}")
        return {
            "name": case.name,
            "title": case.title,
            "kind": case.kind,
            "client": case.client,
            "settings": dict(case.settings),
            "entries": [
                {"peer": entry.peer, "label": entry.label, "rounds": found[entry.label]}
                for entry in case.entries
                if found[entry.label]
            ],
            "failures": failures,
        }

    def _calibrated(self, case: Case, entry: Entry) -> int:
        """How many messages fill the time of a round; this first run also warms up."""
        settings = case.settings
        unit = settings["connections"] * settings["window"]
        fits = max(unit, BYTES_MAX // settings["bytes"] // unit * unit)
        trial = min(unit * max(1, 1000 // unit), fits)
        result = self._measure(case, entry, {"messages": trial})
        wanted = trial / result["lifecycle_s"] * self._length.seconds
        least = UNITS_MIN if settings["window"] == 1 else 1
        units = max(least, min(round(wanted / unit), MESSAGES_MAX // unit))
        return int(min(units * unit, fits))

    def _measure(self, case: Case, entry: Entry, more: Mapping[str, Any]) -> dict[str, Any]:
        broker = self._brokers[entry.peer]
        peer = PEERS[entry.peer]
        spec = {
            "what": case.kind,
            "peer": entry.peer,
            "address": broker.address,
            "queue": f"bench{next(_numbers)}",
            **case.settings,
            **entry.settings,
            **more,
        }
        queues = tenants.queues(spec) if "recipe" in spec else [spec["queue"]]
        specs = [{**spec, "role": role} for role in case.roles]
        try:
            client = peer.client(broker.address)
            for queue in queues:
                client.create(queue)
            results, wall_s, spent_s = drive(case.client, specs, broker)
            for queue in queues:
                client.delete(queue)
            client.close()
        except Failed:
            raise
        except Exception as error:  # whatever a library raises; the other brokers go on
            raise Failed(f"{type(error).__name__}: {error}") from error
        return summary(case, results, wall_s, spent_s)


def summary(
    case: Case, results: Sequence[dict[str, Any]], wall_s: float, broker_s: float
) -> dict[str, Any]:
    """What one round says: rates and costs of lifecycles, or what the workload itself found."""
    client_s = sum(result.pop("client_cpu_s") for result in results)
    if case.kind != "lifecycle":
        return {**results[0], "broker_cpu_s": broker_s, "client_cpu_s": client_s}
    parts: dict[str, Any] = {name: value for result in results for name, value in result.items()}
    count = parts["messages"]
    together = len(results) > 1
    lifecycle_s = wall_s if together else parts["enqueue_s"] + parts["consume_s"]
    return {
        "messages": count,
        "lifecycle_s": lifecycle_s,
        "lifecycles_per_s": count / lifecycle_s,
        "enqueues_per_s": count / parts["enqueue_s"],
        "consumes_per_s": count / parts["consume_s"],
        "broker_us": broker_s / count * 1e6,
        "client_us": client_s / count * 1e6,
    }


def drive(
    client: str, specs: Sequence[Mapping[str, Any]], broker: Running
) -> tuple[list[dict[str, Any]], float, float]:
    """Run client processes at once; returns their results, the seconds until the last ended, and
    the broker's processor time meanwhile. Connecting is not counted.

    Raises Failed for one that gave none in time.
    """
    program = [str(go_client())] if client == "go" else [sys.executable, "-m", "bench.peers.driver"]
    processes = [
        subprocess.Popen(
            [*program, json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for spec in specs
    ]
    try:
        for process in processes:
            if _line(process) != READY:
                raise Failed(_last_words(process))
        before, began = broker.cpu_s(), time.perf_counter()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        results = []
        for process in processes:
            line = _line(process)
            if not line.startswith("{"):
                raise Failed(_last_words(process))
            results.append(json.loads(line))
        wall_s = time.perf_counter() - began
        return results, wall_s, broker.cpu_s() - before
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
            process.communicate()


def _line(process: "subprocess.Popen[str]") -> str:
    """The next line of output, or nothing if none comes in time or the process ended."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        if not waiting.select(RUN_SECONDS_MAX):
            return ""
    return process.stdout.readline().strip()


def _last_words(process: "subprocess.Popen[str]") -> str:
    if process.poll() is None:
        try:
            process.wait(1)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"no answer within {RUN_SECONDS_MAX} s"
    _, said = process.communicate()
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else f"ended with status {process.returncode}"
