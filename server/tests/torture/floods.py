# SPDX-License-Identifier: AGPL-3.0-only
"""Clients that do their worst with calls that are allowed: huge batches, administration of a huge
queue, everything due at once. Every call is answered, and a neighbour's waits are printed as a
ratio to its idle ones. Ratios are measured on whatever machine this is, so they are never judged.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import fila
from fila import Client, EnqueueMessage
from server.tests.torture.figures import Figures, Scale
from server.tests.torture.neighbour import QUEUE as NEIGHBOURS
from server.tests.torture.neighbour import Neighbour, neighbour
from server.tests.torture.victim import MIB, Victim, victim

BIG, BATCHES = "big", "batches"
CLIENTS = 16
IDLE_S = 2.0
DEADLINE_S = 120.0
# Refusals under load are answers: the caller knows that nothing was done.
REFUSALS = (fila.ResourceExhaustedError,)


def run(scale: Scale) -> Figures:
    figures = Figures()
    with figures.scene("floods"), victim() as broker:
        with Client(broker.address, timeout=DEADLINE_S) as client:
            client.create_queue(NEIGHBOURS)
            rate = fill(client, scale)
            with neighbour(broker.address) as beside:
                spans = inflict(figures, broker, client, scale, rate)
        ratios(figures, beside, spans)
        figures["peak MiB"] = broker.peak_mib()
        figures.hold(f"the neighbour is answered: {beside.errors[:1]}", not beside.errors)
        figures.hold("the broker has no defect", "Traceback" not in broker.log())
        figures.hold("it stops cleanly", broker.terminate() == 0)
    return figures.judged()


Spans = dict[str, tuple[float, float]]


def ratios(figures: Figures, beside: Neighbour, spans: Spans) -> None:
    idle = beside.p50_ms(*spans["idle"])
    figures["idle p50 ms"] = idle
    for name, span in spans.items():
        if name != "idle" and idle:
            p50, worst = beside.p50_ms(*span), beside.worst_ms(*span)
            figures[name] = f"x {p50 / idle:.1f} (worst {worst:,.0f} ms)"


def inflict(figures: Figures, broker: Victim, client: Client, scale: Scale, rate: float) -> Spans:
    """One flood after the other; return when each was, on the monotonic clock."""
    spans: Spans = {}

    @contextmanager
    def span(name: str) -> Iterator[None]:
        began = time.monotonic()
        with figures.scene(name):
            yield
        spans[name] = began, time.monotonic()

    with span("idle"):
        time.sleep(IDLE_S)
    with span("batches"):
        batches(broker.address, client, scale)
    for name, look in LOOKS.items():
        with span(name):
            for _ in range(scale.of(3, 20)):
                look(client)
    for term in ("delay_ms", "ttl_ms"):
        count = scale.of(30_000, 300_000)
        gather(client, term, count, rate)
        with span(term.removesuffix("_ms")):
            due(client, term, count)
    with span("redrive"):
        client.redrive(f"{BIG}.dlq", error_contains="nothing says this")
        client.redrive(f"{BIG}.dlq")
    with span("purge"):
        client.purge(BIG)
        client.delete_queue(BIG)
    return spans


# --- The huge queue -------------------------------------------------------------------------------


def fill(client: Client, scale: Scale) -> float:
    """Make the huge queue and its dead letters; return how many messages were stored per second."""
    count, keys = scale.of(100_000, 1_000_000), scale.of(10_000, 100_000)
    client.create_queue(BIG, max_attempts=1, visibility_timeout_ms=600_000)
    letters = scale.of(5000, 100_000)
    enqueue(client, BIG, letters, 100)
    for _ in range(0, letters, 5000):
        found = client.receive(BIG, 5000, wait_ms=10_000)
        assert client.nack_many(found, "provider said no") == [None] * len(found)
    began = time.monotonic()
    enqueue(client, BIG, count, keys)
    return count / (time.monotonic() - began)


def enqueue(client: Client, queue: str, count: int, keys: int, **terms: int) -> None:
    for start in range(0, count, 5000):
        batch = [
            EnqueueMessage(queue, None, b"x", f"tenant-{n % keys}", **terms)  # type: ignore[arg-type]
            for n in range(start, min(count, start + 5000))
        ]
        for result in client.enqueue_many(batch):
            result.unwrap()


def _explain(client: Client) -> None:
    page = client.peek(BIG, 1)
    client.explain(BIG, message_id=page.messages[0].message.id)
    client.explain(BIG, fairness_key="tenant-7")


def _peek(client: Client) -> None:
    page = client.peek(BIG, 1000)
    client.peek(BIG, 1000, from_position=page.end_position // 2)
    client.peek(BIG, 1000, fairness_key="nobody")


LOOKS: dict[str, Callable[[Client], Any]] = {
    "stats": lambda client: client.stats(BIG),
    "explain": _explain,
    "peek": _peek,
}


# --- Many large batches ---------------------------------------------------------------------------


def batches(address: str, client: Client, scale: Scale) -> None:
    """Clients that each send batches of 15 MiB; all of them get an answer for every message."""
    client.create_queue(BATCHES)
    payload = bytes(100 * 1024)
    batch = [EnqueueMessage(BATCHES, None, payload)] * (15 * MIB // len(payload))
    answers: list[int] = []
    failures: list[str] = []

    def send() -> None:
        with Client(address, timeout=DEADLINE_S) as sender:
            for _ in range(scale.of(2, 12)):
                results = sender.enqueue_many(batch)
                answers.append(len(results))
                errors = [it.error for it in results if it.error is not None]
                failures.extend(repr(it) for it in errors if not isinstance(it, REFUSALS))

    senders = [threading.Thread(target=send) for _ in range(CLIENTS)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    expected = CLIENTS * scale.of(2, 12) * len(batch)
    assert sum(answers) == expected, f"{expected - sum(answers)} messages were never answered"
    assert not failures, f"{len(failures)} were not stored, such as {failures[0]}"
    client.delete_queue(BATCHES)


# --- Everything due at once -----------------------------------------------------------------------


def gather(client: Client, term: str, count: int, rate: float) -> None:
    """Enqueue messages whose delays or times to live end at one moment, into a queue of that name;
    return shortly before.
    """
    client.create_queue(term)
    moment = time.monotonic() + 1.5 * count / rate + 1  # when the last one has been stored
    for _ in range(0, count, 5000):
        left_ms = max(1, int((moment - time.monotonic()) * 1000))
        enqueue(client, term, 5000, 1000, **{term: left_ms})
    time.sleep(max(0.0, moment - time.monotonic() - 0.2))


def due(client: Client, term: str, count: int) -> None:
    """Wait until delayed messages have come, or those with a time to live have gone."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        stats = client.stats(term)
        if stats.delayed == 0 and stats.depth == (0 if term == "ttl_ms" else count):
            return
        assert time.monotonic() < deadline, f"{stats.delayed} delayed, {stats.depth} waiting"
        time.sleep(0.1)
