# SPDX-License-Identifier: AGPL-3.0-only
"""Redis Streams with a consumer group, and an append-only file that is synced before an answer."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peers.peer import LISTEN_WINDOW, Client, Delivery, Outgoing, Peer, Running
from bench.peers.processes import child, free_port, is_listening, wait_until

GROUP = "bench"
FIELD = b"p"
WAIT_MS = 500


class Redis(Peer):
    name = "redis"
    title = "Redis Streams"
    guarantee = (
        "`appendonly yes`, `appendfsync always`: fsync before the answer, once for all commands "
        "of a turn of its loop. Acked messages are removed (XACK and XDEL). No replica."
    )
    install = "apt-get install redis-server"
    python_client = "redis-py with hiredis, pipelines"
    go_client = "go-redis, pipelines"

    def missing(self) -> str | None:
        return None if shutil.which("redis-server") else "redis-server is not installed"

    @contextmanager
    def start(self, folder: Path) -> Iterator[Running]:
        port = free_port()
        settings = {
            "bind": "127.0.0.1",
            "port": str(port),
            "dir": str(folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "daemonize": "no",
        }
        options = [word for name, value in settings.items() for word in (f"--{name}", value)]
        said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True)
        version = said.stdout.partition("v=")[2].partition(" ")[0]
        log = folder / "redis.log"
        with child(["redis-server", *options], log) as process:
            wait_until(lambda: is_listening(port), process, log)
            yield Running(f"127.0.0.1:{port}", [process.pid], version)

    def client(self, address: str) -> Client:
        return _Client(address)


class _Client(Client):
    def __init__(self, address: str) -> None:
        import redis

        host, _, port = address.partition(":")
        # The second protocol is the one whose answers have the same shape in every version.
        self._redis: Any = redis.Redis(host, int(port), protocol=2)

    def create(self, queue: str) -> None:
        self._redis.xgroup_create(queue, GROUP, "0", mkstream=True)

    def delete(self, queue: str) -> None:
        self._redis.delete(queue)

    def produce(self, queue: str, messages: Sequence[Outgoing], window: int) -> None:
        for start in range(0, len(messages), window):
            pipeline = self._redis.pipeline(transaction=False)
            for message in messages[start : start + window]:
                pipeline.xadd(queue, {FIELD: message.payload})
            pipeline.execute()

    def deliveries(self, queue: str, window: int) -> Iterator[list[Delivery]]:
        while True:
            yield self._read(queue, window, WAIT_MS)

    def listen(self, queue: str) -> Iterator[list[Delivery]]:
        return self.deliveries(queue, LISTEN_WINDOW)

    def take(self, queue: str, count: int) -> list[Delivery]:
        return self._read(queue, count, None)

    def _read(self, queue: str, count: int, block_ms: int | None) -> list[Delivery]:
        found = self._redis.xreadgroup(GROUP, "one", {queue: ">"}, count=count, block=block_ms)
        return [Delivery(fields[FIELD], number) for _, rows in found for number, fields in rows]

    def ack(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        numbers = [delivery.handle for delivery in deliveries]
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.xack(queue, GROUP, *numbers)
        pipeline.xdel(queue, *numbers)
        pipeline.execute()

    def give_back(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        """A stream has no way back; the message is added again, at the end."""
        self.produce(queue, [Outgoing(each.payload) for each in deliveries], len(deliveries))
        self.ack(queue, deliveries)

    def close(self) -> None:
        self._redis.close()
