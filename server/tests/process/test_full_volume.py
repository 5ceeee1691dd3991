# SPDX-License-Identifier: AGPL-3.0-only
"""A volume that fills up, and a process that runs out of descriptors: the broker lives on."""

import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fila
from fila import Client, EnqueueMessage
from server.tests.broker_process import COMMAND, BrokerProcess
from server.tests.rpc.wire import eventually
from server.tests.torture.volume import Volume, volume

MIB = 1024 * 1024
VOLUME_BYTES = 160 * MIB
PAYLOAD_BYTES = 20_000


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Volume]:
    with volume(tmp_path, VOLUME_BYTES) as space:
        yield space


@pytest.fixture
def broker(space: Volume, make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    config = f"[storage]\nmin_free_bytes = {8 * MIB}\n"
    broker = make_broker(config=config, environment=space.environment)
    broker.data = space.path / "data"
    broker.start()
    with Client(broker.address, timeout=60) as client:
        client.create_queue("q")
    return broker


def fill(broker: BrokerProcess) -> tuple[set[str], str]:
    """Enqueue as fast as possible until the broker refuses; return what it confirmed, and why."""
    confirmed: set[str] = set()
    refusals: list[str] = []
    strange: list[BaseException] = []

    def produce(seed: int) -> None:
        rng = random.Random(seed)
        try:
            with Client(broker.address, timeout=60) as client:
                while not refusals:
                    batch = [
                        EnqueueMessage("q", None, rng.randbytes(PAYLOAD_BYTES)) for _ in range(20)
                    ]
                    for result in client.enqueue_many(batch):
                        if result.error is None:
                            confirmed.add(result.message_id)
                        elif isinstance(result.error, fila.DiskFullError):
                            refusals.append(str(result.error))
                        else:
                            raise result.error
        except BaseException as error:
            strange.append(error)
            refusals.append("")

    threads = [threading.Thread(target=produce, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not strange, strange
    return confirmed, refusals[0]


def drain(client: Client) -> set[str]:
    """Take everything there is."""
    drained: set[str] = set()
    while messages := client.receive("q", 200):
        assert client.ack_many(messages) == [None] * len(messages)
        drained |= {message.id for message in messages}
    return drained


@pytest.mark.serial
def test_a_full_volume_is_survived_restarted_on_and_drained(broker: BrokerProcess) -> None:
    confirmed, refusal = fill(broker)
    assert len(confirmed) * PAYLOAD_BYTES > VOLUME_BYTES // 4
    assert "MiB free, and enqueues are refused below" in refusal
    assert "8 MiB for acks (storage.min_free_bytes)" in refusal
    broker.kill()
    broker.start()
    with Client(broker.address, timeout=60) as client:
        assert drain(client) == confirmed

        def is_accepted() -> bool:
            try:
                client.enqueue("q")
            except fila.DiskFullError:
                return False
            return True

        # Not for one message only: most of the volume is free again, and the broker knows.
        eventually(lambda: used_bytes(broker) < VOLUME_BYTES // 3 and is_accepted())
    again, _ = fill(broker)
    assert len(again) > len(confirmed) // 2
    assert broker.terminate() == 0


def used_bytes(broker: BrokerProcess) -> int:
    total = 0
    for file in broker.data.iterdir():
        try:
            total += file.stat().st_blocks * 512
        except FileNotFoundError:
            pass  # merged away in between
    return total


@pytest.mark.serial
def test_a_volume_that_others_fill_up_leaves_acks_and_a_restart(
    broker: BrokerProcess, space: Volume
) -> None:
    """The reserve is there by then, and is given up."""
    with Client(broker.address, timeout=60) as client:
        confirmed = {client.enqueue("q", None, random.randbytes(PAYLOAD_BYTES)) for _ in range(500)}
        reserve = broker.data / "RESERVE"
        with (broker.data / "ballast").open("wb") as ballast:
            written = 0
            while space.free_bytes() > 70 * MIB and written < VOLUME_BYTES:
                written += ballast.write(bytes(MIB))
                ballast.flush()
            eventually(reserve.exists)
            while space.free_bytes() > 3 * MIB and written < VOLUME_BYTES:
                written += ballast.write(bytes(MIB))
                ballast.flush()
        eventually(lambda: "is given up for acks" in broker.log())
        assert not reserve.exists()
        messages = client.receive("q", 100)
        assert client.ack_many(messages) == [None] * 100
        confirmed -= {message.id for message in messages}
        with pytest.raises(fila.DiskFullError):
            client.enqueue("q")
    broker.kill()
    broker.start()
    with Client(broker.address, timeout=60) as client:
        assert drain(client) == confirmed
        (broker.data / "ballast").unlink()
        eventually(lambda: "space again" in broker.log())
        client.enqueue("q")
    assert broker.terminate() == 0


def close_all(connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()


@pytest.mark.serial
def test_connections_that_take_all_descriptors_do_not_end_the_broker(
    make_broker: Callable[..., BrokerProcess],
) -> None:
    broker = make_broker(config="[storage]\nwrite_buffer_bytes = 262144\n")
    broker.start(("sh", "-c", 'ulimit -n 128; exec "$@"', "sh", *COMMAND))
    confirmed: list[str] = []
    with Client(broker.address, timeout=60) as client:
        client.create_queue("q")
        host, _, port = broker.address.rpartition(":")
        idle = [socket.create_connection((host, int(port)), timeout=60) for _ in range(200)]
        closing = threading.Timer(3.0, close_all, (idle,))
        closing.start()
        for _ in range(20):
            batch = [EnqueueMessage("q", None, random.randbytes(3000)) for _ in range(50)]
            for result in client.enqueue_many(batch):
                assert result.error is None
                confirmed.append(result.message_id)
        closing.join()
        assert drain(client) == set(confirmed)
    assert broker.terminate() == 0
