# SPDX-License-Identifier: AGPL-3.0-only
"""How often views are gathered, whoever asks."""

from __future__ import annotations

import asyncio

import pytest

from fila_server.errors import Overloaded, QueueNotFound
from fila_server.http import gathering
from fila_server.http.gathering import Gatherer


class Source:
    """Counts how often it is asked, and by how many at once."""

    def __init__(self) -> None:
        self.asked = 0
        self.at_once = 0
        self.most_at_once = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> bytes:
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.gate.wait()
        await asyncio.sleep(0)
        self.at_once -= 1
        return b"%d" % self.asked


@pytest.fixture(autouse=True)
def _without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_FRESH_S", 1000.0)
    monkeypatch.setattr(gathering, "_REST", 0)


async def test_a_hundred_pages_are_one_question() -> None:
    source, gatherer = Source(), Gatherer()
    seen = await asyncio.gather(*(gatherer.view("overview", source) for _ in range(100)))
    assert set(seen) == {b"1"}
    assert await gatherer.view("overview", source) == b"1"
    assert source.asked == 1


async def test_what_is_no_longer_fresh_is_gathered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    source, gatherer = Source(), Gatherer()
    assert await gatherer.view("overview", source) == b"1"
    monkeypatch.setattr(gathering, "_FRESH_S", 0.0)
    assert await gatherer.view("overview", source) == b"2"


async def test_views_are_gathered_one_at_a_time() -> None:
    source, gatherer = Source(), Gatherer()
    await asyncio.gather(*(gatherer.view(number, source) for number in range(50)))
    assert (source.asked, source.most_at_once) == (50, 1)


async def test_gathering_rests_after_each_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_REST", 1_000_000)
    monkeypatch.setattr(gathering, "_REST_MAX_S", 1000.0)
    monkeypatch.setattr(gathering, "_PATIENCE_WITHOUT_S", 0.05)
    source, gatherer = Source(), Gatherer()
    assert await gatherer.view("one", source) == b"1"
    with pytest.raises(Overloaded):
        await gatherer.view("other", source)
    assert source.asked == 1
    gatherer.close()


async def test_a_page_that_would_wait_gets_what_there_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_PATIENCE_S", 0.01)
    source, gatherer = Source(), Gatherer()
    assert await gatherer.view("overview", source) == b"1"
    monkeypatch.setattr(gathering, "_FRESH_S", 0.0)
    source.gate.clear()
    assert await gatherer.view("overview", source) == b"1"
    source.gate.set()
    monkeypatch.setattr(gathering, "_PATIENCE_S", 60.0)
    assert await gatherer.view("overview", source) == b"2"


async def test_a_failure_is_everybodys_and_is_not_kept() -> None:
    async def fail() -> bytes:
        raise QueueNotFound('queue "gone" does not exist')

    source, gatherer = Source(), Gatherer()
    failed = await asyncio.gather(
        *(gatherer.view("gone", fail) for _ in range(3)), return_exceptions=True
    )
    assert [type(it) for it in failed] == [QueueNotFound] * 3
    assert await gatherer.view("gone", source) == b"1"


async def test_a_page_that_leaves_takes_nothing_from_the_others() -> None:
    source, gatherer = Source(), Gatherer()
    source.gate.clear()
    first = asyncio.create_task(gatherer.view("overview", source))
    second = asyncio.create_task(gatherer.view("overview", source))
    await asyncio.sleep(0.01)
    first.cancel()
    source.gate.set()
    assert await second == b"1"


async def test_views_that_nobody_looks_at_are_forgotten() -> None:
    source, gatherer = Source(), Gatherer()
    for number in range(200):
        await gatherer.view(number, source)
    assert len(gatherer._views) == gathering._VIEWS_MAX
    assert await gatherer.view(0, source) == b"201"


async def test_only_so_many_views_wait_also_when_those_who_asked_have_left() -> None:
    source, gatherer = Source(), Gatherer()
    source.gate.clear()
    for number in range(gathering._WAITING_MAX):
        asker = asyncio.create_task(gatherer.view(number, source))
        await asyncio.sleep(0)
        asker.cancel()
    with pytest.raises(Overloaded):
        await gatherer.view("one more", source)
    source.gate.set()
    assert await gatherer.view(0, source) == b"1"
    await asyncio.wait(gatherer._under_way.values())
    assert await gatherer.view("one more", source) == b"65"
