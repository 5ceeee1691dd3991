# SPDX-License-Identifier: AGPL-3.0-only
"""What a scrape is when a million keys come and go: its series, its bytes, what they add up to.

The core runs alone. Every message has a fairness key and a throttle key that never come again,
beside some keys that are busy all the time. What each series grows by is added up from scrape to
scrape, as Prometheus does for rates, and must be what happened. Exits with an error where a bound
is broken or anything was lost.
"""

import argparse
import gc

from bench.core import QUEUE, Core, acks
from bench.report import Report
from fila.v1 import service_pb2 as service
from fila_server.core.commands import Enqueue
from fila_server.core.schedule.usage import OTHER
from fila_server.limits import KIB, MIB
from fila_server.runtime.memory import resident_bytes
from fila_server.runtime.readings import Counts
from fila_server.telemetry.prometheus import render
from fila_server.telemetry.rows import Labels, Row

S = 10**9
STEP = 5000  # new keys between two scrapes, a second apart
REGULARS = 20  # keys that are busy in every step, and begin when all labels are taken
OFTEN = 25  # messages of each of them in a step
# Per key with a label: eight series of a fairness key and one for its share, or five of a throttle
# key. Beside them there are those of the queue, for each cause and range.
SERIES_PER_KEY = 9 + 5
SERIES_OF_QUEUES = 400
BYTES_PER_SERIES = 120
# What the process may grow by after its first steps, however many keys follow: none of them is
# meant to leave anything behind.
WARM = 20
GROWTH_MAX = 16 * MIB
LABELS = ("fairness_key", "throttle_key")
# Metrics by key, and what they add up to: the number of messages.
SUMS = ("fila.fairness.enqueued", "fila.fairness.throughput", "fila.fairness.acked")
DECISIONS = "fila.throttle.decisions"


def options(parser: argparse.ArgumentParser) -> None:
    about = "of each kind, 200000 or more (1000000)"
    parser.add_argument("--keys", type=int, default=1_000_000, help=about)


def run(chosen: argparse.Namespace) -> None:
    report = Report(f"labels: {chosen.keys:,} fairness keys, as many throttle keys", chosen.json)
    core = Core()
    core.create()
    scraper = Scraper(core)
    warm = resident = messages = 0
    steps = max(2 * WARM, chosen.keys // STEP)
    for step in range(steps):
        messages += work(core, step)
        core.advance(S)
        core.ask(Enqueue(0, []))
        scraper.scrape()
        if step + 1 in (WARM, steps):
            gc.collect()
            warm, resident = resident, resident_bytes()
            report.progress(f"{(step + 1) * STEP:,} keys")
    page = render(scraper.rows)
    limit = core.config.telemetry.max_keys
    series = page.count(b"\n") - page.count(b"\n#")
    most_series = (limit + 1) * SERIES_PER_KEY + SERIES_OF_QUEUES
    growth = resident - warm
    left = growth / ((steps - WARM) * STEP)
    report.add("series on a page", f"{series:,}", f"at most {most_series:,}", series=series)
    most_bytes = most_series * BYTES_PER_SERIES
    report.add("a page", f"{len(page) / KIB:,.0f} KiB", f"at most {most_bytes / KIB:,.0f} KiB")
    report.add(
        "memory, after the first keys",
        f"{growth / MIB:+.1f} MiB, {left:.1f} bytes a key",
        f"at most {GROWTH_MAX // MIB} MiB",
        growth=growth,
    )
    for name, found in scraper.sums.items():
        report.add(f"{name}, added up", f"{found:,}", f"exactly {messages:,}")
    report.show()
    regulars = {f"regular-{number}" for number in range(REGULARS)}
    for label in LABELS:
        keys = scraper.keys(label)
        _hold(len(keys) <= limit + 1 and OTHER in keys, f"{len(keys)} values of {label}")
        _hold(regulars <= keys, f"busy keys without a label: {sorted(regulars - keys)}")
    _hold(series <= most_series and len(page) <= most_bytes, "the page is too large")
    _hold(growth <= GROWTH_MAX, "keys that are gone leave too much behind")
    lost = {name: messages - found for name, found in scraper.sums.items() if found != messages}
    _hold(not lost, f"series do not add up to {messages:,} messages: {lost}")


def _hold(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise SystemExit(f"labels: {otherwise}")


def work(core: Core, step: int) -> int:
    """Let messages of new keys and of regular ones come and go; return how many."""
    names = [f"key-{step * STEP + number}" for number in range(STEP)]
    if step:
        names += [f"regular-{number}" for number in range(REGULARS) for _ in range(OFTEN)]
    core.ask(core.drafts([_message(name) for name in names]))
    found = core.lease(len(names))
    core.ask(acks(found))
    return len(names)


def _message(name: str) -> service.EnqueueRequest:
    return service.EnqueueRequest(queue=QUEUE, fairness_key=name, throttle_keys=[name])


class Scraper:
    """Reads the core again and again, and adds up what each series has grown by."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._counts = Counts()
        self._seen: dict[tuple[str, Labels], int] = {}
        self.sums = dict.fromkeys((*SUMS, DECISIONS), 0)
        self.rows: list[Row] = []

    def scrape(self) -> None:
        core = self._core
        parts = self._counts.read(core.broker.state, core.now().mono_ns)
        self.rows = [row for part in parts for row in part]
        seen = {}
        for name, labels, value in self.rows:
            if name in self.sums and isinstance(value, int):
                seen[name, labels] = value
                before = self._seen.get((name, labels), 0)
                _hold(value >= before, f"{name} of {labels} went back")
                self.sums[name] += value - before
        self._seen = seen

    def keys(self, label: str) -> set[str]:
        return {text for _, labels, _ in self.rows for name, text in labels if name == label}
