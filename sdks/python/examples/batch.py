# SPDX-License-Identifier: AGPL-3.0-only
"""Many messages at a time, both ways: what a load job or a pipeline does."""

import os
import time
import uuid

import fila

MESSAGES = 10_000

with fila.Client(os.environ.get("FILA_ADDR", "127.0.0.1:5555"), timeout=30) as client:
    queue = f"batch-{uuid.uuid4().hex[:8]}"
    client.create_queue(queue)

    start = time.perf_counter()
    # With a key for each message the client may send a request again when the broker was away.
    results = client.enqueue_many(
        fila.EnqueueMessage(queue, {"row": str(n)}, b"x" * 256, idempotency_key=f"{queue}-{n}")
        for n in range(MESSAGES)
    )
    refused = [result.error for result in results if result.error is not None]
    stored = len(results) - len(refused)
    print(f"stored {stored:,} messages at {stored / (time.perf_counter() - start):,.0f}/s")

    start = time.perf_counter()
    done = 0
    while messages := client.receive(queue, 1_000):
        outcomes = client.ack_many(messages)
        done += outcomes.count(None)
    print(f"drained {done:,} messages at {done / (time.perf_counter() - start):,.0f}/s")

    client.delete_queue(queue)
