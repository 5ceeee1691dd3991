# SPDX-License-Identifier: AGPL-3.0-only
"""kill -9 at any time loses nothing that was confirmed and brings back nothing that was acked."""

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fila import Client
from server.tests.broker_process import BrokerProcess, free_port
from server.tests.process.crashing_broker import POINTS
from server.tests.process.ledger import QUEUE, VISIBILITY_MS, Ledger, Traffic, drain

ROUNDS = 6  # `nox -s torture` has many more
CRASHING = (sys.executable, str(Path(__file__).with_name("crashing_broker.py")))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    # A small write buffer, so that kills hit flushes and compactions too.
    config = "[storage]\nwrite_buffer_bytes = 65536\n"
    broker = BrokerProcess(tmp_path, config=config, port=free_port())
    broker.start()
    with Client(broker.address, timeout=30) as client:
        client.create_queue(QUEUE, visibility_timeout_ms=VISIBILITY_MS)
    yield broker
    broker.close()


@pytest.mark.serial
def test_kills_at_random_times_lose_and_repeat_nothing(broker: BrokerProcess) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    rng = random.Random(seed)
    ledger = Ledger()
    traffic = Traffic(broker.address, ledger, seed)
    for _ in range(ROUNDS):
        time.sleep(rng.uniform(0.05, 0.8))
        broker.kill()
        broker.start()
    traffic.stop()
    ledger.check(drain(broker.address, ledger))
    assert broker.terminate() == 0
    assert len(ledger.confirmed) > 200
    assert len(ledger.acked) > 100


@pytest.mark.serial
def test_kills_at_every_point_of_a_commit_lose_and_repeat_nothing(broker: BrokerProcess) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    rng = random.Random(seed)
    ledger = Ledger()
    traffic = Traffic(broker.address, ledger, seed)
    broker.kill()
    for point in POINTS[:-1]:
        crash = {"CRASH_POINT": point, "CRASH_AT": str(rng.randrange(5, 200))}
        broker.start(CRASHING, crash)
        assert broker.wait() == -9
    with pytest.raises(AssertionError, match="exit -9"):
        broker.start(CRASHING, {"CRASH_POINT": POINTS[-1], "CRASH_AT": "1"})
    broker.start()
    traffic.stop()
    ledger.check(drain(broker.address, ledger))
    assert broker.terminate() == 0
    assert len(ledger.confirmed) > 50
