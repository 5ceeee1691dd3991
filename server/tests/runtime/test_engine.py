# SPDX-License-Identifier: AGPL-3.0-only
"""The engine: one commit for all that wait, answers when they are true, and an orderly end."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila.v1.service_pb2 import ConsumeResponse
from fila_server.core.commands import CloseConsumer
from fila_server.errors import (
    DiskFull,
    MessageNotFound,
    Overloaded,
    ShuttingDown,
    StorageFailed,
)
from fila_server.runtime.sink import Sink
from fila_server.storage.api import Column, Storage
from fila_server.storage.memory import MemoryStorage
from fila_server.storage.rocks import RocksStorage
from server.tests.runtime.driver import Broken, Driver, Patient, Wrapped

LIMIT_S = 60.0
Start = Callable[..., Driver]


@pytest.fixture(params=["memory", "rocks"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Storage]:
    """Open a store; again, with what it held, after it was closed or lost."""
    kept: list[MemoryStorage] = []

    def open_again() -> Storage:
        if request.param == "rocks":
            return RocksStorage.open(str(tmp_path / "data"))
        kept.append(kept[-1].crash(power=False) if kept else MemoryStorage())
        return kept[-1]

    return open_again


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start engines that are stopped with the test."""
    started: list[Driver] = []

    def run(storage: Storage, **options: Any) -> Driver:
        started.append(Driver(storage, **options).start())
        return started[-1]

    yield run
    for driver in started:
        driver.engine.stop()
        driver.storage.close()


