# SPDX-License-Identifier: AGPL-3.0-only
"""The work that Fila is for, and what one does about it with brokers that know no tenants.

Recipes: "fifo" is one queue for everybody, "queues" a queue for each tenant and a consumer that
visits them in turn; for limits, "wait" is a consumer that sleeps until its own bucket allows the
next call, and "return" one that gives back what it may not do now. Fila's own recipe is "keys".
"""

import time
from typing import Any

from bench.peers.figures import overshoot, share_error, spread
from bench.peers.peer import Client, Outgoing, Peer

QUIET = "quiet"
LIMITED = b"limited"
PROVIDER = "provider"
PAYLOAD_BYTES = 256
WINDOW = 500
TAKEN = 10
WORK_S = 0.001  # what a message costs its worker
EVERY = 50  # deliveries between two messages of the quiet tenant


def queue_of(base: str, recipe: str, tenant: str) -> str:
    return f"{base}-{tenant}" if recipe == "queues" else base


def queues(spec: dict[str, Any]) -> list[str]:
    """The queues that a recipe needs; who starts the measurement creates and deletes them."""
    if spec["recipe"] != "queues":
        return [spec["queue"]]
    names = [tenant for tenant, _ in _tenants(spec)]
    if spec["what"] == "quiet":
        names += [QUIET, *(f"idle-{number}" for number in range(spec["idle"]))]
    return [queue_of(spec["queue"], "queues", name) for name in names]


def _tenants(spec: dict[str, Any]) -> list[tuple[str, int]]:
    """Names and weights."""
    return [
        (f"tenant-{number}", 1 + number % 4 if spec["what"] == "shares" else 1)
        for number in range(spec["tenants"])
    ]


class Visitor:
    """Takes messages by a recipe: from one queue, or from each in turn, by weight."""

    def __init__(self, client: Client, spec: dict[str, Any]) -> None:
        self._client = client
        self._queues = queues(spec)
        self._weights = [weight for _, weight in _tenants(spec)]
        self._next = 0
        self.calls = 0

    def take(self) -> tuple[str, list[Any]]:
        """The next messages, and the queue that they are from; there may be none in it."""
        self.calls += 1
        if len(self._queues) == 1:
            return self._queues[0], self._client.take(self._queues[0], TAKEN)
        number = self._next
        self._next = (number + 1) % len(self._queues)
        weight = self._weights[number] if number < len(self._weights) else 1
        return self._queues[number], self._client.take(self._queues[number], weight)


def _fill(client: Client, spec: dict[str, Any]) -> None:
    """A backlog, one tenant after the other."""
    for tenant, weight in _tenants(spec):
        payload = tenant.encode().ljust(PAYLOAD_BYTES)
        messages = [Outgoing(payload, tenant, weight)] * spec["each"]
        client.produce(queue_of(spec["queue"], spec["recipe"], tenant), messages, WINDOW)


def quiet(peer: Peer, client: Client, spec: dict[str, Any]) -> dict[str, Any]:
    """How long a lone tenant's messages wait while others have a backlog and one worker is busy."""
    _fill(client, spec)
    visitor = Visitor(client, spec)
    sender = peer.client(spec["address"])
    target = queue_of(spec["queue"], spec["recipe"], QUIET)
    total = spec["tenants"] * spec["each"] + spec["quiet"]
    sent: list[tuple[int, float]] = []
    waits_s: list[float] = []
    places: list[float] = []
    seen = 0
    began = time.perf_counter()
    while seen < total:
        if len(sent) < spec["quiet"] and seen >= len(sent) * EVERY:
            sender.send(target, Outgoing(QUIET.encode().ljust(PAYLOAD_BYTES), QUIET))
            sent.append((seen, time.perf_counter()))
        queue, found = visitor.take()
        for delivery in found:
            seen += 1
            if delivery.payload.startswith(QUIET.encode()):
                after, at = sent[len(places)]
                places.append(seen - after)
                waits_s.append(time.perf_counter() - at)
            time.sleep(WORK_S)
        if found:
            client.ack(queue, found)
    took_s = time.perf_counter() - began
    sender.close()
    return {
        "place": spread(places).middle,
        "place_most": max(places),
        "wait_s": spread(waits_s).middle,
        "wait_most_s": max(waits_s),
        "calls_per_message": visitor.calls / total,
        "rate": total / took_s,
    }


