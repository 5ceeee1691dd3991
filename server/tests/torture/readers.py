# SPDX-License-Identifier: AGPL-3.0-only
"""Streams that never read: the broker keeps little for each of them, takes back what they were
never handed when they leave, without counting an attempt, and gives the rest to others when its
leases end.
"""

import time

from fila import Client, EnqueueMessage
from fila.v1 import service_pb2
from server.tests.rpc.wire import eventually
from server.tests.torture.figures import Figures, Scale
from server.tests.torture.http2 import Connection, grpc_message
from server.tests.torture.neighbour import QUEUE as NEIGHBOURS
from server.tests.torture.neighbour import neighbour
from server.tests.torture.victim import Victim, victim

QUEUE = "unread"
CREDIT, BATCH, PAYLOAD_BYTES = 1000, 50, 4096
# Larger than the window of a stream: one frame is on its way, and one more may have left the
# broker's hands for gRPC's. Further ones have not.
FRAMES_GONE = 2
VISIBILITY_MS = 8000
# The messages themselves may be in memory, as a hot backlog; the frames on top are few.
BOUND_MIB = 768


def run(scale: Scale) -> Figures:
    figures = Figures()
    readers = scale.of(30, 300)
    with figures.scene("streams that never read"), victim() as broker:
        with Client(broker.address, timeout=60) as client:
            client.create_queue(NEIGHBOURS)
            client.create_queue(QUEUE, visibility_timeout_ms=VISIBILITY_MS)
            fill(client, readers * CREDIT)
            with neighbour(broker.address) as beside:
                leave_unread(figures, broker, client, readers)
                firsts = drain(client, readers * CREDIT)
            figures.hold(f"the neighbour is served: {beside.errors[:1]}", not beside.errors)
        figures["first deliveries"] = firsts
        unseen = readers * (CREDIT - FRAMES_GONE * BATCH)
        figures.hold("no attempt is counted for what was never handed over", firsts >= unseen)
        figures["peak MiB"] = broker.peak_mib()
        figures["bound MiB"] = BOUND_MIB
        figures.hold("memory is under its bound", broker.peak_mib() < BOUND_MIB)
        figures.hold("it stops cleanly", broker.terminate() == 0)
    return figures.judged()


def fill(client: Client, count: int) -> None:
    batch = [EnqueueMessage(QUEUE, None, bytes(PAYLOAD_BYTES))] * 500
    for _ in range(0, count, 500):
        for result in client.enqueue_many(batch):
            result.unwrap()


def leave_unread(figures: Figures, broker: Victim, client: Client, readers: int) -> None:
    """Open streams, let them be filled, read nothing, and vanish."""
    consume = service_pb2.ConsumeRequest(queue=QUEUE, max_in_flight=CREDIT, max_batch=BATCH)
    connections = [Connection(broker.address) for _ in range(readers)]
    for connection in connections:
        connection.open("/fila.v1.FilaService/Consume", grpc_message(consume.SerializeToString()))
    eventually(lambda: client.stats(QUEUE).active_consumers == readers)
    time.sleep(1)
    figures["streams"] = readers
    figures["leased"] = client.stats(QUEUE).in_flight
    for connection in connections:
        connection.close()
    eventually(lambda: client.stats(QUEUE).active_consumers == 0)
    left = client.stats(QUEUE).in_flight
    figures["still leased"] = left
    bound = readers * FRAMES_GONE * BATCH
    figures.hold(f"{left} are still leased to nobody, at most {bound} may be", left <= bound)


def drain(client: Client, count: int) -> int:
    """Take everything, once leases have ended; return how many had no attempt behind them."""
    firsts = taken = 0
    deadline = time.monotonic() + 60 + VISIBILITY_MS / 1000
    while taken < count:
        found = client.receive(QUEUE, 500, wait_ms=2000)
        assert client.ack_many(found) == [None] * len(found)
        firsts += sum(message.attempt_count == 0 for message in found)
        taken += len(found)
        assert time.monotonic() < deadline, f"{count - taken} of {count} never came back"
    return firsts