async def eventually(what: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if what():
            return
        await asyncio.sleep(0.005)
    pytest.fail("it never came to hold")


# --- Group commit ---------------------------------------------------------------------------------


async def test_all_that_wait_share_one_write_and_one_sync(
    open_store: Callable[[], Storage], start: Start
) -> None:
    store = Wrapped(open_store())
    driver = start(store)
    await driver.create("q")
    writes, syncs, groups = store.writes, store.syncs, driver.engine.timing.groups
    ids = await asyncio.gather(*(driver.enqueue("q") for _ in range(500)))
    assert len(set(ids)) == 500
    assert (store.writes - writes, store.syncs - syncs) == (1, 1)
    assert driver.engine.timing.groups - groups == 1
    assert [message.id for message in await driver.receive("q", 500)] == ids


async def test_a_lone_command_is_answered_at_once(
    open_store: Callable[[], Storage], start: Start
) -> None:
    store = Wrapped(open_store())
    driver = start(store)
    await driver.create("q")
    for n in range(5):
        await driver.enqueue("q")
        assert store.syncs == 2 + n


async def test_leases_and_acks_need_no_sync(
    open_store: Callable[[], Storage], start: Start
) -> None:
    store = Wrapped(open_store())
    driver = start(store)
    await driver.create("q")
    message_id = await driver.enqueue("q")
    syncs = store.syncs
    await driver.receive("q")
    await driver.extend("q", message_id, 60_000)
    await driver.nack("q", message_id)
    await driver.receive("q")
    await driver.ack("q", message_id)
    with pytest.raises(MessageNotFound):
        await driver.ack("q", message_id)
    assert store.syncs == syncs


async def test_an_enqueue_is_answered_when_it_is_durable_and_holds_up_nobody(
    start: Start,
) -> None:
    memory = MemoryStorage()
    store = Patient(memory)
    driver = start(store)
    await driver.create("q")
    first = await driver.enqueue("q")
    store.gate.clear()
    waiting = asyncio.ensure_future(driver.enqueue("q"))
    moving = asyncio.ensure_future(driver.create("other"))
    assert [message.id for message in await driver.receive("q")] == [first]
    await driver.ack("q", first)
    await eventually(lambda: memory.unsynced_groups > 0)
    assert not waiting.done() and not moving.done()
    store.gate.set()
    message_id = await waiting
    await moving
    found = memory.crash(power=True)
    assert len(list(found.scan(Column.MESSAGES, b"", b"\xff" * 13))) >= 1
    assert message_id != first


async def test_commands_are_handled_in_the_order_they_came(
    open_store: Callable[[], Storage], start: Start
) -> None:
    """Admin commands are groups of their own, in their place among the others."""
    driver = start(open_store())
    await driver.create("q")
    results = await asyncio.gather(
        driver.enqueue("q"),
        driver.stats("q"),
        driver.enqueue("q"),
        driver.enqueue("q"),
        driver.admin(pb.PurgeRequest(queue="q")),
        driver.stats("q"),
        driver.enqueue("q"),
        driver.stats("q"),
    )
    assert [results[n].depth for n in (1, 5, 7)] == [1, 0, 1]
    assert results[4].purged == 3


async def test_long_work_lets_others_through(start: Start) -> None:
    driver = start(MemoryStorage())
    await driver.create("q")
    await driver.create("other")
    await asyncio.gather(*(driver.enqueue("q") for _ in range(5000)))
    purge = asyncio.ensure_future(driver.admin(pb.PurgeRequest(queue="q")))
    await asyncio.sleep(0)
    await driver.enqueue("other")
    assert (await purge).purged == 5000


async def test_time_passes_without_commands(start: Start) -> None:
    driver = start(MemoryStorage())
    await driver.create("q")
    await driver.enqueue("q", delay_ms=20)
    sink = Sink()
    consumer = await driver.open("q", sink, visibility_ms=20)
    attempts: list[int] = []
    async with asyncio.timeout(LIMIT_S):
        while len(attempts) < 2:
            frame = ConsumeResponse.FromString(await sink.next())
            attempts += [message.metadata.attempt_count for message in frame.messages]
    assert attempts == [0, 1]
    driver.engine.tell(CloseConsumer(consumer, sink.unsent()))


# --- Overload -------------------------------------------------------------------------------------


async def test_more_than_the_inbox_holds_is_refused(start: Start) -> None:
    store = Patient(MemoryStorage())
    driver = start(store, inbox_max=3)
    await driver.create("q")
    store.gate.clear()
    waiting = [asyncio.ensure_future(driver.enqueue("q")) for _ in range(3)]
    await asyncio.sleep(0)
    for _ in range(3):
        with pytest.raises(Overloaded, match="3 requests are waiting already"):
            await driver.enqueue("q")
    store.gate.set()
    await asyncio.gather(*waiting)
    await driver.enqueue("q")
    assert (await driver.stats("q")).depth == 4


async def test_callers_that_gave_up_make_room(start: Start) -> None:
    store = Patient(MemoryStorage())
    driver = start(store, inbox_max=2)
    await driver.create("q")
    store.gate.clear()
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(driver.enqueue("q"), 0.01)
    store.gate.set()
    await driver.enqueue("q")
    assert (await driver.stats("q")).depth == 6  # giving up undoes nothing


# --- The end --------------------------------------------------------------------------------------


async def test_a_stop_handles_what_waits_and_makes_it_durable(
    open_store: Callable[[], Storage], start: Start
) -> None:
    driver = start(open_store())
    await driver.create("q")
    waiting = [asyncio.ensure_future(driver.enqueue("q")) for _ in range(50)]
    await asyncio.sleep(0)
    driver.engine.stop()
    ids = await asyncio.gather(*waiting)
    with pytest.raises(ShuttingDown):
        await driver.enqueue("q")
    again = start(open_store())
    assert [message.id for message in await again.receive("q", 100)] == ids


async def test_a_stopped_engine_does_nothing_more(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    driver = start(MemoryStorage())
    await driver.create("q")
    await driver.enqueue("q", delay_ms=5)
    await driver.enqueue("q")
    sink = Sink()
    consumer = await driver.open("q", sink, visibility_ms=5)
    driver.engine.stop()
    driver.engine.tell(CloseConsumer(consumer, sink.unsent()))
    await asyncio.sleep(0.05)  # the lease and the delay end meanwhile
    assert driver.engine.failure is None
    assert not [row for row in caplog.records if row.levelno >= logging.WARNING]


async def test_streams_end_when_the_broker_does(start: Start) -> None:
    driver = start(MemoryStorage())
    await driver.create("q")
    sink = Sink()
    await driver.open("q", sink)
    waiting = asyncio.ensure_future(sink.next())
    await asyncio.sleep(0)
    driver.engine.close_consumers()
    with pytest.raises(ShuttingDown):
        await waiting
    late = Sink()
    driver.engine.attach(late)  # it was opened just before
    with pytest.raises(ShuttingDown):
        late.take()


# --- Failure --------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["write", "sync"])
@pytest.mark.parametrize("kept", [False, True])
async def test_a_store_that_fails_fails_everybody_and_a_restart_recovers(
    open_store: Callable[[], Storage], start: Start, call: str, kept: bool
) -> None:
    store = Broken(open_store(), call, nth=3, kept=kept)
    driver = start(store)
    await driver.create("q")
    confirmed = await driver.enqueue("q")
    sink = Sink()
    consumer = await driver.open("q", sink, credit=1) if call == "sync" else None
    results = await asyncio.wait_for(
        asyncio.gather(
            driver.enqueue("q", b"unknown"),
            driver.stats("q"),
            driver.enqueue("q", b"unknown"),
            driver.create("other"),
            return_exceptions=True,
        ),
        LIMIT_S,
    )
    assert isinstance(results[0], StorageFailed)
    assert isinstance(results[-1], StorageFailed)
    await asyncio.wait_for(driver.engine.failed.wait(), LIMIT_S)
    for make in (driver.enqueue("q"), driver.receive("q"), driver.stats("q")):
        with pytest.raises(StorageFailed):
            await make
    driver.engine.attach(sink)
    with pytest.raises(StorageFailed):
        sink.take()
    assert consumer is None or consumer.is_open
    driver.engine.stop()
    store.close()
    again = start(open_store())
    stats = await again.stats("q")
    assert stats.depth + stats.in_flight in (1, 2, 3)
    assert confirmed in {
        row.message.id for row in (await again.admin(pb.PeekRequest(queue="q"))).messages
    }


async def test_a_defect_stops_the_engine_and_answers_everybody(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = start(MemoryStorage())
    await driver.create("q")

    def defect(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(driver.engine._broker, "handle", defect)
    results = await asyncio.wait_for(
        asyncio.gather(driver.enqueue("q"), driver.stats("q"), return_exceptions=True), LIMIT_S
    )
    assert all(isinstance(result, StorageFailed) for result in results)
    assert all("a defect of its own" in str(result) for result in results)
    assert driver.engine.failed.is_set()
    assert "ZeroDivisionError" in caplog.text


async def test_an_almost_full_disk_refuses_enqueues_only(start: Start) -> None:
    store = MemoryStorage()
    driver = start(store)
    await driver.create("q")
    message_id = await driver.enqueue("q")
    driver.engine.stop()
    store = store.crash(power=False)
    store.free = 1000
    driver = start(store)
    with pytest.raises(DiskFull, match="almost full"):
        await driver.enqueue("q")
    await driver.create("other")
    await driver.receive("q")
    await driver.ack("q", message_id)
    store.free = 1 << 40

    async def is_accepted() -> bool:
        try:
            await driver.enqueue("q")
        except DiskFull:
            return False
        return True

    for _ in range(1000):
        if await is_accepted():
            return
        await asyncio.sleep(0.05)
    pytest.fail("enqueues are still refused")


# --- Sync modes -----------------------------------------------------------------------------------


async def test_interval_answers_first_and_syncs_by_itself(start: Start) -> None:
    memory = MemoryStorage()
    store = Patient(memory)
    driver = start(store, sync="interval")
    store.gate.clear()
    await driver.create("q")
    await driver.enqueue("q")
    assert memory.unsynced_groups > 0
    store.gate.set()
    await eventually(lambda: memory.unsynced_groups == 0)
    syncs = store.syncs
    await asyncio.sleep(0.1)
    assert store.syncs == syncs  # nothing was written, so nothing is synced


async def test_a_failed_interval_sync_stops_the_engine(start: Start) -> None:
    store = MemoryStorage()
    driver = start(store, sync="interval")
    await driver.create("q")
    store.fail_sync(kept=False)
    await driver.enqueue("q")
    await asyncio.wait_for(driver.engine.failed.wait(), LIMIT_S)
    with pytest.raises(StorageFailed, match="a sync failed"):
        await driver.enqueue("q")


async def test_never_leaves_it_to_the_system_until_the_end(start: Start) -> None:
    memory = MemoryStorage()
    store = Wrapped(memory)
    driver = start(store, sync="never")
    await driver.create("q")
    await driver.enqueue("q")
    await asyncio.sleep(0.05)
    assert store.syncs == 0 and memory.unsynced_groups > 0
    driver.engine.stop()
    assert memory.unsynced_groups == 0
