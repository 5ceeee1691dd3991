# SPDX-License-Identifier: AGPL-3.0-only
"""Queues that hold much, of many kinds."""

from __future__ import annotations

from typing import Any

from fila.v1.service_pb2 import EnqueueRequest, NackRequest
from fila_server.core.commands import Enqueue, Nack
from server.tests.core.harness import Harness

BATCH = 4000


def many(h: Harness, count: int, keys: int = 1, queue: str = "q", **fields: Any) -> list[str]:
    ids: list[str] = []
    names = [f"k{n}" for n in range(keys)]
    for start in range(0, count, BATCH):
        turned = names[start % keys :] + names[: start % keys]
        ids += h.enqueue_many(queue, min(BATCH, count - start), turned, **fields)
    return ids


def wide(h: Harness, size: int, **fields: Any) -> list[str]:
    """Fill a queue: a quarter as many keys, each with a lane and a throttle key of its own."""
    h.create("q", visibility_timeout_ms=36_000_000)
    keys = size // 4
    requests = [
        EnqueueRequest(
            queue="q", fairness_key=f"k{n % keys}", throttle_keys=[f"t{n % keys}"], **fields
        )
        for n in range(size)
    ]
    ids: list[str] = []
    for start in range(0, size, BATCH):
        drafts = h.drafts(*requests[start : start + BATCH])
        ids += h.ask(lambda ticket, drafts=drafts: Enqueue(ticket, drafts))  # type: ignore[misc]
    return ids


def lanes_of_one_key(h: Harness, size: int) -> None:
    h.create("q")
    for start in range(0, size // 4, BATCH):
        requests = [
            EnqueueRequest(queue="q", fairness_key="k", throttle_keys=[f"t{n}", "shared"])
            for n in range(start, min(size // 4, start + BATCH))
        ]
        h.run(Enqueue(0, h.drafts(*requests)))


def parked(h: Harness, size: int) -> None:
    """All keys wait at one limiter."""
    h.create("q", visibility_timeout_ms=36_000_000)
    h.set("throttle.shared", "0.001,1")
    many(h, size, size // 4, throttle_keys=["shared"])
    h.open("q", credit=100)


def leased(h: Harness, size: int, frame: int = 1000, **config: Any) -> list[str]:
    h.create("q", **config)
    many(h, size, 7)
    ids: list[str] = []
    while messages := h.receive("q", frame):
        ids += [message.id for message in messages]
    return ids


def dead(h: Harness, size: int) -> list[str]:
    ids = leased(h, size, max_attempts=1)
    h.run(Nack(0, [NackRequest(queue="q", message_id=it, error="boom") for it in ids]))
    assert h.stats("q.dlq").depth == size
    return ids
