# SPDX-License-Identifier: AGPL-3.0-only
"""Thousands of connections and streams, and clients that speak HTTP/2 to do harm: whoever is served
goes on being served, the store goes on storing, and memory stays under a bound.
"""

import itertools
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from fila import Client, EnqueueMessage
from fila.v1 import service_pb2
from server.tests.rpc.wire import eventually
from server.tests.torture import http2
from server.tests.torture.figures import Figures, Scale
from server.tests.torture.http2 import Connection, frame, grpc_message
from server.tests.torture.neighbour import QUEUE, neighbour
from server.tests.torture.victim import MIB, Victim, victim

KEY = "torture-torture-torture-torture"
# A small write buffer, so that the store opens files meanwhile.
CONFIG = f'[auth]\nbootstrap_apikey = "{KEY}"\n[storage]\nwrite_buffer_bytes = 65536\n'
CONSUME, ENQUEUE, RECEIVE = (
    f"/fila.v1.FilaService/{it}" for it in ("Consume", "Enqueue", "Receive")
)
BULK, STREAMED = "bulk", "streamed"
# An empty broker holds some 90 MiB. Nothing here brings a message, so this is generous.
BOUND_MIB = 512
# A broker that is slow to take a flood ends it, too.
FLOOD_S = 60.0


def run(scale: Scale) -> Figures:
    figures = Figures()
    most = raise_own_limit()
    figures["bound MiB"] = BOUND_MIB
    for scene in SCENES:
        soft, hard = scene.files
        limits = min(soft, most), min(hard, most)
        with figures.scene(scene.name), victim(config=CONFIG, descriptors=limits) as broker:
            inflict(figures, scene, broker, scale)
    return figures.judged()


