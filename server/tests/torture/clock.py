# SPDX-License-Identifier: AGPL-3.0-only
"""A wall clock that steps by years, forward and back, while the broker runs and while it is down:
delays, leases, times to live and pauses last as long as was asked for, never years.

While the broker runs nothing may come early either. Across a restart the wall clock is all that it
has, so a step forward may end what was to last.
"""

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fila import Client, ConsumeMessage
from server.tests.preload import compiled
from server.tests.torture.figures import Figures, Scale
from server.tests.torture.victim import Victim, folder

SOURCE = Path(__file__).parent / "wallclock.c"
YEAR_NS = 365 * 86_400 * 10**9
DURATION_MS = 3000
# No bar: years are what it is told from.
PATIENCE_S = 25.0


class WallClock:
    """The wall clock of a broker that was started with `environment`."""

    def __init__(self, path: Path) -> None:
        self._file = path / "offset"
        self._file.write_bytes(bytes(8))
        library = compiled(SOURCE, path)
        self.environment = {"LD_PRELOAD": str(library), "WALLCLOCK_OFFSET": str(self._file)}

    def step_to(self, years: int) -> None:
        """Let it be so many years ahead of the machine's, or behind."""
        with self._file.open("r+b") as file:  # in place: the broker has the file in its memory
            file.write(struct.pack("=q", years * YEAR_NS))


def run(scale: Scale) -> Figures:
    figures = Figures()
    with folder() as path:
        clock = WallClock(path)
        broker = Victim(path, environment=clock.environment)
        try:
            broker.up()
            check_that_it_steps(broker, clock)
            slowest = 0.0
            steps = scale.of(1, 5) * [10, -10]
            for number, years in enumerate(steps):
                with figures.scene(f"step to {years:+} years"):
                    slowest = max(slowest, stepped(broker, clock, years, f"run-{number}"))
            for number, years in enumerate(steps):
                with figures.scene(f"restart at {years:+} years"):
                    slowest = max(slowest, restarted(broker, clock, years, f"down-{number}"))
            figures["steps"] = 2 * len(steps)
            figures["asked ms"] = DURATION_MS
            figures["longest ms"] = slowest * 1000
            with figures.scene("the end"):
                figures.hold("it stops cleanly", broker.terminate() == 0)
        finally:
            broker.close()
    return figures.judged()


def check_that_it_steps(broker: Victim, clock: WallClock) -> None:
    """Without this a library that does nothing would pass."""
    clock.step_to(30)
    with Client(broker.address, timeout=60) as client:
        client.create_queue("proof")
        client.enqueue("proof")
        (message,) = client.receive("proof", wait_ms=1000)
        assert message.enqueued_at is not None and message.enqueued_at.year >= 2050
        message.ack()
    clock.step_to(0)


# --- What is under way when the clock steps -------------------------------------------------------


class Wait(NamedTuple):
    """Something that is over after DURATION_MS from `began`, and how to see that it is."""

    what: str
    began: float
    is_over: Callable[[Client], bool]


def begin(client: Client, prefix: str) -> list[Wait]:
    """Begin one wait of each kind, each in a queue of its own."""
    begun = [
        _delay(client, f"{prefix}-delay"),
        _lease(client, f"{prefix}-lease"),
        _extension(client, f"{prefix}-extension"),
        _retry(client, f"{prefix}-retry"),
        _pause(client, f"{prefix}-pause"),
        _life(client, f"{prefix}-life"),
    ]
    return begun


def _comes(queue: str) -> Callable[[Client], bool]:
    def is_over(client: Client) -> bool:
        found = client.receive(queue, visibility_timeout_ms=60_000)
        return bool(found)

    return is_over


def _taken(client: Client, queue: str, **fields: int) -> ConsumeMessage:
    (message,) = client.receive(queue, wait_ms=10_000, **fields)
    return message


def _delay(client: Client, queue: str) -> Wait:
    client.create_queue(queue)
    began = time.monotonic()
    client.enqueue(queue, delay_ms=DURATION_MS)
    return Wait("delay", began, _comes(queue))


def _lease(client: Client, queue: str) -> Wait:
    client.create_queue(queue)
    client.enqueue(queue)
    began = time.monotonic()
    _taken(client, queue, visibility_timeout_ms=DURATION_MS)
    return Wait("lease", began, _comes(queue))


def _extension(client: Client, queue: str) -> Wait:
    client.create_queue(queue)
    client.enqueue(queue)
    message = _taken(client, queue, visibility_timeout_ms=60_000)
    began = time.monotonic()
    message.extend(DURATION_MS)
    return Wait("extended lease", began, _comes(queue))


def _retry(client: Client, queue: str) -> Wait:
    client.create_queue(queue, retry_delay_ms=DURATION_MS)
    client.enqueue(queue)
    message = _taken(client, queue)
    began = time.monotonic()
    message.nack("later")
    return Wait("delayed retry", began, _comes(queue))


def _pause(client: Client, queue: str) -> Wait:
    """Backpressure: the throttle key lets nothing through, another message of it included."""
    client.create_queue(queue)
    client.set_config(f"throttle.{queue}", "1000,1000")
    client.enqueue(queue, throttle_keys=[queue])
    message = _taken(client, queue)
    began = time.monotonic()
    message.nack("", retry_after_ms=DURATION_MS, throttle_key=queue)
    client.enqueue(queue, throttle_keys=[queue])
    return Wait("pause of a throttle key", began, _comes(queue))


def _life(client: Client, queue: str) -> Wait:
    client.create_queue(queue)
    client.pause(queue)
    began = time.monotonic()
    client.enqueue(queue, ttl_ms=DURATION_MS)
    return Wait("time to live", began, lambda asked: asked.stats(queue).depth == 0)


# --- Steps ----------------------------------------------------------------------------------------


def stepped(broker: Victim, clock: WallClock, years: int, prefix: str) -> float:
    """Step while everything is under way; return how long the longest took."""
    with Client(broker.address, timeout=60) as client:
        waits = begin(client, prefix)
        clock.step_to(years)
        return over(client, waits, may_be_early=False)


def restarted(broker: Victim, clock: WallClock, years: int, prefix: str) -> float:
    """Step while the broker is down."""
    with Client(broker.address, timeout=60) as client:
        waits = begin(client, prefix)
    broker.kill()
    clock.step_to(years)
    broker.up()
    with Client(broker.address, timeout=60) as client:
        return over(client, waits, may_be_early=True)


def over(client: Client, waits: list[Wait], *, may_be_early: bool) -> float:
    """Wait until all are over; return how long the longest took."""
    longest = 0.0
    left = list(waits)
    deadline = time.monotonic() + PATIENCE_S
    while left:
        for wait in list(left):
            if wait.is_over(client):
                took = time.monotonic() - wait.began
                assert may_be_early or took * 1000 >= DURATION_MS, (
                    f"a {wait.what} of {DURATION_MS} ms was over after {took * 1000:.0f} ms"
                )
                longest = max(longest, took)
                left.remove(wait)
        names = ", ".join(wait.what for wait in left)
        assert time.monotonic() < deadline, f"not over after {PATIENCE_S:.0f} s: {names}"
        time.sleep(0.05)
    return longest
