# SPDX-License-Identifier: AGPL-3.0-only
"""What a message takes in memory: pending with its payload, pending on disk only, and leased.

The core runs alone, on a store that keeps nothing. Each figure comes from a process of its own:
what it grew by, once it was warm, divided by the messages that it grew by. So the allocator's share
is in it, and that of lanes and tables too.
"""

import argparse
import gc
import itertools
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from bench.core import Core
from bench.report import Report
from fila_server.limits import TIB
from fila_server.runtime.memory import resident_bytes

WARM = 50_000
FRAME = 500

PLACES = {
    "hot": "pending, hot",
    "cold": "pending, cold",
    "leased": "leased",
}
BARS = {"hot": "350 B", "cold": "10 B"}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=400_000, help="per figure (400000)")
    parser.add_argument("--size", type=int, default=256, help="payload bytes (256)")
    parser.add_argument(
        "--keys", type=int, nargs="+", default=[1, 1000], help="fairness keys (1 1000)"
    )


def run(chosen: argparse.Namespace) -> None:
    report = Report(f"memory: {chosen.messages:,} x {chosen.size} B", chosen.json)
    for place, text in PLACES.items():
        for keys in chosen.keys:
            report.progress(f"{text}, {keys:,} keys")
            # A cold one is small, so more of them are needed for the same precision.
            count = chosen.messages * (5 if place == "cold" else 1)
            size = _alone(place, count, chosen.size, keys)
            name = f"{place}_{keys}"
            what = f"{text}, {keys:,} {'key' if keys == 1 else 'keys'}"
            report.add(what, f"{size:,.1f} B", BARS.get(place, ""), **{name: size})
    report.note("Growth of a process per message, allocator and lanes included; the core alone.")
    report.show()


def _alone(place: str, count: int, size: int, keys: int) -> float:
    """Measure in a process that has done nothing before."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh) as pool:
        return pool.submit(_bytes_each, place, count, size, keys).result()


def _bytes_each(place: str, count: int, size: int, keys: int) -> float:
    core = Core(hot_bytes=0 if place == "cold" else TIB)
    core.create()
    names = itertools.cycle([f"tenant-{number}" for number in range(keys)])
    _fill(core, names, WARM, size, place == "leased")
    gc.collect()
    before = resident_bytes()
    _fill(core, names, count, size, place == "leased")
    gc.collect()
    return (resident_bytes() - before) / count


def _fill(core: Core, names: Iterator[str], count: int, size: int, is_leased: bool) -> None:
    """Enqueue so many messages; let a consumer take each batch and keep it, if they are leased."""
    for start in range(0, count, FRAME):
        core.enqueue(list(itertools.islice(names, min(FRAME, count - start))), size=size)
        if is_leased:
            core.open(FRAME, FRAME)
