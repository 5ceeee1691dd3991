# SPDX-License-Identifier: AGPL-3.0-only
"""A broker on a disk that fails: the right status, a clear end, and nothing confirmed is lost."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import fila
from fila import Client
from server.tests.broker_process import BrokerProcess, run_to_end
from server.tests.rpc.wire import eventually

MakeBroker = Callable[..., BrokerProcess]


class FaultyBroker:
    """A broker whose disk can be made to fail."""

    def __init__(self, make_broker: MakeBroker, faultfs: Path, match: str = ".log") -> None:
        self.broker = make_broker()
        self.armed = self.broker.directory / "armed"
        self.broker.environment = {
            "LD_PRELOAD": str(faultfs),
            "FAULT_MATCH": match,
            "FAULT_ARMED": str(self.armed),
        }
        self.broker.start()
        self.client = Client(self.broker.address, timeout=60)
        self.client.create_queue("q")
        self.confirmed = {self.client.enqueue("q") for _ in range(20)}

    def arm(self, fault: str) -> None:
        self.armed.write_text(fault)

    def disarm(self) -> None:
        self.armed.unlink()

    def last_line(self) -> str:
        return self.broker.log().splitlines()[-1]

    def check_after_restart(self) -> None:
        """Everything confirmed is there, and the broker is as good as new."""
        self.client.close()
        self.broker.start()
        with Client(self.broker.address, timeout=60) as client:
            messages = client.receive("q", 1000)
            assert {message.id for message in messages} >= self.confirmed
            assert client.ack_many(messages) == [None] * len(messages)
            client.enqueue("q")
        assert self.broker.terminate() == 0


@pytest.fixture
def faulty(make_broker: MakeBroker, faultfs: Path) -> FaultyBroker:
    return FaultyBroker(make_broker, faultfs)


@pytest.mark.parametrize(
    ("fault", "text"),
    [("f", "the disk failed; check the disk"), ("w", "the disk is full; free some space")],
)
def test_a_failing_disk_ends_the_broker_and_loses_nothing(
    faulty: FaultyBroker, fault: str, text: str
) -> None:
    outcomes: list[str] = []

    def produce() -> None:
        try:
            while True:
                faulty.confirmed.add(faulty.client.enqueue("q"))
        except fila.FilaError as error:
            outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=produce) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(faulty.confirmed) > 50)
    faulty.arm(fault)
    assert faulty.broker.wait() == 1
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a caller was left without an answer"
    assert "StorageFailedError" in outcomes
    # Later calls find the broker gone, or going: gRPC cancels calls that come while it stops.
    assert set(outcomes) <= {"StorageFailedError", "UnavailableError", "CancelledError"}
    line = faulty.last_line()
    assert line.startswith(f"fila-server: {faulty.broker.data}: ") and text in line
    assert line.endswith("restart to recover from disk")
    faulty.disarm()
    faulty.check_after_restart()


def test_consumers_learn_that_the_store_failed(faulty: FaultyBroker) -> None:
    consumer = faulty.client.consume("q", max_in_flight=1)
    next(consumer)
    failed: list[fila.FilaError] = []

    def wait() -> None:
        try:
            next(consumer)
        except fila.FilaError as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    faulty.arm("f")
    with pytest.raises(fila.StorageFailedError):
        faulty.client.enqueue("q")
    assert faulty.broker.wait() == 1
    thread.join(60)
    assert not thread.is_alive()
    assert [type(error) for error in failed] == [fila.StorageFailedError]


def test_a_broker_does_not_start_on_a_full_disk(faulty: FaultyBroker) -> None:
    faulty.broker.kill()
    faulty.arm("w")
    done = run_to_end(
        "--config",
        str(faulty.broker.config_file),
        "--data-dir",
        str(faulty.broker.data),
        "--listen",
        "127.0.0.1:0",
        environment={**(faulty.broker.environment or {}), "FAULT_MATCH": ".dbtmp"},
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "the disk is full; free some space" in line
    faulty.disarm()
    faulty.check_after_restart()


def test_a_disk_that_is_almost_full_takes_acks_only_until_it_has_space_again(
    make_broker: MakeBroker, faultfs: Path
) -> None:
    faulty = FaultyBroker(make_broker, faultfs, match="no file at all")
    faulty.arm("w")  # the volume has no space left, but nothing has hit its end yet
    client = faulty.client

    def is_refused() -> bool:
        try:
            faulty.confirmed.add(client.enqueue("q"))
        except fila.DiskFullError:
            return True
        return False

    eventually(is_refused)
    messages = client.receive("q", 5)
    assert client.ack_many(messages) == [None] * 5
    faulty.confirmed -= {message.id for message in messages}
    assert client.stats("q").depth == len(faulty.confirmed)
    faulty.disarm()
    eventually(lambda: not is_refused())
    assert "enqueues are refused" in faulty.broker.log()
    assert "has space again" in faulty.broker.log()
    faulty.broker.kill()
    faulty.check_after_restart()


def test_a_slow_disk_holds_up_enqueues_and_nothing_else(faulty: FaultyBroker) -> None:
    faulty.arm("d")
    stuck = threading.Thread(target=lambda: faulty.confirmed.add(faulty.client.enqueue("q")))
    stuck.start()
    eventually(lambda: faulty.client.stats("q").depth == 21)
    messages = faulty.client.receive("q", 10)
    assert len(messages) == 10
    assert faulty.client.ack_many(messages) == [None] * 10
    faulty.confirmed -= {message.id for message in messages}
    assert stuck.is_alive()
    faulty.disarm()
    stuck.join(60)
    assert not stuck.is_alive()
    faulty.broker.kill()
    faulty.check_after_restart()
