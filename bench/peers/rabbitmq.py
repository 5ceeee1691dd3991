# SPDX-License-Identifier: AGPL-3.0-only
"""RabbitMQ quorum queues with publisher confirms, as a node of its own that no other can reach."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peers.peer import LISTEN_WINDOW, UNDER_WAY, Client, Delivery, Outgoing, Peer, Running
from bench.peers.processes import child, free_port, is_listening, wait_until

# Debian's own script changes to a user of its own first; this is what it calls.
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
WAIT_S = 0.05
POLL_S = 0.002


class RabbitMQ(Peer):
    name = "rabbitmq"
    title = "RabbitMQ quorum"
    guarantee = (
        "Quorum queue of one member, publisher confirms: fsync of the log before the confirm, "
        "shared by what came meanwhile. Acks are logged, not confirmed. No replica."
    )
    install = "apt-get install rabbitmq-server"
    python_client = "py-amqp, confirms as they come"
    go_client = "amqp091-go, deferred confirms"

    def missing(self) -> str | None:
        if SERVER.exists() and shutil.which("epmd"):
            return None
        return "rabbitmq-server is not installed"

    @contextmanager
    def start(self, folder: Path) -> Iterator[Running]:
        port, mapper_port = free_port(), free_port()
        plugins = folder / "plugins"
        plugins.write_text("[].\n")
        environment = {
            **os.environ,
            "HOME": str(folder),  # Erlang keeps its cookie there
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench-{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_CONFIG_FILE": str(folder / "none"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ("-kernel inet_dist_use_interface {127,0,0,1}"),
        }
        log = folder / "rabbitmq.log"
        # Its own port mapper, in the foreground: else the node would start one and leave it behind.
        mapper = ["epmd", "-port", str(mapper_port), "-address", "127.0.0.1"]
        with (
            child(mapper, folder / "epmd.log") as epmd,
            child([SERVER], log, environment) as process,
        ):
            wait_until(lambda: is_listening(port), process, log)
            yield Running(f"127.0.0.1:{port}", [process.pid, epmd.pid], _version())

    def client(self, address: str) -> Client:
        return _Client(address)


def _version() -> str:
    """The version of Debian's package; the node tells it only at its own start."""
    command = ["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return said.stdout.partition("-")[0]


class _Client(Client):
    def __init__(self, address: str) -> None:
        import amqp

        # Without the extension that lets a broker say it is blocked: for it, the library would
        # look at the socket before each message.
        plain = {"capabilities": {"publisher_confirms": True}}
        self._connection: Any = amqp.Connection(address, client_properties=plain)
        self._connection.connect()
        self._channel: Any = self._connection.channel()
        self._channel.events["basic_ack"].add(self._confirmed)
        self._message = amqp.Message
        self._is_confirming = False
        self._sent = 0
        self._seen = 0
        self._floor = 0
        self._above: set[int] = set()
        self._inbox: list[Any] = []
        self._boxes: dict[str, list[Any]] = {}

    def create(self, queue: str) -> None:
        self._channel.queue_declare(
            queue, durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"}
        )

    def delete(self, queue: str) -> None:
        self._channel.queue_delete(queue)

    def _confirmed(self, number: int, multiple: bool) -> None:
        # Confirms come out of order, some for all up to a number.
        if multiple:
            self._floor = max(self._floor, number)
            self._above = {each for each in self._above if each > self._floor}
        else:
            self._above.add(number)
        self._seen = self._floor + len(self._above)

    def produce(self, queue: str, messages: Sequence[Outgoing], window: int) -> None:
        if not self._is_confirming:
            self._channel.confirm_select()
            self._is_confirming = True
        unconfirmed_max = UNDER_WAY * window if window > 1 else 1
        for message in messages:
            body = self._message(message.payload, delivery_mode=2)
            self._channel.basic_publish(body, routing_key=queue)
            self._sent += 1
            while self._sent - self._seen >= unconfirmed_max:
                self._connection.drain_events()
        while self._seen < self._sent:
            self._connection.drain_events()

    def deliveries(self, queue: str, window: int) -> Iterator[list[Delivery]]:
        self._channel.basic_qos(0, UNDER_WAY * window, False)
        self._channel.basic_consume(queue, callback=self._inbox.append)
        while True:
            try:
                while len(self._inbox) < window:
                    self._connection.drain_events(timeout=WAIT_S)
            except TimeoutError:
                pass
            yield self._emptied()

    def listen(self, queue: str) -> Iterator[list[Delivery]]:
        self._channel.basic_qos(0, UNDER_WAY * LISTEN_WINDOW, False)
        self._channel.basic_consume(queue, callback=self._inbox.append)
        while True:
            try:
                self._connection.drain_events(timeout=WAIT_S)
            except TimeoutError:
                pass
            yield self._emptied()

    def _emptied(self) -> list[Delivery]:
        found, self._inbox[:] = self._inbox[:], []
        return [Delivery(_bytes(each.body), each.delivery_tag) for each in found]

    def take(self, queue: str, count: int) -> list[Delivery]:
        """From a consumer of each queue with so much credit: asking singly (get) is far slower."""
        if queue not in self._boxes:
            box: list[Any] = []
            self._boxes[queue] = box
            self._channel.basic_qos(0, count, False)
            self._channel.basic_consume(queue, callback=box.append)
            wait_s = WAIT_S  # the first messages are on their way
        else:
            wait_s = POLL_S
        box = self._boxes[queue]
        try:
            while len(box) < count:
                self._connection.drain_events(timeout=0 if box else wait_s)
        except TimeoutError:
            pass
        found, box[:] = box[:count], box[count:]
        return [Delivery(_bytes(each.body), each.delivery_tag) for each in found]

    def ack(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        if not self._boxes:
            self._channel.basic_ack(deliveries[-1].handle, multiple=True)
            return
        for delivery in deliveries:  # numbers of several queues are mixed
            self._channel.basic_ack(delivery.handle)

    def give_back(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._channel.basic_reject(delivery.handle, requeue=True)

    def settle(self, queue: str) -> None:
        self._channel.queue_declare(queue, passive=True)

    def close(self) -> None:
        self._connection.close()


def _bytes(body: bytes | str) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body)
