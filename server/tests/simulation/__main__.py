# SPDX-License-Identifier: AGPL-3.0-only
"""The simulation from a terminal: `python -m server.tests.simulation --help`.

--seed 1234 --trace     one seed, turn by turn: how a failure is looked at
--seeds 2000 --jobs 2   many, as `nox -s simulate` does
--plants                every planted bug, each until a seed has found it
"""

from __future__ import annotations

import argparse
import sys
import time
from multiprocessing import get_context

from server.tests.simulation import plants, seeds
from server.tests.simulation.planting import Misplanted
from server.tests.simulation.schedule import STEPS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m server.tests.simulation")
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: show every turn")
    parser.add_argument("--steps", type=int, default=STEPS, help="with --seed: stop after so many")
    parser.add_argument("--seeds", type=int, default=200, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="where to start counting")
    parser.add_argument("--jobs", type=int, default=2, help="on how many cores")
    parser.add_argument("--plants", action="store_true", help="plant bugs and find them")
    options = parser.parse_args()
    if options.seed is not None:
        found = seeds.run(options.seed, options.steps, print if options.trace else None)
        print(f"seed {options.seed}: {found or 'every rule held'}")
        return 1 if found else 0
    if options.plants:
        return _find_plants(options.seeds, options.jobs)
    return _run_seeds(range(options.first, options.first + options.seeds), options.jobs)


def _run_seeds(chosen: range, jobs: int) -> int:
    began = time.monotonic()
    failed = 0
    for seed, found in seeds.run_many(chosen, jobs):
        if found:
            failed += 1
            print(f"seed {seed}: {found}")
            print(f"  again: python -m server.tests.simulation --seed {seed} --trace", flush=True)
    took = time.monotonic() - began
    print(f"simulate: {len(chosen) - failed} passed, {failed} failed seeds in {took:.0f} s")
    return 1 if failed else 0


def _find_plants(count: int, jobs: int) -> int:
    missed = 0
    tasks = [(name, count) for name in plants.PLANTS]
    with get_context("fork").Pool(jobs) as pool:
        for name, found in pool.imap(_find, tasks):
            missed += not found
            print(f"{name}: {found or 'NOT FOUND'}", flush=True)
    print(f"simulate: plants: {len(tasks) - missed} passed, {missed} failed")
    return 1 if missed else 0


def _find(task: tuple[str, int]) -> tuple[str, str]:
    name, count = task
    try:
        found = seeds.broken_by(plants.PLANTS[name](), range(count))
    except Misplanted as error:  # which would end this process alone
        raise RuntimeError(f"{name} no longer fits its place: {error}") from error
    return name, f"seed {found[0]}, {found[1][:100]}" if found else ""


if __name__ == "__main__":
    sys.exit(main())
