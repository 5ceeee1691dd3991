# SPDX-License-Identifier: AGPL-3.0-only
"""`fila top` and `fila stats`: queues and their numbers, live or once.

`stats --watch` is `top` with a queue. What watching takes is imported by who watches.
"""

import click

from fila_server.cli import documents, failures, render
from fila_server.cli.command import BrokerCommand
from fila_server.cli.session import Session, pass_session
from fila_server.cli.values import Finite, Whole

_INTERVAL = click.option(
    "--interval",
    type=Finite(min=0.1),
    default=1.0,
    show_default=True,
    metavar="S",
    help=("Seconds between looks."),
)
_COUNT = click.option("--count", type=Whole(min=1), metavar="N", help="Stop after this many looks.")


@click.command(
    cls=BrokerCommand,
    example="""
    fila top
    fila top orders
    fila top --count 1 --json""",
)
@click.argument("queue", required=False)
@_INTERVAL
@_COUNT
@pass_session
def top(session: Session, queue: str | None, interval: float, count: int | None) -> None:
    """Watch all queues, or who gets how much of one.

    Ends with q or Ctrl-C. Queues in trouble come first. With QUEUE, each fairness key's share of
    the deliveries since the last look stands beside the share that its weight entitles it to. In a
    pipe there is a line per queue and look, with --json a document per look.
    """
    from fila_server.cli.watch import watch

    watch(session, queue, interval, count)


@click.command(
    cls=BrokerCommand,
    example="""
    fila stats orders
    fila stats orders --watch --interval 2""",
)
@click.argument("queue")
@click.option(
    "--watch",
    "is_watched",
    is_flag=True,
    help="Look again and again: the same as fila top QUEUE.",
)
@_INTERVAL
@_COUNT
@pass_session
def stats(
    session: Session, queue: str, is_watched: bool, interval: float, count: int | None
) -> None:
    """Show what a queue holds and who waits in it."""
    if is_watched:
        from fila_server.cli.watch import watch

        watch(session, queue, interval, count)
        return
    if count is not None:
        raise click.UsageError(failures.COUNT_NEEDS_WATCH)
    with session.client() as client:
        found = client.stats(queue)
    if session.json:
        render.print_document(documents.stats(queue, found))
    else:
        from fila_server.cli import views

        render.show(*views.stats(found))
