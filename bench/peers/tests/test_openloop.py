# SPDX-License-Identifier: AGPL-3.0-only
"""An open loop does not leave out the waits of messages that a stall held back."""

import queue
import time
from collections.abc import Iterator, Sequence

import pytest

from bench.peers.figures import Latencies
from bench.peers.openloop import OpenLoop
from bench.peers.peer import Client, Delivery, Outgoing

STALL_S = 0.5
RATE = 100
COUNT = 50


class Stalling(Client):
    """A queue in memory whose first enqueue takes long."""

    def __init__(self) -> None:
        self._messages: queue.Queue[bytes] = queue.Queue()
        self._is_fresh = True

    def send(self, queue: str, message: Outgoing) -> None:
        if self._is_fresh:
            self._is_fresh = False
            time.sleep(STALL_S)
        self._messages.put(message.payload)

    def deliveries(self, queue: str, window: int) -> Iterator[list[Delivery]]:
        while True:
            yield [Delivery(self._messages.get(), None)]

    def ack(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        pass

    def create(self, queue: str) -> None:
        raise NotImplementedError

    def delete(self, queue: str) -> None:
        raise NotImplementedError

    def produce(self, queue: str, messages: Sequence[Outgoing], window: int) -> None:
        raise NotImplementedError

    def take(self, queue: str, count: int) -> list[Delivery]:
        raise NotImplementedError

    def give_back(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Refusing(Stalling):
    """A broker that refuses everything."""

    def send(self, queue: str, message: Outgoing) -> None:
        raise RuntimeError("the disk is full")


def _spec() -> dict[str, object]:
    return {"queue": "q", "rate": RATE, "messages": COUNT, "bytes": 64}


def _later_than(found: Latencies, part: float) -> float:
    """Milliseconds that all but this part of the messages waited at least."""
    return found.at(part) / 1000


def test_stall_of_one_call_is_a_wait_of_all_that_were_due() -> None:
    """The one sender was held up for half a second, and fifty messages were due in it: half of
    them waited a quarter of a second or longer, however slow the machine is.
    """
    client = Stalling()
    loop = OpenLoop(client, [client], _spec())
    loop.run()
    assert loop.delivered.count == loop.confirmed.count == COUNT
    shortest_ms = STALL_S * 1000 / 2 * 0.9
    assert _later_than(loop.delivered, 50) >= shortest_ms
    assert _later_than(loop.confirmed, 50) >= shortest_ms


def test_error_of_a_sender_ends_the_run() -> None:
    client = Refusing()
    with pytest.raises(RuntimeError, match="the disk is full"):
        OpenLoop(client, [client], _spec()).run()
