# SPDX-License-Identifier: AGPL-3.0-only
"""More connections than there are descriptors: whoever is connected is served, and the store is
whole.
"""

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fila.v1 import service_pb2 as sp
from server.tests.broker_process import BrokerProcess
from server.tests.rpc.http2 import Connection
from server.tests.rpc.wire import Wire, eventually

FILES = 1024
# Sets its own limit, then becomes the broker.
LIMITED = (
    sys.executable,
    "-c",
    "import os, resource, sys;"
    f"resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES // 2}, {FILES}));"
    "os.execv(sys.executable, [sys.executable, '-m', 'fila_server.main', *sys.argv[1:]])",
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path)
    yield broker
    broker.close()


@pytest.mark.serial
def test_idle_connections_beyond_the_descriptors_stop_nobody(broker: BrokerProcess) -> None:
    broker.start(LIMITED)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    wire = Wire(broker.address)
    queue = wire.queue()
    idle: list[Connection] = []
    try:
        idle.extend(Connection(broker.address) for _ in range(1100))

        def is_settled() -> bool:
            for connection in idle:
                if not connection.is_closed:
                    connection.pump(0.0005)
            return sum(not connection.is_closed for connection in idle) < FILES - 500

        eventually(is_settled)
        batch = sp.EnqueueBatchRequest(
            messages=[sp.EnqueueRequest(queue=queue, payload=bytes(1_000_000))] * 10
        )
        for _ in range(20):  # far more than one of the store's files holds
            assert all(result.message_id for result in wire.call(batch).results)
        assert wire.stats(queue).depth == 200
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    late = Wire(broker.address)
    eventually(lambda: bool(late.enqueue(queue)))
    late.close()
    wire.close()
    assert broker.terminate() == 0
    broker.start()
    wire = Wire(broker.address)
    assert wire.stats(queue).depth == 201
    wire.close()
