# SPDX-License-Identifier: AGPL-3.0-only
"""When the volume counts as low, when it is looked at, and when space is asked back.

The volume is made up; server/tests/process/test_full_volume.py has a real one.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from fila_server.errors import DiskFull, StorageFailed
from fila_server.runtime import disk as module
from fila_server.runtime.disk import MIB, Disk
from fila_server.storage.api import Space
from fila_server.storage.memory import MemoryStorage
from server.tests.runtime.driver import Driver


class Volume(MemoryStorage):
    """A store on a volume that is as full as the test says. All figures are in MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.figures = {"free": 10_000, "buffered": 0, "merging": 0, "reserved": 0, "deleted": 0}
        self.reserve_bytes = 10 * MIB
        self.looks = 0
        self.gate = threading.Event()
        self.gate.set()

    def space(self) -> Space:
        self.looks += 1
        super().space()
        sizes = {name: count * MIB for name, count in self.figures.items()}
        return Space(**{**sizes, "deleted": self.figures["deleted"]})

    def hold_reserve(self) -> None:
        self.figures["reserved"] = 10

    def release_reserve(self) -> None:
        self.figures["reserved"] = 0

    def reclaim(self) -> None:
        assert self.gate.wait(60)
        super().reclaim()


@pytest.fixture
def volume() -> Volume:
    return Volume()


@pytest.fixture
async def disk(volume: Volume) -> Disk:
    disk = Disk(volume, 64 * MIB, unexpected)
    disk.start()
    return disk


def look(disk: Disk, volume: Volume, **figures: int) -> bool:
    """Let the volume change, write enough to look at it, and return whether it is low."""
    volume.figures |= figures
    disk.wrote(1 << 50)
    return disk.is_low


def unexpected(failure: StorageFailed) -> None:
    pytest.fail(failure.message)


async def until(what: Callable[[], bool]) -> None:
    """Wait for another thread."""
    async with asyncio.timeout(60):
        while not what():  # noqa: ASYNC110  # what is waited for sets no event
            await asyncio.sleep(0.01)


async def test_the_floor_covers_what_the_store_still_needs(disk: Disk, volume: Volume) -> None:
    assert not disk.is_low
    assert not look(disk, volume, free=64)
    assert look(disk, volume, buffered=1)
    assert not look(disk, volume, free=164, buffered=30, merging=50)
    assert look(disk, volume, merging=71)


async def test_room_has_to_return_before_enqueues_do(disk: Disk, volume: Volume) -> None:
    assert look(disk, volume, free=63)
    assert look(disk, volume, free=64)
    assert look(disk, volume, free=79)
    assert not look(disk, volume, free=80)


async def test_the_refusal_tells_the_truth(disk: Disk, volume: Volume) -> None:
    assert look(disk, volume, free=150, buffered=30, merging=70)
    refusal = disk.refusal()
    assert isinstance(refusal, DiskFull)
    assert refusal.message.startswith(
        "the data volume has 150 MiB free, and enqueues are refused below 164 MiB: 64 MiB for acks"
        " (storage.min_free_bytes) and 100 MiB to write out and merge what is stored; ack or purge"
    )


async def test_it_looks_sooner_the_less_room_there_is(disk: Disk, volume: Volume) -> None:
    before = volume.looks
    disk.wrote(1000 * MIB)
    assert volume.looks == before
    look(disk, volume, free=164)
    before = volume.looks
    disk.wrote(24 * MIB)
    assert volume.looks == before
    disk.wrote(2 * MIB)
    assert volume.looks == before + 1
    look(disk, volume, free=10)
    before = volume.looks
    for _ in range(10):
        disk.wrote(MIB)
    assert before + 5 <= volume.looks <= before + 10


