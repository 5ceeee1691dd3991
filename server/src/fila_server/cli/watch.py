# SPDX-License-Identifier: AGPL-3.0-only
"""Looking again and again: on a terminal's second screen, as a line per queue and look in a pipe,
as a JSON document per look with --json.

At a terminal a broker that goes away is waited for; elsewhere its loss ends the command.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fila_server.cli import documents, render
from fila_server.cli.overview import Rates, Row, rates, rows
from fila_server.cli.session import Session
from fila_server.cli.shares import Share, shares
from fila_server.cli.sheet import Part
from fila_server.cli.words import duration

if TYPE_CHECKING:
    from fila import Client, QueueInfo, QueueStats


@dataclass(slots=True)
class _AllQueues:
    """A look at every queue, and the one before it."""

    rows: list[Row]
    before: "Mapping[str, QueueInfo]"

    def look(self, client: "Client", seconds: float) -> None:
        found = client.list_queues()
        self.rows = rows(self.before, found, seconds)
        self.before = {info.name: info for info in found}

    def document(self) -> dict[str, Any]:
        return {"queues": [{**documents.queue(row.info), **_extra(row)} for row in self.rows]}

    def lines(self, at: str) -> Iterator[str]:
        from fila_server.cli import live

        for row in self.rows:
            yield live.overview_line(at, row)

    def view(self, title: str, height: int) -> list[Part]:
        from fila_server.cli import live

        return live.overview(title, self.rows, height)


@dataclass(slots=True)
class _OneQueue:
    """A look at one queue, and the one before it."""

    queue: str
    found: "QueueStats | None" = None
    rates: Rates | None = None
    shares: Mapping[str, Share] | None = None

    def look(self, client: "Client", seconds: float) -> None:
        before, found = self.found, client.stats(self.queue)
        self.rates = rates(before.counters if before is not None else None, found.counters, seconds)
        keys = before.per_key_stats if before is not None else ()
        self.shares = shares(keys, found.per_key_stats)
        self.found = found

    def document(self) -> dict[str, Any]:
        assert self.found is not None
        result = documents.stats(self.queue, self.found)
        for key in result["per_key_stats"]:
            share = (self.shares or {}).get(key["fairness_key"])
            key["share"] = None if share is None else round(share.share, 4)
            key["entitled_share"] = None if share is None else round(share.entitled, 4)
        return {**result, **_rates_document(self.rates)}

    def lines(self, at: str) -> Iterator[str]:
        from fila_server.cli import live

        found = self.found
        assert found is not None
        line = (
            f"{at} waiting {found.depth:,} in flight {found.in_flight:,} oldest "
            f"{duration(found.oldest_pending_age_ms)} {live.rates_line(self.rates)}"
        )
        yield line.rstrip()

    def view(self, title: str, height: int) -> list[Part]:
        from fila_server.cli import live

        assert self.found is not None
        return live.queue(title, self.found, self.rates, self.shares or {}, height)


def _extra(row: Row) -> dict[str, Any]:
    return {
        "dead_letters": row.dead_letters,
        **_rates_document(row.rates),
        "troubles": [{"kind": word.replace(" ", "_")} for word in row.troubles],
    }


def _rates_document(found: Rates | None) -> dict[str, float | None]:
    names = Rates.__dataclass_fields__
    return {
        f"{name}_per_second": None if found is None else round(getattr(found, name), 1)
        for name in names
    }


def watch(session: Session, queue: str | None, interval: float, count: int | None) -> None:
    """Look at all queues, or at one, until it is enough."""
    subject = _AllQueues([], {}) if queue is None else _OneQueue(queue)
    with session.client() as client:
        if not session.json and render.is_terminal():
            _draw(session, client, subject, queue, interval, count)
            return
        for seconds in _looks(interval, count, _sleep):
            subject.look(client, seconds)
            _print(session, subject)


def _draw(
    session: Session,
    client: "Client",
    subject: _AllQueues | _OneQueue,
    queue: str | None,
    interval: float,
    count: int | None,
) -> None:
    """Watches on a terminal; a broker that goes away is waited for."""
    from fila import DeadlineExceededError, UnavailableError
    from fila_server.cli import live
    from fila_server.cli.screen import Screen

    # The first look comes before the screen, so that what is wrong with it stays to be read.
    subject.look(client, 0.0)
    with Screen(render.console()) as screen:
        for seconds in _looks(interval, count, screen.is_quit_within):
            lost = ""
            if seconds:
                try:
                    subject.look(client, seconds)
                except (UnavailableError, DeadlineExceededError):
                    lost = "  NO ANSWER, trying again"
            at = datetime.now().strftime("%H:%M:%S")
            title = live.title(queue, session.addr, at, interval) + lost
            screen.draw(subject.view(title, shutil.get_terminal_size().lines))


def _looks(
    interval: float, count: int | None, is_over_after: Callable[[float], bool]
) -> Iterator[float]:
    """Yields when it is time to look: the seconds since the last time, 0 at first."""
    then = time.monotonic()
    yield 0.0
    looks = 1
    while count is None or looks < count:
        if is_over_after(max(0.0, interval - (time.monotonic() - then))):
            return
        now = time.monotonic()
        yield max(now - then, 1e-9)
        then = now
        looks += 1


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _print(session: Session, subject: _AllQueues | _OneQueue) -> None:
    now = datetime.now().astimezone()
    if session.json:
        render.print_json_line({"at": now, **subject.document()})
    else:
        for line in subject.lines(now.strftime("%H:%M:%S")):
            render.say(line)