def shares(peer: Peer, client: Client, spec: dict[str, Any]) -> dict[str, Any]:
    """The largest error of a weighted share over whole rounds, all tenants with a backlog."""
    _fill(client, spec)
    visitor = Visitor(client, spec)
    weights = dict(_tenants(spec))
    window = sum(weights.values()) * spec["rounds"]
    served = dict.fromkeys(weights, 0)
    seen = 0
    while seen < window:
        queue, found = visitor.take()
        for delivery in found[: window - seen]:
            served[delivery.payload.rstrip().decode()] += 1
            seen += 1
        if found:
            client.ack(queue, found)
    return {"share_error": share_error(served, weights)}


class Bucket:
    """A consumer's own part of a limit."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._at = burst, time.monotonic()

    def wait_s(self) -> float:
        """Take a token and return 0, or return how long until there is one."""
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._rate


class Worker:
    """One of several consumers of a queue in which every second message calls a limited provider.

    A peer's workers share the limit by halves, because they do not know of each other; Fila's take
    what they are given.
    """

    def __init__(self, client: Client, spec: dict[str, Any]) -> None:
        self._client = client
        self._spec = spec
        workers = spec["workers"]
        self._bucket = Bucket(spec["rate"] / workers, spec["burst"] / workers)
        self.called: list[float] = []
        self.free = 0
        self.free_until = 0.0
        self.returned = 0

    def work(self) -> None:
        queue, recipe = self._spec["queue"], self._spec["recipe"]
        done, refused = [], []
        for delivery in self._client.take(queue, TAKEN):
            if delivery.payload.startswith(LIMITED):
                if recipe == "wait":
                    while wait_s := self._bucket.wait_s():
                        time.sleep(wait_s)
                elif recipe == "return" and self._bucket.wait_s():
                    refused.append(delivery)
                    continue
                self.called.append(time.monotonic())
            else:
                self.free += 1
                self.free_until = time.monotonic()
            time.sleep(WORK_S)
            done.append(delivery)
        self.returned += len(refused)
        if refused:  # first: an ack may mean all messages up to one
            self._client.give_back(queue, refused)
        if done:
            self._client.ack(queue, done)


def limit(peer: Peer, client: Client, spec: dict[str, Any]) -> dict[str, Any]:
    """Calls beyond a provider's limit, how much of it was used, and what it did to the others."""
    rate, burst = spec["rate"], spec["burst"]
    if spec["recipe"] == "keys":
        client.limit(PROVIDER, rate, burst)
    pair = [
        Outgoing(LIMITED.ljust(PAYLOAD_BYTES), "tenant", 1, PROVIDER),
        Outgoing(b"free".ljust(PAYLOAD_BYTES), "tenant"),
    ]
    client.produce(spec["queue"], pair * spec["each"], WINDOW)
    clients = [peer.client(spec["address"]) for _ in range(spec["workers"])]
    workers = [Worker(each, spec) for each in clients]
    began = time.monotonic()
    while time.monotonic() < began + spec["seconds"]:
        for worker in workers:
            worker.work()
    took_s = time.monotonic() - began
    for each in clients:
        each.close()
    called = sorted(at for worker in workers for at in worker.called)
    free = sum(worker.free for worker in workers)
    free_s = max(worker.free_until for worker in workers) - began if free else took_s
    return {
        "overshoot": overshoot(called, rate, burst),
        "used": len(called) / (rate * took_s + burst),
        "free_per_s": free / free_s,
        "returned_per_call": sum(worker.returned for worker in workers) / max(1, len(called)),
    }
