# SPDX-License-Identifier: AGPL-3.0-only
"""What open pages of the dashboard cost the broker, and what a neighbour notices of them.

Pages poll as the dashboard does, half of them the overview and half a queue. The processor time of
the broker with pages is set against the time without, both beside one client that enqueues.
"""

import argparse
import asyncio
import time
from statistics import median
from typing import NamedTuple

import aiohttp

import fila
from bench.broker import Measured, serving
from bench.report import Report, percentile

POLL_S = 2.0
QUEUES = 50
KEYS = 100


class Seen(NamedTuple):
    """One measurement: part of a core, and a neighbour's enqueues in seconds."""

    core: float
    enqueues: list[float]
    polls: list[float]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pages", type=int, default=100, help="open pages (100)")
    parser.add_argument("--seconds", type=float, default=20.0, help="per measurement (20)")


def run(chosen: argparse.Namespace) -> None:
    report = Report(f"pages: {chosen.pages} open", chosen.json)
    with serving() as (broker, http_address):
        _furnish(broker.address)
        report.progress("without pages")
        without = asyncio.run(_measure(broker, http_address, 0, chosen.seconds))
        report.progress("with pages")
        pages = asyncio.run(_measure(broker, http_address, chosen.pages, chosen.seconds))
    cost = pages.core - without.core
    report.add(
        f"{chosen.pages} pages", f"{cost:.1%} of a core", "under 5 %", pages_core=round(cost, 4)
    )
    report.add("a poll, p50 / p99", _times(pages.polls), poll_p50_s=median(pages.polls))
    for name, seen in (("without pages", without), ("with pages", pages)):
        report.add(f"a neighbour's enqueue {name}, p50 / p99", _times(seen.enqueues))
    report.show()


def _times(seconds: list[float]) -> str:
    return f"{median(seconds) * 1000:.1f} / {percentile(seconds, 99) * 1000:.1f} ms"


def _furnish(address: str) -> None:
    """Make queues with backlogs of many keys, so that there is something to show."""
    with fila.Client(address) as client:
        for number in range(QUEUES):
            client.create_queue(f"queue-{number}")
            client.enqueue_many(
                fila.EnqueueMessage(f"queue-{number}", payload=b"x", fairness_key=f"key-{key}")
                for key in range(KEYS)
            )


async def _measure(broker: Measured, http_address: str, pages: int, seconds: float) -> Seen:
    polls: list[float] = []
    enqueues: list[float] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(f"http://{http_address}", connector=connector) as client,
        fila.AsyncClient(broker.address) as neighbour,
    ):
        opened = [
            asyncio.create_task(_page(client, number, number * POLL_S / pages, polls))
            for number in range(pages)
        ]
        await asyncio.sleep(POLL_S)
        began_cpu, began = broker.cpu_s(), time.monotonic()
        while time.monotonic() - began < seconds:
            asked = time.monotonic()
            await neighbour.enqueue("queue-0", {}, b"x")
            enqueues.append(time.monotonic() - asked)
            await asyncio.sleep(0.05)
        core = (broker.cpu_s() - began_cpu) / (time.monotonic() - began)
        for page in opened:
            page.cancel()
        await asyncio.gather(*opened, return_exceptions=True)
    return Seen(core, enqueues, polls)


async def _page(
    client: aiohttp.ClientSession, number: int, after_s: float, polls: list[float]
) -> None:
    path = "/api/overview" if number % 2 else f"/api/queue?name=queue-{number % 10}"
    await asyncio.sleep(after_s)
    while True:
        asked = time.monotonic()
        async with client.get(path) as response:
            await response.read()
            assert response.status == 200
        polls.append(time.monotonic() - asked)
        await asyncio.sleep(POLL_S)
