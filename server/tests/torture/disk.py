# SPDX-License-Identifier: AGPL-3.0-only
"""A volume that fills up at full speed: the broker refuses, lives, is drained by acks, takes
messages again, and starts on the full volume after a kill.
"""

import random
import threading
import time

import fila
from fila import Client, ConsumeMessage, EnqueueMessage
from server.tests.torture.figures import Figures, Scale
from server.tests.torture.victim import MIB, Victim, folder
from server.tests.torture.volume import Volume, volume

QUEUE = "heap"
PRODUCERS = 4
BATCH, PAYLOAD_BYTES = 40, 64 * 1024
# How long a broker may take to notice, to clean up, to answer: no bar, only an end to the wait.
PATIENCE_S = 40.0
# Small buffers for a small volume, and a floor that one flush of them can step over: whatever an
# operator chooses, the broker keeps back what it needs itself.
SMALL = "[storage]\nwrite_buffer_bytes = 16777216\nmin_free_bytes = 4194304\n"


def run(scale: Scale) -> Figures:
    figures = Figures()
    with folder() as path, volume(path, scale.of(320, 1536) * MIB) as space:
        figures["volume"] = f"{space.kind} of {space.size_bytes // MIB} MiB"
        config = "" if scale.is_long else SMALL
        broker = Victim(path, config=config, environment=space.environment)
        broker.data = space.path / "data"
        try:
            broker.up()
            with Client(broker.address, timeout=PATIENCE_S) as client:
                client.create_queue(QUEUE)
            torture(figures, broker, space, scale.of(1, 3))
        finally:
            broker.close()
    return figures.judged()


def torture(figures: Figures, broker: Victim, space: Volume, rounds: int) -> None:
    kept: set[str] = set()
    for _ in range(rounds):
        with figures.scene("full"):
            fill(figures, broker, space, kept)
        if broker.is_alive():
            with figures.scene("drained"):
                drain(figures, broker, space, kept)
            with figures.scene("full again"):
                fill(figures, broker, space, kept)
        with figures.scene("killed and started while full"):
            restart(figures, broker)
        if not broker.is_alive():
            return
        with figures.scene("drained after the start"):
            drain(figures, broker, space, kept)


def fill(figures: Figures, broker: Victim, space: Volume, kept: set[str]) -> None:
    """Enqueue as fast as the broker takes it until it refuses all that comes."""
    began, before = time.monotonic(), len(kept)
    outcomes: set[str] = set()
    producers = [
        threading.Thread(target=produce, args=(broker.address, kept, outcomes, number))
        for number in range(PRODUCERS)
    ]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()
    stored = (len(kept) - before) * PAYLOAD_BYTES / MIB
    if "MiB/s" not in figures.values:
        figures["stored MiB"] = stored
        figures["MiB/s"] = stored / (time.monotonic() - began)
        figures["free MiB"] = space.free_bytes() / MIB
    if not broker.is_alive():
        code = broker.wait()
        figures.hold(f"it lives, but it ended with {code}: {broker.last_line()}", False)
        return
    figures.hold(f"refused as DISK_FULL, not {sorted(outcomes)}", outcomes == {"DiskFullError"})


def produce(address: str, kept: set[str], outcomes: set[str], number: int) -> None:
    """Enqueue until three batches in a row were refused whole, or the broker is gone."""
    rng = random.Random(number)
    refused = 0
    deadline = time.monotonic() + 2 * PATIENCE_S
    with Client(address, timeout=PATIENCE_S) as client:
        while refused < 3 and time.monotonic() < deadline:
            batch = [
                EnqueueMessage(QUEUE, None, rng.randbytes(PAYLOAD_BYTES)) for _ in range(BATCH)
            ]
            results = client.enqueue_many(batch)
            kept.update(result.message_id for result in results if result.error is None)
            errors = {type(it.error).__name__ for it in results if it.error is not None}
            outcomes |= errors
            refused = refused + 1 if errors and not any(it.error is None for it in results) else 0
            if errors:
                time.sleep(0.3)


def drain(figures: Figures, broker: Victim, space: Volume, kept: set[str]) -> None:
    """Take everything by acks; then there is room again, without a restart."""
    with Client(broker.address, timeout=PATIENCE_S) as client:
        deadline = time.monotonic() + PATIENCE_S
        while client.stats(QUEUE).depth:
            assert time.monotonic() < deadline, f"{client.stats(QUEUE).depth} were not drained"
            acknowledge(client, client.receive(QUEUE, 200, wait_ms=1000), kept)
        figures.hold(f"nothing confirmed is lost, but {len(kept)} are", not kept)
        kept.clear()
        began = time.monotonic()
        while True:
            try:
                kept.add(client.enqueue(QUEUE, None, random.randbytes(PAYLOAD_BYTES)))
                break
            except fila.DiskFullError:
                assert time.monotonic() < began + PATIENCE_S, (
                    f"empty, and still refused with {space.free_bytes() // MIB} MiB free"
                )
                time.sleep(0.2)
        figures["accepts again after s"] = time.monotonic() - began


def acknowledge(client: Client, found: list[ConsumeMessage], kept: set[str]) -> None:
    errors = [error for error in client.ack_many(found) if error is not None]
    assert not errors, f"an ack was refused: {errors[0]}"
    kept -= {message.id for message in found}


def restart(figures: Figures, broker: Victim) -> None:
    if broker.is_alive():
        broker.kill()
    began = time.monotonic()
    broker.up()
    figures["start on the full volume ms"] = (time.monotonic() - began) * 1000