async def test_it_looks_from_time_to_time(volume: Volume, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHECK_S", 0.01)
    disk = Disk(volume, 64 * MIB, unexpected)
    disk.start()
    volume.figures["free"] = 3
    await until(lambda: disk.is_low)
    disk.stop()
    looks = volume.looks
    await asyncio.sleep(0.05)
    assert volume.looks == looks


async def test_a_store_that_cannot_tell_has_failed(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHECK_S", 0.01)
    failures: list[StorageFailed] = []
    disk = Disk(volume, 64 * MIB, failures.append)
    disk.start()
    volume.close()
    with pytest.raises(StorageFailed, match="the store is closed"):
        disk.wrote(1 << 50)
    await until(lambda: bool(failures))
    assert failures[0].message == "the store is closed"
    disk.stop()


# --- Space that comes back ------------------------------------------------------------------------


async def test_settled_messages_are_asked_back_while_there_is_little_room(
    disk: Disk, volume: Volume
) -> None:
    look(disk, volume, free=10, deleted=0)
    assert volume.reclaims == 0  # nothing to be had
    look(disk, volume, deleted=1)
    await until(lambda: volume.reclaims == 1)
    disk.wrote(7 * MIB)
    disk.wrote(7 * MIB)
    await until(lambda: volume.reclaims == 2)


async def test_one_reclaim_at_a_time(disk: Disk, volume: Volume) -> None:
    volume.gate.clear()
    for _ in range(5):
        look(disk, volume, free=10, deleted=5)
    volume.gate.set()
    await until(lambda: volume.reclaims == 1)
    look(disk, volume)
    await until(lambda: volume.reclaims == 2)


async def test_while_there_is_room_nothing_is_asked_back_for_a_minute(
    disk: Disk, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(disk, volume, deleted=100_000)
    assert volume.reclaims == 0
    monkeypatch.setattr(module, "_IDLE_RECLAIM_S", -1.0)
    look(disk, volume, deleted=10)
    assert volume.reclaims == 0
    look(disk, volume, deleted=100_000)
    await until(lambda: volume.reclaims == 1)


async def test_a_reclaim_that_fails_is_told_and_tried_again(
    disk: Disk, volume: Volume, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise StorageFailed("no room to merge")

    with monkeypatch.context() as patch:
        patch.setattr(volume, "reclaim", fail)
        look(disk, volume, free=10, deleted=5)
        await until(lambda: "is not given back yet: no room to merge" in caplog.text)
    await until(lambda: look(disk, volume) and volume.reclaims == 1)


# --- The reserve ----------------------------------------------------------------------------------


async def test_a_reserve_is_held_when_the_volume_is_not_far_from_full(
    disk: Disk, volume: Volume
) -> None:
    look(disk, volume, free=300)
    assert volume.figures["reserved"] == 0
    look(disk, volume, free=290)
    assert volume.figures["reserved"] == 10


async def test_no_reserve_is_made_of_the_last_room(disk: Disk, volume: Volume) -> None:
    look(disk, volume, free=84)
    assert volume.figures["reserved"] == 0
    look(disk, volume, free=85)
    assert volume.figures["reserved"] == 10


async def test_the_reserve_is_given_up_before_buffers_cannot_be_written_out(
    disk: Disk, volume: Volume, caplog: pytest.LogCaptureFixture
) -> None:
    look(disk, volume, free=46, buffered=30, reserved=10)
    assert volume.figures["reserved"] == 10
    look(disk, volume, free=45)
    assert volume.figures["reserved"] == 0
    assert "45 MiB free: the reserve of 10 MiB is given up for acks" in caplog.text


# --- In the engine --------------------------------------------------------------------------------

Start = Callable[[MemoryStorage], Driver]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start engines that are stopped with the test."""
    started: list[Driver] = []

    def run(storage: MemoryStorage) -> Driver:
        started.append(Driver(storage).start())
        return started[-1]

    yield run
    for driver in started:
        driver.engine.stop()


async def test_an_almost_full_disk_refuses_enqueues_only(start: Start) -> None:
    store = MemoryStorage()
    driver = start(store)
    await driver.create("q")
    message_id = await driver.enqueue("q")
    driver.engine.stop()
    store = store.crash(power=False)
    store.free = 1000
    driver = start(store)
    with pytest.raises(DiskFull, match="has 0 MiB free, and enqueues are refused below 64 MiB"):
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


async def test_enqueues_that_wait_while_the_disk_fills_up_are_refused(start: Start) -> None:
    store = MemoryStorage()
    driver = start(store)
    await driver.create("q")
    first = await driver.enqueue("q")
    waiting = asyncio.ensure_future(driver.enqueue("q"))
    await asyncio.sleep(0)  # it is handed in, and not handled yet
    store.free = 1000
    driver.engine.disk.wrote(1 << 50)
    with pytest.raises(DiskFull):
        await waiting
    await driver.receive("q")
    await driver.ack("q", first)
    assert (await driver.stats("q")).depth == 0
