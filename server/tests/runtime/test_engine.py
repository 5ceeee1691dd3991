# SPDX-License-Identifier: AGPL-3.0-only
"""The engine: one commit for all that wait, answers when they are true, and an orderly end."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila.v1.service_pb2 import ConsumeResponse, EnqueueBatchRequest, EnqueueRequest
from fila_server.core import broker
from fila_server.core.commands import Enqueue
from fila_server.core.turn import BRIEF, FULL, SHARED, Room
from fila_server.core.wire.cuts import DraftBatch
from fila_server.core.wire.intake import Intake
from fila_server.errors import (
    FilaError,
    MessageNotFound,
    Overloaded,
    ShuttingDown,
    StorageFailed,
)
from fila_server.limits import PEEKS_MAX
from fila_server.rpc.admin import perform
from fila_server.storage.api import Column, Storage
from fila_server.storage.memory import MemoryStorage
from server.tests.runtime.driver import Broken, Patient, Start, Wrapped, eventually

LIMIT_S = 60.0


class Unhurried:
    """An event loop on which every pause is long enough for somebody to ask for something."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_later(self, delay: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay + 0.02, call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


# --- Group commit ---------------------------------------------------------------------------------


async def test_all_that_wait_share_one_write_and_one_sync(
    open_store: Callable[[], Storage], start: Start
) -> None:
    store = Wrapped(open_store())
    driver = start(store)
    await driver.create("q")
    writes, syncs, groups = store.writes, store.syncs, driver.engine.timing.groups
    ids = await asyncio.gather(*(driver.enqueue("q") for _ in range(200)))
    assert len(set(ids)) == 200
    assert (store.writes - writes, store.syncs - syncs) == (1, 1)
    assert driver.engine.timing.groups - groups == 1
    assert [message.id for message in await driver.receive("q", 200)] == ids


async def test_a_lone_command_is_answered_at_once(
    open_store: Callable[[], Storage], start: Start
) -> None:
    store = Wrapped(open_store())
    driver = start(store)
    await driver.create("q")
    before = store.syncs
    for n in range(5):
        await driver.enqueue("q")
        assert store.syncs == before + 1 + n


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
    sink = await driver.open("q", visibility_ms=20)
    attempts: list[int] = []
    async with asyncio.timeout(LIMIT_S):
        while len(attempts) < 2:
            frame = ConsumeResponse.FromString(await sink.next())
            driver.engine.sent(sink)
            attempts += [message.metadata.attempt_count for message in frame.messages]
    assert attempts == [0, 1]
    driver.engine.close(sink)


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


async def test_more_bytes_than_the_inbox_holds_are_refused(start: Start) -> None:
    driver = start(MemoryStorage(), inbox_bytes=1 << 20)
    await driver.create("q")
    waiting = [asyncio.ensure_future(driver.enqueue("q", bytes(300_000))) for _ in range(10)]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    refused = [result for result in results if isinstance(result, Overloaded)]
    assert len(refused) == 7  # three fit, before the engine has its turn
    assert "900012 bytes are waiting already" in refused[0].message
    await driver.enqueue("q", bytes(300_000))
    assert (await driver.stats("q")).depth == 4


async def test_commands_of_callers_that_left_count_until_they_are_handled(start: Start) -> None:
    driver = start(MemoryStorage(), inbox_max=3)
    await driver.create("q")
    for _ in range(3):
        waiting = asyncio.ensure_future(driver.enqueue("q"))
        asyncio.get_running_loop().call_soon(waiting.cancel)
    with pytest.raises(Overloaded):
        # The three are cancelled before their turn comes, and what they asked for still waits.
        await asyncio.gather(*(driver.enqueue("q") for _ in range(4)))
    await eventually(lambda: driver.engine.timing.items >= 3)


async def test_bytes_of_a_batch_count_until_the_core_is_through_with_it(start: Start) -> None:
    """Also when its caller has left: then nobody else counts what the core still holds."""
    driver = start(MemoryStorage(), inbox_bytes=4 << 20)
    await driver.create("q")
    requests = [EnqueueRequest(queue="q", payload=bytes(30_000)) for _ in range(100)]
    batch = DraftBatch(Intake(driver.config.limits))
    list(batch.read(EnqueueBatchRequest(messages=requests).SerializeToString()))
    waiting = asyncio.ensure_future(
        driver.engine.ask(lambda ticket: Enqueue(ticket, batch), batch.size)
    )
    for _ in range(3):  # it is asked for, taken out of the inbox, and begun
        await asyncio.sleep(0)
    waiting.cancel()
    assert driver.engine.inbox_bytes == batch.size
    with pytest.raises(Overloaded, match=f"{batch.size} bytes are waiting already"):
        await driver.enqueue("q", bytes(3_000_000))
    await eventually(lambda: driver.engine.inbox_bytes == 0)
    await driver.enqueue("q", bytes(3_000_000))
    assert (await driver.stats("q")).depth == 101


async def test_a_light_command_does_not_wait_for_heavy_ones(start: Start) -> None:
    store = Wrapped(MemoryStorage())
    driver = start(store)
    await driver.create("q")
    done: list[str] = []

    async def enqueue(name: str, count: int) -> None:
        await driver.enqueue_many("q", count)
        done.append(name)

    heavy = [asyncio.ensure_future(enqueue("heavy", 1000)) for _ in range(5)]
    await asyncio.sleep(0)
    await enqueue("light", 1)
    assert done.count("heavy") <= 1
    await asyncio.gather(*heavy)
    assert (await driver.stats("q")).depth == 5001


