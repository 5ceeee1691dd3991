# SPDX-License-Identifier: AGPL-3.0-only
"""Running seeds: one, or many on several cores, with or without a planted bug."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing import get_context

from server.tests.simulation.broken import Broken
from server.tests.simulation.schedule import STEPS, Run
from server.tests.simulation.shares import Market

_CHUNK = 10
_SHARES_EVERY = 8  # one seed in so many is about shares


def run(seed: int, steps: int = STEPS, trace: Callable[[str], None] | None = None) -> str:
    """Run one seed. Return the rule that broke and how, or nothing."""
    try:
        if seed % _SHARES_EVERY == _SHARES_EVERY - 1:
            Market(seed, trace).run()
        else:
            Run(seed, trace).run(steps)
    except Broken as broken:
        return str(broken)
    except Exception as error:
        if trace is not None:
            raise
        return f"the broker did what the simulation cannot follow: {error!r}"
    return ""


def broken_by(plant: AbstractContextManager[None], seeds: range) -> tuple[int, str] | None:
    """Return the first seed that notices a planted bug, and how."""
    with plant:
        for seed in seeds:
            found = run(seed)
            if found:
                return seed, found
    return None


def run_many(seeds: range, jobs: int) -> Iterator[tuple[int, str]]:
    """Run seeds on several cores; yield each with what it found, in no particular order."""
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    with get_context("fork").Pool(jobs) as pool:
        for found in pool.imap_unordered(_run_chunk, chunks):
            yield from found


def _run_chunk(seeds: range) -> list[tuple[int, str]]:
    return [(seed, run(seed)) for seed in seeds]
