# SPDX-License-Identifier: AGPL-3.0-only
"""Headers that no gRPC library would send: whatever becomes of the call, the broker hears the next
one.
"""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from fila.v1.service_pb2 import EnqueueRequest
from server.tests.broker_process import BrokerProcess
from server.tests.rpc.http2 import Connection
from server.tests.rpc.wire import DEADLINE_S, Wire

ENQUEUE = "/fila.v1.FilaService/Enqueue"
NAMES = (
    ":path",
    ":method",
    ":scheme",
    ":authority",
    "content-type",
    "te",
    "grpc-timeout",
    "grpc-encoding",
    "grpc-accept-encoding",
    "authorization",
    "traceparent",
    "user-agent",
    "x-any",
    "x-any-bin",
)
# Bytes that are no UTF-8 stand for themselves as lone surrogates.
TEXTS = ("", "\0", "é", "%", "!" * 100)
NO_TEXTS = ("\udcff", "/fila\udcff", "/\udcc3(/x", "\udced\udca0\udc80")
VALUES = (*TEXTS, *NO_TEXTS)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of these tests' own, since they are hard on whoever shares it."""
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker
    broker.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_header_of_any_bytes_ends_nothing_but_its_call(broker: BrokerProcess, name: str) -> None:
    wire = Wire(broker.address)
    queue = wire.queue()
    for value in VALUES:
        with Connection(broker.address) as connection, suppress(ConnectionError):
            stream = connection.call(ENQUEUE, **{name: value})
            connection.begin_message(stream, 0)
            while stream not in connection.ended and not connection.is_closed:
                connection.pump(DEADLINE_S)
        fresh = Wire(broker.address)
        assert fresh.call(EnqueueRequest(queue=queue), wait_for_ready=True).message_id
        fresh.close()
    assert wire.stats(queue).depth == len(VALUES)
    wire.close()
