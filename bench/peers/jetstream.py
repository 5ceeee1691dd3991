# SPDX-License-Identifier: AGPL-3.0-only
"""NATS JetStream on disk, as it is by default and with a sync before every answer.

The server is built from the Go module proxy at a pinned version, once: a minute or two of a core.
"""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peers.peer import UNDER_WAY, Client, Delivery, Outgoing, Peer, Running
from bench.peers.processes import child, free_port, is_listening, wait_until
from tools.promtool import CACHE

VERSION = "v2.15.2"
CONSUMER = "bench"
WAIT_S = 0.5
TIMEOUT_S = 60
_MODULE = "github.com/nats-io/nats-server/v2"
_MANIFEST = f"module server\n\ngo 1.26.0\n\nrequire {_MODULE} {VERSION}\n"


def nats_server() -> Path:
    """Return the server, building it where it is not in the cache. Raises CalledProcessError."""
    binary = CACHE / "go/bin" / f"nats-server-{VERSION}"
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="nats-", dir=binary.parent) as folder:
            Path(folder, "go.mod").write_text(_MANIFEST)
            built = Path(folder, "nats-server")
            command = ("go", "build", "-mod=mod", "-o", str(built), _MODULE)
            subprocess.run(command, cwd=folder, check=True)
            built.replace(binary)
    return binary


class JetStream(Peer):
    name = "nats"
    title = "NATS JetStream"
    guarantee = (
        "File storage, default `sync_interval` of two minutes: a confirmed message survives the "
        "end of the process, not power loss. Acks are not confirmed. No replica."
    )
    install = "Go; the server is built by this command"
    python_client = "nats-py, publish_async and fetch"
    go_client = "nats.go, PublishAsync and Consume"
    sync_interval = "2m"

    def missing(self) -> str | None:
        if (CACHE / "go/bin" / f"nats-server-{VERSION}").exists() or shutil.which("go"):
            return None
        return "there is no Go to build nats-server with"

    @contextmanager
    def start(self, folder: Path) -> Iterator[Running]:
        port = free_port()
        settings = folder / "nats.conf"
        settings.write_text(
            f'listen: "127.0.0.1:{port}"\n'
            f'jetstream {{ store_dir: "{folder}/data", sync_interval: {self.sync_interval} }}\n'
        )
        log = folder / "nats.log"
        with child([nats_server(), "-c", settings], log) as process:
            wait_until(lambda: is_listening(port), process, log)
            yield Running(f"127.0.0.1:{port}", [process.pid], VERSION.removeprefix("v"))

    def client(self, address: str) -> Client:
        return _Client(address)


class SyncedJetStream(JetStream):
    name = "nats-sync"
    title = "NATS JetStream, synced"
    guarantee = (
        "File storage, `sync_interval: always`: fsync before the confirm, one message at a time. "
        "Acks are not confirmed. No replica."
    )
    sync_interval = "always"


class _Client(Client):
    """The library is made of coroutines; they run one after the other on a loop of its own."""

    def __init__(self, address: str) -> None:
        import nats

        self._loop = asyncio.new_event_loop()
        self._nats: Any = self._run(nats.connect(f"nats://{address}"))
        self._streams: Any = self._nats.jetstream(timeout=TIMEOUT_S)
        self._none_came = nats.errors.TimeoutError
        self._pulls: dict[str, Any] = {}

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    def create(self, queue: str) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType

        self._run(
            self._streams.add_stream(
                name=queue,
                subjects=[queue],
                retention=RetentionPolicy.WORK_QUEUE,
                storage=StorageType.FILE,
            )
        )
        settings = ConsumerConfig(
            durable_name=CONSUMER, ack_policy=AckPolicy.EXPLICIT, max_ack_pending=100_000
        )
        self._run(self._streams.add_consumer(queue, settings))

    def delete(self, queue: str) -> None:
        self._run(self._streams.delete_stream(queue))

    def produce(self, queue: str, messages: Sequence[Outgoing], window: int) -> None:
        self._run(self._produce(queue, messages, window))

    async def _produce(self, queue: str, messages: Sequence[Outgoing], window: int) -> None:
        if window == 1:
            for message in messages:
                await self._streams.publish(queue, message.payload)
            return
        streams = self._nats.jetstream(
            timeout=TIMEOUT_S, publish_async_max_pending=UNDER_WAY * window
        )
        answers = [await streams.publish_async(queue, message.payload) for message in messages]
        await asyncio.gather(*answers)

    async def _pull(self, queue: str) -> Any:
        if queue not in self._pulls:
            bound = self._streams.pull_subscribe_bind(CONSUMER, queue)
            self._pulls[queue] = await bound
        return self._pulls[queue]

    async def _fetch(self, queue: str, count: int, wait_s: float) -> list[Any]:
        try:
            found: list[Any] = await (await self._pull(queue)).fetch(count, timeout=wait_s)
        except self._none_came:
            return []
        return found

    def deliveries(self, queue: str, window: int) -> Iterator[list[Delivery]]:
        while True:
            found = self._run(self._fetch(queue, window, WAIT_S))
            yield [Delivery(each.data, each) for each in found]

    def listen(self, queue: str) -> Iterator[list[Delivery]]:
        """Pushed: the library's pulls are for batches. A stream of work has one consumer."""
        self._run(self._streams.delete_consumer(queue, CONSUMER))
        pushed = self._run(self._streams.subscribe(queue, stream=queue, manual_ack=True))
        while True:
            try:
                found = self._run(pushed.next_msg(timeout=WAIT_S))
            except self._none_came:
                yield []
            else:
                yield [Delivery(found.data, found)]

    def take(self, queue: str, count: int) -> list[Delivery]:
        found = self._run(self._fetch(queue, count, 0.01))
        return [Delivery(each.data, each) for each in found]

    def ack(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        self._run(self._ack([delivery.handle for delivery in deliveries]))

    async def _ack(self, messages: Sequence[Any]) -> None:
        for message in messages:
            await message.ack()

    def consume(self, queue: str, count: int, window: int) -> int:
        return int(self._run(self._consume(queue, count, window)))

    async def _consume(self, queue: str, count: int, window: int) -> int:
        """The next messages are asked for before the last are acked."""
        received = 0
        coming = asyncio.ensure_future(self._fetch(queue, min(window, count), WAIT_S))
        while count > 0:
            found = await coming
            count -= len(found)
            received += sum(len(message.data) for message in found)
            if count > 0:
                coming = asyncio.ensure_future(self._fetch(queue, min(window, count), WAIT_S))
            await self._ack(found)
        await self._settle(queue)
        return received

    def settle(self, queue: str) -> None:
        self._run(self._settle(queue))

    async def _settle(self, queue: str) -> None:
        await self._nats.flush()
        while (await self._streams.stream_info(queue)).state.messages:
            continue  # each look is a round trip, so this is no busy loop

    def give_back(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._run(delivery.handle.nak(delay=0.1))

    def close(self) -> None:
        self._run(self._nats.close())
        self._loop.close()