def raise_own_limit() -> int:
    """Have as many files open as may be, and return how many that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Scene(NamedTuple):
    """An attack, which says what it does and lasts until the end of its block, and the limits of
    open files, soft and hard, that the broker is started with.
    """

    name: str
    attack: Callable[[Victim, Scale], AbstractContextManager[str]]
    files: tuple[int, int] = 1024, 1024 * 1024  # what a login and a service get today


def inflict(figures: Figures, scene: Scene, broker: Victim, scale: Scale) -> None:
    """Attack a broker while it serves a neighbour and stores what another client sends."""
    with Client(broker.address, api_key=KEY, timeout=60) as client:
        client.create_queue(QUEUE)
        client.create_queue(BULK)
        with neighbour(broker.address, KEY) as beside, scene.attack(broker, scale) as did:
            figures[scene.name] = did
            results = client.enqueue_many([EnqueueMessage(BULK, None, bytes(1000))] * 3000)
            errors = [broker.told(str(it.error)) for it in results if it.error is not None]
            figures.hold(f"others are served, but got {errors[:1]}", not errors)
        assert broker.is_alive(), f"it ended: {broker.last_line()}"
        peak = broker.peak_mib()
        figures[f"{scene.name} MiB"] = peak
        figures.hold(f"memory of {peak} MiB is under {BOUND_MIB}", peak < BOUND_MIB)
        wrongs = [broker.told(error) for error in beside.errors]
        figures.hold(f"the neighbour is served, but got {wrongs[:1]}", not wrongs)
        figures.hold("the broker has no defect", "Traceback" not in broker.log())
    figures.hold("it stops cleanly", broker.terminate() == 0)


# --- Attacks --------------------------------------------------------------------------------------


@contextmanager
def idle(broker: Victim, scale: Scale) -> Iterator[str]:
    """A third never speaks, a third only greets, a third shows a key, is served, and stays."""
    count = min(scale.of(1100, 5000), resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100)
    receive = grpc_message(service_pb2.ReceiveRequest(queue=BULK).SerializeToString())
    with held() as connections:
        for number in range(count):
            try:
                connections.append(Connection(broker.address, greet=number % 3 != 0))
                if number % 3 == 2:
                    connections[-1].open(RECEIVE, receive, api_key=KEY)
            except OSError:
                continue  # refused, which is what a limit is for
        time.sleep(1)
        left = sum(not connection.is_closed() for connection in connections)
        yield f"{count}, {left} left, {broker.open_files()} descriptors"


@contextmanager
def streams(broker: Victim, scale: Scale) -> Iterator[str]:
    """Consume streams that wait, then vanish all at once."""
    count, each = scale.of(2000, 9000), 200
    consume = grpc_message(
        service_pb2.ConsumeRequest(queue=STREAMED, max_in_flight=1).SerializeToString()
    )
    with Client(broker.address, api_key=KEY, timeout=60) as client, held() as connections:
        client.create_queue(STREAMED)

        def are_open(wanted: int) -> bool:
            for connection in connections:
                connection.read(0.001)  # it is asked whether it is still there
            return client.stats(STREAMED).active_consumers == wanted

        for _ in range(count // each):
            connections.append(Connection(broker.address))
            for _ in range(each):
                connections[-1].open(CONSUME, consume, api_key=KEY)
        try:
            eventually(lambda: are_open(count), 20)
        except AssertionError:
            missing = count - client.stats(STREAMED).active_consumers
            raise AssertionError(f"{missing} of {count} streams were not opened") from None
        yield f"{count}"
        for connection in connections:
            connection.close()
        connections.clear()
        eventually(lambda: are_open(0))


@contextmanager
def resets(broker: Victim, scale: Scale) -> Iterator[str]:
    """Calls that are reset as soon as they are made: HEADERS, RST_STREAM, again."""
    each = 100
    reset = http2.CANCEL.to_bytes(4, "big")

    def bursts() -> Iterator[bytes]:
        for first in range(1, 20_000, 2 * each):
            burst = b""
            for stream in range(first, first + 2 * each, 2):
                burst += Connection.opening(stream, ENQUEUE, None, KEY)
                burst += frame(http2.RST_STREAM, 0, stream, reset)
            yield burst

    done, made = flooded(broker, bursts, scale.of(20_000, 400_000) // each)
    yield f"{done * each} in {made} connections"


@contextmanager
def pings(broker: Victim, scale: Scale) -> Iterator[str]:
    """Pings without end, and settings, which have to be acknowledged too."""
    each = 500
    burst = frame(http2.PING, 0, 0, bytes(8)) * each + frame(http2.SETTINGS, 0, 0) * each
    count = scale.of(50_000, 1_000_000) // each
    done, made = flooded(broker, lambda: itertools.repeat(burst), count)
    yield f"{done * each} in {made} connections"


def flooded(broker: Victim, bursts: Callable[[], Iterator[bytes]], count: int) -> tuple[int, int]:
    """Send so many bursts, in as many connections as it takes, or as many as FLOOD_S allows; return
    how many of each there were.
    """
    made = done = 0
    deadline = time.monotonic() + FLOOD_S
    while done < count and time.monotonic() < deadline:
        made += 1
        with held() as connections:
            connections.append(Connection(broker.address))
            for burst in itertools.islice(bursts(), count - done):
                done += 1
                try:
                    connections[0].send(burst)
                    connections[0].discard()
                except OSError:
                    break  # cut off
                if time.monotonic() > deadline:
                    break
    return done, made


@contextmanager
def bodies(broker: Victim, scale: Scale) -> Iterator[str]:
    """Requests whose bodies are almost there, and never end."""
    body = grpc_message(bytes(15 * MIB))[:-1]
    sent = 0
    deadline = time.monotonic() + FLOOD_S
    with held() as connections:
        while len(connections) < scale.of(40, 200) and time.monotonic() < deadline:
            connections.append(Connection(broker.address))
            try:
                stream = connections[-1].open(ENQUEUE, None, api_key=KEY)
                sent += connections[-1].pour(stream, body, 5)
            except OSError:
                continue  # cut off: that is one way to stay under a bound
        yield f"{len(connections)} of {sent // MIB} MiB in all"


@contextmanager
def promises(broker: Victim, scale: Scale) -> Iterator[str]:
    """Requests that are announced, small ones and large ones, and of which little comes."""
    each = 400
    with held() as connections:
        for _ in range(scale.of(4, 20)):
            connections.append(Connection(broker.address))
            for number in range(each):
                size = 15 * MIB if number % 20 == 0 else 250_000
                stream = connections[-1].open(ENQUEUE, None, api_key=KEY)
                connections[-1].pour(stream, grpc_message(bytes(size))[:100], 5)
        yield f"{len(connections) * each} of {100 * each * len(connections) // 1000} kB in all"


@contextmanager
def loris(broker: Victim, scale: Scale) -> Iterator[str]:
    """Greetings and headers that come byte by byte."""
    count, rounds = scale.of(300, 2000), scale.of(10, 60)
    greeting = http2.PREFACE + frame(http2.SETTINGS, 0, 0)
    words = greeting + Connection.opening(1, ENQUEUE, None, KEY)
    with held() as connections:
        for number in range(count):
            connections.append(Connection(broker.address, greet=False))
            if number % 2:
                connections[-1].send(greeting)
        for at in range(rounds):
            for number, connection in enumerate(connections):
                start = at + len(greeting) * (number % 2)
                try:
                    connection.send(words[start : start + 1])
                except OSError:
                    pass
            time.sleep(0.3)
        left = sum(not connection.is_closed() for connection in connections)
        yield f"{count}, {left} left"


@contextmanager
def held() -> Iterator[list[Connection]]:
    """A list of connections that are closed at the end of the block."""
    connections: list[Connection] = []
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


SCENES = (
    Scene("idle", idle, (256, 8192)),
    Scene("idle at the limit", idle, (512, 512)),
    Scene("streams", streams),
    Scene("resets", resets),
    Scene("pings", pings),
    Scene("bodies", bodies),
    Scene("promises", promises),
    Scene("loris", loris),
)
