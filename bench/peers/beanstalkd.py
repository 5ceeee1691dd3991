# SPDX-License-Identifier: AGPL-3.0-only
"""beanstalkd with its binlog, synced at every write. Its protocol has no batches."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peers.peer import Client, Delivery, Outgoing, Peer, Running
from bench.peers.processes import child, free_port, is_listening, wait_until

LEASE_S = 600
BODY_BYTES_MAX = 1 << 20  # 65,535 unless told, one byte short of the largest message here


class Beanstalkd(Peer):
    name = "beanstalkd"
    title = "beanstalkd"
    guarantee = (
        "`-b DIR -f0`: binlog with an fsync at every write, before the answer, one message at a "
        "time. No replica."
    )
    install = "apt-get install beanstalkd"
    python_client = "greenstalk, one message per round trip"
    go_client = "go-beanstalk, one message per round trip"
    is_batching = False

    def missing(self) -> str | None:
        return None if shutil.which("beanstalkd") else "beanstalkd is not installed"

    @contextmanager
    def start(self, folder: Path) -> Iterator[Running]:
        port = free_port()
        command = ["beanstalkd", "-b", str(folder), "-f0", "-l", "127.0.0.1", "-p", str(port)]
        command += ["-z", str(BODY_BYTES_MAX)]
        said = subprocess.run(["beanstalkd", "-v"], capture_output=True, text=True)
        log = folder / "beanstalkd.log"
        with child(command, log) as process:
            wait_until(lambda: is_listening(port), process, log)
            yield Running(f"127.0.0.1:{port}", [process.pid], said.stdout.split()[-1])

    def client(self, address: str) -> Client:
        return _Client(address)


class _Client(Client):
    def __init__(self, address: str) -> None:
        import greenstalk

        host, _, port = address.partition(":")
        self._connection: Any = greenstalk.Client((host, int(port)), encoding=None)
        self._timed_out = greenstalk.TimedOutError
        self._used = ""
        self._watched = "default"

    def create(self, queue: str) -> None:
        """A tube is there as soon as somebody names it."""

    def delete(self, queue: str) -> None:
        while left := self.take(queue, 100):
            self.ack(queue, left)

    def produce(self, queue: str, messages: Sequence[Outgoing], window: int) -> None:
        if self._used != queue:
            self._connection.use(queue)
            self._used = queue
        for message in messages:
            self._connection.put(message.payload, ttr=LEASE_S)

    def deliveries(self, queue: str, window: int) -> Iterator[list[Delivery]]:
        self._watch(queue)
        while True:
            yield self._reserve(1)

    def take(self, queue: str, count: int) -> list[Delivery]:
        self._watch(queue)
        taken: list[Delivery] = []
        while len(taken) < count and (found := self._reserve(0)):
            taken += found
        return taken

    def _watch(self, queue: str) -> None:
        if self._watched != queue:
            self._connection.watch(queue)
            self._connection.ignore(self._watched)
            self._watched = queue

    def _reserve(self, wait_s: int) -> list[Delivery]:
        try:
            found = self._connection.reserve(timeout=wait_s)
        except self._timed_out:
            return []
        return [Delivery(found.body, found)]

    def ack(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._connection.delete(delivery.handle)

    def give_back(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        """Released with the shortest delay that the protocol has."""
        for delivery in deliveries:
            self._connection.release(delivery.handle, delay=1)

    def close(self) -> None:
        self._connection.close()
