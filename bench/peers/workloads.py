# SPDX-License-Identifier: AGPL-3.0-only
"""What is measured: cases, who takes part in each, and how much of it a run of each length does."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.peers.roster import PEERS

WINDOW = 500
PAYLOAD_BYTES = 256


@dataclass(frozen=True)
class Length:
    """How long a run takes: rounds, seconds of each measurement, sizes, rates."""

    name: str
    rounds: int
    seconds: float
    sizes: tuple[int, ...]
    go_rates: tuple[int, ...]
    python_rates: tuple[int, ...]
    latency_seconds: float
    callers: int
    tenant_rounds: int  # fewer: most of what they find is a count
    tenants: Mapping[str, Any]


SMOKE = Length(
    "smoke", 1, 0.05, (64,), (100,), (50,), 0.4, 16, 1,
    {"tenants": 4, "each": 20, "idle": 1, "quiet": 2, "rounds": 1, "seconds": 0.5},
)  # fmt: skip
QUICK = Length(
    "quick", 3, 0.5, (64, 65536), (500,), (200,), 2, 256, 1,
    {"tenants": 20, "each": 40, "idle": 20, "quiet": 8, "rounds": 8, "seconds": 3},
)  # fmt: skip
FULL = Length(
    "full", 5, 3, (64, 1024, 4096, 16384, 65536), (200, 1000, 4000), (200, 1000), 5, 256, 3,
    {"tenants": 50, "each": 100, "idle": 50, "quiet": 20, "rounds": 20, "seconds": 10},
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """Who takes part, under which name, with which settings of its own."""

    peer: str
    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One measurement of several brokers, in turn."""

    name: str
    title: str
    kind: str  # lifecycle, latency, or one of the tenants' workloads
    client: str  # python or go
    settings: Mapping[str, Any]
    entries: Sequence[Entry]
    rounds: int
    roles: Sequence[str] = ("both",)


def cases(length: Length, peers: Sequence[str], clients: Sequence[str]) -> Iterator[Case]:
    """Yield what a run of this length measures, for those who are there."""
    if "python" in clients:
        yield from _python(length, peers)
    if "go" in clients:
        yield from _go(length, peers)
    if "python" in clients:
        yield from _tenants(length, peers)


def _entries(peers: Sequence[str], *more: Entry) -> list[Entry]:
    plain = [Entry(name, PEERS[name].title) for name in peers]
    return [*(entry for entry in more if entry.peer in peers), *plain]


MANY_KEYS = Entry("fila", "Fila, 1,000 keys", {"keys": 1000})
SINGLE = Entry("fila", "Fila, a call per message", {"is_single": True})


def _python(length: Length, peers: Sequence[str]) -> Iterator[Case]:
    base = {"bytes": PAYLOAD_BYTES, "window": WINDOW, "keys": 1, "connections": 1}
    base["is_single"] = False
    entries = _entries(peers, MANY_KEYS, SINGLE)
    title = f"Python, one process, {PAYLOAD_BYTES} B, windows of {WINDOW}"
    yield Case("python", title, "lifecycle", "python", base, entries, length.rounds)
    title = "Python, one producing and one consuming process at once"
    roles, entries = ("produce", "consume"), _entries(peers)
    yield Case("python-pair", title, "lifecycle", "python", base, entries, length.rounds, roles)
    for rate in length.python_rates:
        yield _latency("python", rate, length, peers)


def _go(length: Length, peers: Sequence[str]) -> Iterator[Case]:
    base = {"bytes": PAYLOAD_BYTES, "window": WINDOW, "keys": 1}
    for count, words in ((1, "1 connection"), (8, "8 connections")):
        title = f"Go, {PAYLOAD_BYTES} B, windows of {WINDOW}, {words}"
        settings = {**base, "connections": count}
        entries = _entries(peers, MANY_KEYS)
        yield Case(f"go-{count}", title, "lifecycle", "go", settings, entries, length.rounds)
    for size in length.sizes:
        title = f"Go, {size:,} B, windows of {WINDOW}, 1 connection"
        settings = {**base, "connections": 1, "bytes": size}
        entries = _entries(peers)
        yield Case(f"go-{size}b", title, "lifecycle", "go", settings, entries, length.rounds)
    title = f"Go, a fleet of {length.callers} callers, a connection each, one message per call"
    settings = {**base, "connections": length.callers, "window": 1}
    entries = _entries(peers)
    yield Case("go-fleet", title, "lifecycle", "go", settings, entries, length.rounds)
    for rate in length.go_rates:
        yield _latency("go", rate, length, peers)


def _latency(client: str, rate: int, length: Length, peers: Sequence[str]) -> Case:
    language = {"go": "Go", "python": "Python"}[client]
    settings = {
        "bytes": PAYLOAD_BYTES,
        "rate": rate,
        "messages": max(20, round(rate * length.latency_seconds)),
        "window": 100,
        "connections": 2,
        "keys": 1,
    }
    title = f"{language}, latency at {rate:,} messages/s, {PAYLOAD_BYTES} B"
    name, entries = f"{client}-latency-{rate}", _entries(peers)
    return Case(name, title, "latency", client, settings, entries, length.rounds)


def _tenants(length: Length, peers: Sequence[str]) -> Iterator[Case]:
    own, rounds = dict(length.tenants), length.tenant_rounds
    turns = _recipes(peers, {"fifo": "one queue", "queues": "a queue per tenant, in turn"})
    title = f"A quiet tenant beside {own['tenants']} noisy ones, a worker of 1 ms per message"
    yield Case("quiet", title, "quiet", "python", own, turns, rounds)
    title = "Shares of 8 tenants, weights 1 to 4, all with a backlog"
    settings = {**own, "tenants": 8, "each": 8 * own["rounds"] + 10}
    yield Case("shares", title, "shares", "python", settings, turns, rounds)
    title = "A provider's limit of 50/s, burst 10, two workers; every second message is free of it"
    settings = {"rate": 50, "burst": 10, "workers": 2, "seconds": own["seconds"]}
    settings["each"] = max(100, round(1000 * own["seconds"]))
    limits = _recipes(peers, {"wait": "workers wait", "return": "workers give back"})
    yield Case("limit", title, "limit", "python", settings, limits, rounds)


def _recipes(peers: Sequence[str], recipes: Mapping[str, str]) -> list[Entry]:
    found = []
    for name in peers:
        title = PEERS[name].title
        if name == "fila":
            found.append(Entry(name, title, {"recipe": "keys"}))
        elif name != "nats-sync":  # durability changes nothing of what is measured here
            found += [
                Entry(name, f"{title}, {words}", {"recipe": recipe})
                for recipe, words in recipes.items()
            ]
    return found
