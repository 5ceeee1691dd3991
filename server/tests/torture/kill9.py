# SPDX-License-Identifier: AGPL-3.0-only
"""kill -9 again and again under load: nothing confirmed is lost, nothing acked comes back, and no
message has two live leases. The ledger outside the broker judges.
"""

import random
import time
from statistics import median

from fila import Client
from server.tests.process.ledger import QUEUE, VISIBILITY_MS, Ledger, Traffic, drain
from server.tests.torture.figures import Figures, Scale
from server.tests.torture.victim import Victim, victim

# Small, so that kills hit flushes and compactions too.
CONFIG = "[storage]\nwrite_buffer_bytes = 65536\n"


def run(scale: Scale) -> Figures:
    figures = Figures()
    seed = random.randrange(1_000_000)
    figures["seed"] = str(seed)
    with victim(config=CONFIG) as broker:
        with Client(broker.address, timeout=30) as client:
            client.create_queue(QUEUE, visibility_timeout_ms=VISIBILITY_MS)
        ledger = Ledger()
        with figures.scene("traffic"):
            restarts = killed(broker, ledger, random.Random(seed), scale.of(6, 100))
            figures["kills"] = len(restarts)
            figures["restart ms p50"] = median(restarts) * 1000
            drained = drain(broker.address, ledger)
            figures["confirmed"] = len(ledger.confirmed)
            figures["acked"] = len(ledger.acked)
            figures["redelivered"] = ledger.redelivered()
            ledger.check(drained)
            figures.hold("it stops cleanly in the end", broker.terminate() == 0)
            figures.hold("traffic went on", len(ledger.acked) > 20 * len(restarts))
    return figures.judged()


def killed(broker: Victim, ledger: Ledger, rng: random.Random, times: int) -> list[float]:
    """Kill the broker so many times while clients go on; return how long each start took."""
    traffic = Traffic(broker.address, ledger, rng.randrange(1_000_000))
    restarts = []
    try:
        for _ in range(times):
            time.sleep(rng.uniform(0.05, 1.2))
            broker.kill()
            began = time.monotonic()
            broker.up()
            restarts.append(time.monotonic() - began)
        time.sleep(0.5)  # the last one gets some traffic too
    finally:
        traffic.stop()
    return restarts
