# SPDX-License-Identifier: AGPL-3.0-only
"""`fila stats`: one queue's numbers, once or over and over.

Watching redraws on a terminal, prints a line per look in a pipe, and a JSON line with --json.
"""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from fila_server.cli import render, views
from fila_server.cli.command import BrokerCommand
from fila_server.cli.session import Session, pass_session
from fila_server.cli.values import Finite
from fila_server.cli.words import duration, quoted

if TYPE_CHECKING:
    from fila import Client, QueueStats

# Rows of fairness keys that fit under the totals on a terminal of 24 lines.
_WATCH_KEYS = 8


@click.command(
    cls=BrokerCommand,
    example="""
    fila stats orders
    fila stats orders --watch --interval 2""",
)
@click.argument("queue")
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option(
    "--interval",
    type=Finite(min=0.1),
    default=1.0,
    show_default=True,
    metavar="S",
    help=("Seconds between looks."),
)
@pass_session
def stats(session: Session, queue: str, watch: bool, interval: float) -> None:
    """Show what a queue holds and who waits in it."""
    with session.client() as client:
        if watch:
            _watch(session, client, queue, interval)
            return
        found = client.stats(queue)
    if session.json:
        render.print_document({"queue": queue, **render.plain(found)})
    else:
        render.show(*views.stats(found))


def _watch(session: Session, client: "Client", queue: str, interval: float) -> None:
    looks = _looks(client, queue, interval)
    console = render.console()
    if session.json:
        for found, _ in looks:
            render.print_json_line(
                {"queue": queue, "at": datetime.now().astimezone(), **render.plain(found)}
            )
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for found, rates in looks:
                head = Text(f"Queue {quoted(queue)}  {rates}", style="bold")
                live.update(Group(head, "", *views.stats(found, _WATCH_KEYS)), refresh=True)
    else:
        for found, rates in looks:
            at = datetime.now().strftime("%H:%M:%S")
            render.say(
                f"{at} waiting {found.depth:,} in flight {found.in_flight:,} "
                f"oldest {duration(found.oldest_pending_age_ms)} {rates}"
            )


def _looks(client: "Client", queue: str, interval: float) -> "Iterator[tuple[QueueStats, str]]":
    """A look at the queue and the rates since the last one, every interval."""
    before: QueueStats | None = None
    then = 0.0
    while True:
        now = time.monotonic()
        found = client.stats(queue)
        yield found, _rates(before, found, now - then) if before is not None else ""
        before, then = found, now
        time.sleep(max(0.0, interval - (time.monotonic() - now)))


def _rates(before: "QueueStats", after: "QueueStats", seconds: float) -> str:
    pairs = (
        ("in", before.counters.enqueued, after.counters.enqueued),
        ("delivered", before.counters.delivered, after.counters.delivered),
        ("acked", before.counters.acked, after.counters.acked),
    )
    return "  ".join(f"{name} {(new - old) / seconds:,.0f}/s" for name, old, new in pairs)
