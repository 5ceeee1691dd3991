# SPDX-License-Identifier: AGPL-3.0-only
"""From a seed to a run: who does what, when the clocks move, where the process ends.

A seed decides everything. It draws what its clients are like, how often each thing happens, how
time passes and whether clocks jump; then step by step what happens next. Every rule is checked
after every step, the costly ones after some.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from random import Random

from fila_server.core.clock import NS_PER_MS, NS_PER_S
from server.tests.simulation import rules
from server.tests.simulation.clients import THROTTLE_KEYS, Clients
from server.tests.simulation.operators import Operators
from server.tests.simulation.smallness import slow_ends, small_frames, small_turns
from server.tests.simulation.world import Crash, Fuse, World

STEPS = 100
_HOUR_NS = 3600 * NS_PER_S

# How often each thing happens, by what the seed is about. Names are those of the actions; what a
# mood does not mention happens as often as in "mixed".
MOODS: dict[str, dict[str, float]] = {
    "mixed": {
        "produce": 20,
        "connect": 4,
        "poll": 4,
        "take": 14,
        "settle": 18,
        "settle_frames": 4,
        "extend": 1.5,
        "forget": 0.7,
        "leave": 3,
        "limit": 2,
        "lift": 1,
        "weigh": 1,
        "pause": 1,
        "resume": 2,
        "update": 0.7,
        "purge": 0.6,
        "redrive": 1.5,
        "cancel": 1.5,
        "delete": 0.3,
        "create": 0.6,
        "look": 1.5,
        "wait": 14,
        "crash": 1,
    },
    "limits": {
        "connect": 6,
        "leave": 6,
        "settle": 25,
        "limit": 4,
        "lift": 1.5,
        "wait": 20,
        "update": 0,
        "redrive": 0,
        "delete": 0,
        "create": 0,
        "crash": 0.5,
    },
    "failures": {
        "settle": 30,
        "settle_frames": 9,
        "forget": 2,
        "redrive": 5,
        "limit": 0.5,
        "wait": 25,
        "crash": 0.5,
    },
    "operators": {
        "limit": 3,
        "pause": 3,
        "resume": 5,
        "update": 2,
        "purge": 2.5,
        "redrive": 3,
        "cancel": 5,
        "delete": 1.5,
        "create": 3,
        "crash": 0.5,
    },
    "disconnects": {
        "produce": 25,
        "connect": 16,
        "leave": 14,
        "take": 6,
        "settle": 8,
        "limit": 6,
        "wait": 20,
        "pause": 0,
        "update": 0,
        "redrive": 0,
        "delete": 0,
        "create": 0,
        "crash": 0.2,
    },
    "crashes": {"crash": 6, "delete": 0.6, "purge": 1},
}

# What only the broker knows the outcome of where a life is over and has not been ended yet.
_SURE = ("look", "cancel", "purge", "delete", "crash")

EVERY_STEP = (rules.no_lane_waits, rules.timers_are_set, rules.nobody_was_forgotten)
SOME_STEPS = (
    rules.counts_agree,
    rules.everything_is_in_its_place,
    rules.facts_agree,
    rules.reasons_agree,
)


class Run:
    """One seed."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.random = random = Random(seed)
        has_small_frames = random.random() < 0.3
        self.world = World(random, small_frames() if has_small_frames else None)
        self.world.trace = trace
        throttle_keys = random.sample(THROTTLE_KEYS, random.choice((1, 2, 5)))
        sizes = (1, 60, 200, 400) if has_small_frames else (1, 1, 60)
        self.clients = Clients(self.world, random, throttle_keys, sizes)
        self._is_small = random.random() < 0.3
        self._has_slow_ends = random.random() < 0.3
        self.operators = Operators(
            self.world,
            random,
            throttle_keys,
            is_small=self._is_small,
            most=0 if self._has_slow_ends else 12,
        )
        self._jumps = random.random() < 0.4
        self._syncs = random.choice((1.0, 0.7, 0.3))
        self._mood = random.choice(tuple(MOODS))
        self._actions, self._weights = self._temper()

    def _temper(self) -> tuple[list[Callable[[], None]], list[float]]:
        """Draw how often each thing happens; some never do."""
        actors = (self, self.clients, self.operators)
        actions, weights = [], []
        for name, usual in (MOODS["mixed"] | MOODS[self._mood]).items():
            (actor,) = (actor for actor in actors if hasattr(actor, name))
            actions.append(getattr(actor, name))
            factor = 1.0 if usual > 10 else self.random.choice((0, 0.5, 1, 1, 2))
            is_open = self._has_slow_ends and name in _SURE
            weights.append(0 if is_open else usual * factor)
        return actions, weights

    def run(self, steps: int = STEPS) -> None:
        """Take so many steps. Raises Broken where a rule does not hold."""
        turns = small_turns() if self._is_small else nullcontext()
        ends = slow_ends() if self._has_slow_ends else nullcontext()
        with turns, ends:
            self._run(steps)

    def _run(self, steps: int) -> None:
        self.operators.open_shop()
        for _ in range(3):
            self.clients.connect()
        for _ in range(steps):
            try:
                self._step()
            except Crash:
                self._restart()

    def _step(self) -> None:
        random, world = self.random, self.world
        for action in random.choices(self._actions, self._weights, k=random.choice((1, 1, 2, 3))):
            action()
        self.clients.take_eagerly()
        if random.random() < (0.5 if self._is_small else 0.1):
            world.turn(at_most=random.randint(1, 2))  # the rest waits for the next group
        else:
            world.settle()
        if random.random() < self._syncs:
            world.sync()
        if not world.inbox and not world.has_more:
            self.check()

    def check(self) -> None:
        """Hold the world to its rules."""
        for rule in EVERY_STEP:
            rule(self.world)
        if self.random.random() < 0.15:
            for rule in SOME_STEPS:
                rule(self.world)
        if not self.world.clock.has_jumped and self.random.random() < 0.3:
            rules.memory_equals_disk(self.world)

    # --- Time and failures ------------------------------------------------------------------------

    def crash(self) -> None:
        """Let the process end at one of the storage operations to come."""
        self.world.fuse = Fuse(self.random.randint(1, 6), self.random.random() < 0.5)

    def wait(self) -> None:
        """Let time pass: a little, to the next thing that happens by itself, or for long."""
        random, clock = self.random, self.world.clock
        if self._jumps and random.random() < 0.1:
            clock.jump(random.choice((-1, 1)) * random.choice((1, 3600, 10**8)) * NS_PER_S)
        wake_ns = self.world.broker.next_wake_ns() - clock.mono_ns
        (elapsed_ns,) = random.choices(
            (
                random.randint(0, 20 * NS_PER_MS),
                wake_ns,
                wake_ns - 1,
                random.randint(0, 2 * NS_PER_S),
                random.randint(0, _HOUR_NS),
            ),
            (8, 8, 2, 4, 0.5),
        )
        if 0 < elapsed_ns <= 3 * _HOUR_NS:
            clock.advance(elapsed_ns)

    def _restart(self) -> None:
        random, world = self.random, self.world
        self.clients.forget_connections()
        while True:
            jump_ns = random.choice((0, 0, -3600, 3600, -(10**9))) * NS_PER_S if self._jumps else 0
            try:
                world.restart(
                    power=random.random() < 0.5,
                    keep=random.randint(0, world.unsynced),
                    down_ns=random.choice((1, 500 * NS_PER_MS, 60 * NS_PER_S)),
                    jump_ns=jump_ns,
                    mono_ns=random.choice((10**9, world.clock.mono_ns + 1)),
                )
                return
            except Crash:
                continue
