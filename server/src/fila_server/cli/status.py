# SPDX-License-Identifier: AGPL-3.0-only
"""`fila status`: how a broker is doing, what is wrong with it and what to do about it.

The exit code is 1 while something is critical (messages are refused or do not move), so that a
script or a timer can ask.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from fila_server.cli import documents, render
from fila_server.cli.command import BrokerCommand
from fila_server.cli.session import Session, pass_session
from fila_server.cli.sheet import Column, Table
from fila_server.cli.words import counted, one_line, since, size

if TYPE_CHECKING:
    from fila import BrokerStatus, Trouble


@click.command(
    cls=BrokerCommand,
    example="""
    fila status
    fila status --json | jq '.troubles[].remedy'""",
)
@pass_session
def status(session: Session) -> None:
    """Show how the broker is doing, what is wrong and what to do.

    The exit code is 1 while something is critical: messages are refused or do not move.
    """
    from fila import Severity

    with session.client() as client:
        found = client.status()
    if session.json:
        render.print_document(documents.status(found))
    else:
        columns = [Column("", keep=True), Column("", keep=True)]
        render.show(f"Broker at {one_line(session.addr)}", "")
        render.show(Table(columns, list(_facts(found)), header=False), "")
        for line in _troubles(found.troubles):
            render.say(line)
    if any(trouble.severity is Severity.CRITICAL for trouble in found.troubles):
        raise click.exceptions.Exit(1)


def _facts(found: "BrokerStatus") -> Iterator[tuple[str, str]]:
    yield "version", f"{found.version}, up {since(found.started_at)}, role {found.role or 'single'}"
    low = "ENQUEUES ARE REFUSED, " if found.disk_low else ""
    yield (
        "disk",
        f"{low}{size(found.disk_free_bytes)} free of {size(found.disk_total_bytes)}, enqueues are "
        f"refused below {size(found.disk_floor_bytes)}",
    )
    yield (
        "store",
        f"{found.data_dir}, sync {found.sync}: tables {size(found.table_bytes)}, buffers "
        f"{size(found.buffer_bytes)}, {size(found.compaction_bytes)} to merge",
    )
    yield "log", size(found.log_bytes)
    yield (
        "memory",
        f"{size(found.memory_bytes)}, of it {size(found.hot_bytes)} waiting messages and "
        f"{size(found.inbox_bytes)} waiting requests",
    )
    yield (
        "clients",
        f"{found.connections:,} of {counted(found.max_connections, 'connection')}, "
        f"{counted(found.consumers, 'consumer')}",
    )
    yield (
        "messages",
        f"{found.messages:,} in {counted(found.queues, 'queue')}, "
        f"{counted(found.dead_letters, 'dead letter')}",
    )
    if found.http_addr:
        yield "dashboard", found.http_addr


def _troubles(troubles: "tuple[Trouble, ...]") -> Iterator[str]:
    if not troubles:
        yield "Nothing is wrong."
    for trouble in troubles:
        level = str(trouble.severity or "unknown").upper()
        where = f'queue "{one_line(trouble.queue)}": ' if trouble.queue else ""
        yield f"{level}  {where}{one_line(trouble.what)}"
        if trouble.remedy:
            yield f"  what to do: {one_line(trouble.remedy)}"
