# SPDX-License-Identifier: AGPL-3.0-only
"""The short form of `nox -s simulate`, which has all seeds and looks for every planted bug."""

import pytest

from server.tests.simulation import plants, seeds

_SEEDS = 50
_CHUNK = 25
_SEEDS_PER_PLANT = 100
# Enough of them to show that the rules can be broken; finding each takes minutes.
_PLANTS = list(plants.PLANTS)[::6]


@pytest.mark.parametrize("first", range(0, _SEEDS, _CHUNK))
def test_every_rule_holds(first: int) -> None:
    for seed in range(first, first + _CHUNK):
        found = seeds.run(seed)
        again = f"python -m server.tests.simulation --seed {seed} --trace"
        assert not found, f"seed {seed}: {found}\nagain: {again}"


@pytest.mark.parametrize("name", _PLANTS)
def test_planted_bug_is_found(name: str) -> None:
    assert seeds.broken_by(plants.PLANTS[name](), range(_SEEDS_PER_PLANT))


def test_a_seed_always_does_the_same() -> None:
    def told(seed: int) -> list[str]:
        lines: list[str] = []
        seeds.run(seed, trace=lines.append)
        return lines

    assert told(1) == told(1)
    assert told(1) != told(2)
