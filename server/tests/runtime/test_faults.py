# SPDX-License-Identifier: AGPL-3.0-only
"""Fail the first storage call of a script, then the second, and so on until none is left to fail.

After each failure the broker is started again on what is left, and must keep rules 1 to 3: what was
confirmed is there, what was acked is gone, and every message is in exactly one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila_server.errors import StorageFailed
from fila_server.storage.api import Storage
from fila_server.storage.memory import MemoryStorage
from fila_server.storage.rocks import RocksStorage
from server.tests.core.harness import Clock, Harness, check_consistent
from server.tests.runtime.driver import Broken, Driver

FAULTS = [("write", False), ("write", True), ("sync", False), ("sync", True)]
CALLS_MAX = 200


@dataclass
class Facts:
    """What the script was told. Whatever was under way at the failure is in `unknown`."""

    confirmed: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)  # by a purge, a cancel or the end of its queue
    leased: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)

    @property
    def owed(self) -> set[str]:
        return self.confirmed - self.acked - self.dropped - self.unknown


class Script:
    """A fixed sequence that touches every kind of write."""

    def __init__(self, driver: Driver, facts: Facts) -> None:
        self.driver = driver
        self.facts = facts

    async def run(self) -> None:
        driver, facts = self.driver, self.facts
        await driver.create("q", max_attempts=2)
        await driver.create("doomed")
        await driver.admin(pb.SetConfigRequest(key="throttle:mail:rate", value="1000"))
        first = await self.enqueue("q", 6)
        await self.enqueue("q", 2, delay_ms=3_600_000)
        await self.enqueue("q", 1, idempotency_key="once")
        received = {message.id for message in await driver.receive("q", 4)}
        facts.leased |= received
        await self.drop(facts.acked, {first[0]}, driver.ack("q", first[0]))
        await driver.extend("q", first[1], 7_200_000)
        for _ in range(2):  # the second failure dead-letters it
            facts.leased.discard(first[2])
            await driver.nack("q", first[2], error="boom")
            received = {message.id for message in await driver.receive("q", 10)}
            facts.leased |= received
        assert first[2] not in facts.leased
        await driver.admin(pb.RedriveRequest(dlq_queue="q.dlq"))
        (gone,) = await self.enqueue("q", 1, throttle_keys=["mail"], fairness_key="other")
        cancel = pb.CancelMessageRequest(queue="q", message_id=gone)
        await self.drop(facts.dropped, {gone}, driver.admin(cancel))
        await driver.admin(pb.PauseRequest(queue="q"))
        purged = set(await self.enqueue("doomed", 3, ttl_ms=100_000_000))
        await self.drop(facts.dropped, purged, driver.admin(pb.PurgeRequest(queue="doomed")))
        deleted = set(await self.enqueue("doomed", 2))
        delete = pb.DeleteQueueRequest(queue="doomed")
        await self.drop(facts.dropped, deleted, driver.admin(delete))
        await driver.admin(pb.ResumeRequest(queue="q"))
        await self.enqueue("q", 2)

    async def enqueue(self, queue: str, count: int, **fields: Any) -> list[str]:
        made = []
        for _ in range(count):
            made.append(await self.driver.enqueue(queue, **fields))
            self.facts.confirmed.add(made[-1])
        return made

    async def drop(self, into: set[str], ids: set[str], act: Awaitable[Any]) -> None:
        """Do what removes messages; if it fails, nobody knows whether they are gone."""
        self.facts.unknown |= ids
        await act
        self.facts.unknown -= ids
        into |= ids
        self.facts.leased -= ids


async def run_script(storage: Storage, clock: Clock, facts: Facts) -> bool:
    """Run the script; return whether the store failed meanwhile."""
    driver = Driver(storage, clock=clock.now)
    try:
        driver.start()
        await asyncio.wait_for(Script(driver, facts).run(), 60)
    except StorageFailed:
        await asyncio.wait_for(driver.engine.failed.wait(), 60)
        driver.engine.stop()
        return True
    try:
        driver.engine.stop()
    except StorageFailed:
        return True
    return False


def check(storage: Storage, clock: Clock, facts: Facts, *, power: bool) -> None:
    """Start again on what is left and hold it against the facts."""
    h = Harness(storage=storage, clock=clock)
    check_consistent(h)
    found: list[str] = []
    for name in list(h.broker.state.queues):
        response = h.admin(pb.PeekRequest(queue=name, limit=1000))
        found += [row.message.id for row in response.messages]
    assert len(found) == len(set(found)), "a message is in two places"
    assert facts.owed <= set(found), "a confirmed message is lost"
    gone = facts.dropped if power else facts.dropped | facts.acked  # acks are not synced
    assert not gone & set(found), "a message came back"
    if "q" not in h.broker.state.queues:
        return
    h.admin(pb.ResumeRequest(queue="q"))
    if not power:  # a lease is not synced either
        early = {message.id for message in h.receive("q", 1000)}
        assert not early & (facts.leased - facts.unknown), "delivered while it was leased"
    clock.advance(10_000)  # all delays and leases are over, no life is
    h.tick()
    drained: set[str] = set()
    for name in list(h.broker.state.queues):
        for message in h.receive(name, 1000):
            assert message.id not in drained
            drained.add(message.id)
            assert h.ack(name, message.id) is None
    assert facts.owed <= drained
    check_consistent(h)


def test_the_script_runs_without_a_fault() -> None:
    facts, clock = Facts(), Clock()
    storage = MemoryStorage()
    assert not asyncio.run(run_script(storage, clock, facts))
    assert len(facts.confirmed) > 15 and facts.acked and facts.dropped and facts.leased
    check(storage.crash(power=True), clock, facts, power=False)


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize(("call", "kept"), FAULTS)
def test_every_call_may_fail(call: str, kept: bool, power: bool) -> None:
    for nth in range(1, CALLS_MAX):
        facts, clock = Facts(), Clock()
        storage = MemoryStorage()
        getattr(storage, f"fail_{call}")(nth, kept=kept)
        has_failed = asyncio.run(run_script(storage, clock, facts))
        check(storage.crash(power=power), clock, facts, power=power)
        if not has_failed:
            break
    assert 15 < nth < CALLS_MAX - 1


@pytest.mark.parametrize(("call", "kept"), FAULTS)
def test_calls_of_a_real_store_may_fail(tmp_path: Path, call: str, kept: bool) -> None:
    """Every seventh only: an open of RocksDB takes its time."""
    nth = 1
    has_failed = True
    while has_failed:
        path = str(tmp_path / f"data{nth}")
        facts, clock = Facts(), Clock()
        storage = Broken(RocksStorage.open(path), call, nth, kept)
        has_failed = asyncio.run(run_script(storage, clock, facts))
        storage.close()
        reopened = RocksStorage.open(path)
        check(reopened, clock, facts, power=False)
        reopened.close()
        nth += 7
        assert nth < CALLS_MAX
