# SPDX-License-Identifier: AGPL-3.0-only
"""What a broker has to offer to be measured: a way to start it, and a Python client for it.

Every peer has a module of its own with a `Peer` and a `Client`. Workloads know only this face.
"""

import abc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers.processes import cpu_s

# Requests that a connection may have under way, so that client and broker work at the same time.
# A client that cannot have more than one has one.
UNDER_WAY = 4
# What a consumer that wants messages as they come asks for at a time.
LISTEN_WINDOW = 100


class Outgoing(NamedTuple):
    """A message to enqueue. Keys, weights and limits are known to Fila alone."""

    payload: bytes
    key: str = ""
    weight: int = 1
    limit: str = ""


class Delivery(NamedTuple):
    """A message that came, and what its client needs to settle it."""

    payload: bytes
    handle: Any


@dataclass
class Running:
    """A broker that runs: where, as which processes, which version."""

    address: str
    pids: list[int]
    version: str

    def cpu_s(self) -> float:
        return cpu_s(self.pids)


class Peer(abc.ABC):
    """A broker, as one configures it for messages that must not be lost."""

    name: str
    title: str
    guarantee: str
    install: str
    python_client: str
    go_client: str
    is_batching = True  # False: its clients send one message per round trip

    @abc.abstractmethod
    def missing(self) -> str | None:
        """What is not installed on this machine, or None."""

    @abc.abstractmethod
    def start(self, folder: Path) -> AbstractContextManager[Running]:
        """Run it on loopback, with all that it stores in this folder."""

    @abc.abstractmethod
    def client(self, address: str) -> "Client":
        """Connect. The library is imported here, so that a measurement needs only its own."""


class Client(abc.ABC):
    """One thread's connection to a broker; every call returns when the broker has answered."""

    @abc.abstractmethod
    def create(self, queue: str) -> None: ...

    @abc.abstractmethod
    def delete(self, queue: str) -> None: ...

    @abc.abstractmethod
    def produce(self, queue: str, messages: Sequence[Outgoing], window: int) -> None:
        """Enqueue them, `window` per request; all are confirmed when this returns."""

    @abc.abstractmethod
    def deliveries(self, queue: str, window: int) -> Iterator[list[Delivery]]:
        """Yield what comes, up to `window` at a time, for ever; an empty list if a while passed."""

    def listen(self, queue: str) -> Iterator[list[Delivery]]:
        """As `deliveries`, but nothing that came waits for more to come."""
        return self.deliveries(queue, 1)

    @abc.abstractmethod
    def take(self, queue: str, count: int) -> list[Delivery]:
        """Up to so many messages that are there now."""

    @abc.abstractmethod
    def ack(self, queue: str, deliveries: Sequence[Delivery]) -> None: ...

    @abc.abstractmethod
    def give_back(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        """Return messages that cannot be handled now, by the way that the broker has for that."""

    @abc.abstractmethod
    def close(self) -> None: ...

    def send(self, queue: str, message: Outgoing) -> None:
        """Enqueue one message, in a call of its own."""
        self.produce(queue, [message], 1)

    def limit(self, name: str, rate: float, burst: int) -> None:
        """Tell the broker a limit, where it knows any."""
        raise NotImplementedError("this broker knows no limits; its consumers have to")

    def send_singly(self, queue: str, messages: Sequence[Outgoing], window: int) -> None:
        """Enqueue them with a call for each, up to `window` calls at a time."""
        raise NotImplementedError("only a client that gathers single calls has this")

    def consume(self, queue: str, count: int, window: int) -> int:
        """Receive and ack so many messages; returns the bytes of their payloads."""
        received = 0
        for found in self.deliveries(queue, min(window, count)):
            if found:
                self.ack(queue, found)
            received += sum(len(delivery.payload) for delivery in found)
            count -= len(found)
            if count <= 0:
                break
        self.settle(queue)
        return received

    def settle(self, queue: str) -> None:  # noqa: B027  (most acks are answered one by one)
        """Return when the broker has seen every ack that was sent without asking for an answer."""