# --- Defects of calls that only read --------------------------------------------------------------


async def test_a_read_that_raises_is_answered_and_logged_and_changes_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = start(MemoryStorage())
    await driver.create("q")

    def defect(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a counter went wrong")

    monkeypatch.setitem(broker._READS, pb.GetStatsRequest, defect)
    results = await asyncio.gather(
        driver.enqueue("q"), driver.stats("q"), driver.enqueue("q"), return_exceptions=True
    )
    error = results[1]
    assert type(error) is FilaError and error.reason == "INTERNAL"
    assert "a counter" not in error.message
    assert isinstance(results[0], str) and isinstance(results[2], str)
    (row,) = [row for row in caplog.records if row.levelno >= logging.ERROR]
    assert row.exc_info is not None and "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    assert (await driver.stats("q")).depth == 2
    assert not driver.engine.failed.is_set()


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
    start: Start, logged: Callable[[], list[logging.LogRecord]]
) -> None:
    driver = start(MemoryStorage())
    await driver.create("q")
    await driver.enqueue("q", delay_ms=5)
    await driver.enqueue("q")
    sink = await driver.open("q", visibility_ms=5)
    driver.engine.stop()
    driver.engine.close(sink)
    await asyncio.sleep(0.05)  # the lease and the delay end meanwhile
    assert driver.engine.failure is None
    assert not [row for row in logged() if row.levelno >= logging.WARNING]


async def test_streams_end_when_the_broker_does(start: Start) -> None:
    driver = start(MemoryStorage())
    await driver.create("q")
    sink = await driver.open("q")
    late = asyncio.ensure_future(driver.open("q"))  # it is being opened
    waiting = asyncio.ensure_future(sink.next())
    await asyncio.sleep(0)
    driver.engine.close_consumers()
    with pytest.raises(ShuttingDown):
        await waiting
    with pytest.raises(ShuttingDown):
        (await late).peek()


async def test_heavy_work_has_the_turns_to_itself_until_somebody_asks_for_little(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = start(MemoryStorage())
    await driver.create("q")
    driver.engine._attentive_until_s = 0.0  # as if that light command were long ago
    handle = driver.engine._broker.handle
    rooms: list[Room] = []

    def noting(*arguments: Any, room: Room, **how: Any) -> Any:
        rooms.append(room)
        return handle(*arguments, room=room, **how)

    monkeypatch.setattr(driver.engine._broker, "handle", noting)
    monkeypatch.setattr(driver.engine, "_loop", Unhurried(driver.engine._loop))
    await driver.enqueue_many("q", 3000)
    assert rooms and set(rooms) == {FULL}
    rooms.clear()
    heavy = asyncio.ensure_future(driver.enqueue_many("q", 9000))
    while not heavy.done():
        await driver.enqueue("q")
    await heavy
    assert {SHARED, BRIEF} <= set(rooms)  # and it is done, so it went on between the brief ones


# --- Failure --------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["write", "sync"])
@pytest.mark.parametrize("kept", [False, True])
async def test_a_store_that_fails_fails_everybody_and_a_restart_recovers(
    open_store: Callable[[], Storage], start: Start, call: str, kept: bool
) -> None:
    store = Broken(open_store(), call, nth=4, kept=kept)
    driver = start(store)
    await driver.create("q")
    confirmed = await driver.enqueue("q")
    sink = await driver.open("q", credit=1) if call == "sync" else None
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
    if sink is not None:
        with pytest.raises(StorageFailed):
            sink.peek()
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

    def defect(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(driver.engine._broker, "handle", defect)
    results = await asyncio.wait_for(
        asyncio.gather(driver.enqueue("q"), driver.stats("q"), return_exceptions=True), LIMIT_S
    )
    assert all(isinstance(result, StorageFailed) for result in results)
    assert all("a defect of its own" in str(result) for result in results)
    assert driver.engine.failed.is_set()
    assert "ZeroDivisionError" in caplog.text


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
    begun = store.syncs
    await driver.create("q")
    await driver.enqueue("q")
    await asyncio.sleep(0.05)
    assert store.syncs == begun and memory.unsynced_groups > 0
    driver.engine.stop()
    assert memory.unsynced_groups == 0


# --- Large answers --------------------------------------------------------------------------------


async def test_few_of_many_peeks_are_under_way_at_a_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = start(MemoryStorage())
    await driver.create("q")
    await asyncio.gather(*(driver.enqueue("q") for _ in range(50)))
    under_way, most, ask = 0, 0, driver.engine.ask

    async def counted(*arguments: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await ask(*arguments)
        finally:
            under_way -= 1

    monkeypatch.setattr(driver.engine, "ask", counted)
    request = pb.PeekRequest(queue="q", limit=50)
    pages = await asyncio.gather(
        *(perform(driver.engine, "Peek", request) for _ in range(10 * PEEKS_MAX))
    )
    assert {len(page.messages) for page in pages} == {50}
    assert most == PEEKS_MAX
