# SPDX-License-Identifier: AGPL-3.0-only
"""`fila config ...`, `fila redrive` and `fila explain`: operating a broker that runs."""

from collections.abc import Sequence

import click

from fila_server.cli import failures, render
from fila_server.cli.command import BrokerCommand, CommandGroup
from fila_server.cli.session import Session, pass_session
from fila_server.cli.sheet import Column, Table
from fila_server.cli.values import Whole
from fila_server.cli.words import counted, quoted, shell_word


@click.group(cls=CommandGroup, example="fila config set plan:acme gold\nfila config list")
def config() -> None:
    """Set, read and remove runtime settings, which hooks read too."""


@config.command("set", cls=BrokerCommand, example="fila config set plan:acme gold")
@click.argument("key")
@click.argument("value")
@pass_session
def set_(session: Session, key: str, value: str) -> None:
    """Set one entry, in force at once and stored.

    An empty value ("") removes the entry.
    """
    with session.client() as client:
        client.set_config(key, value)
    if session.json:
        render.print_document({"key": key, "value": value})
    else:
        render.say(f"{'Set' if value else 'Removed'} {quoted(key)}")


@config.command(cls=BrokerCommand, example="fila config get plan:acme")
@click.argument("key")
@pass_session
def get(session: Session, key: str) -> None:
    """Print one entry's value."""
    with session.client() as client:
        value = client.get_config(key)
    if session.json:
        render.print_document({"key": key, "value": value})
    else:
        render.say(value)


@config.command("list", cls=BrokerCommand, example="fila config list --prefix throttle:")
@click.option("--prefix", default="", metavar="P", help="Only keys that start with this.")
@pass_session
def list_(session: Session, prefix: str) -> None:
    """List entries by key."""
    with session.client() as client:
        entries = client.list_config(prefix)
    if session.json:
        render.print_document({"entries": entries})
    elif entries:
        columns = [Column("KEY", keep=True), Column("VALUE")]
        render.show(Table(columns, sorted(entries.items())))
    elif prefix:
        render.say(f"No entries start with {quoted(prefix)}. See all with: fila config list")
    else:
        render.say("No entries yet. Set one with: fila config set KEY VALUE")


@config.command(cls=BrokerCommand, example="fila config delete plan:acme")
@click.argument("key")
@pass_session
def delete(session: Session, key: str) -> None:
    """Remove one entry, and any limit it set with it."""
    with session.client() as client:
        client.delete_config(key)
    if session.json:
        render.print_document({"key": key, "deleted": True})
    else:
        render.say(f"Deleted {quoted(key)}")


@click.command(
    cls=BrokerCommand,
    example="""
    fila redrive orders.dlq
    fila redrive orders.dlq --count 100 --key acme --error-contains timeout""",
)
@click.argument("dlq")
@click.option("--count", type=Whole(min=1), metavar="N", help="The most to move; all unless told.")
@click.option("--key", metavar="K", help="Only this fairness key.")
@click.option("--error-contains", metavar="TEXT", help="Only where the last error contains this.")
@click.option(
    "--message",
    "message_ids",
    multiple=True,
    metavar="ID",
    help=("Only this message; may be repeated."),
)
@pass_session
def redrive(
    session: Session,
    dlq: str,
    count: int | None,
    key: str | None,
    error_contains: str | None,
    message_ids: Sequence[str],
) -> None:
    """Move dead letters back where they came from, oldest first.

    Each is enqueued again: on_enqueue runs, attempts start at 0, the history of failures stays.
    """
    with session.client() as client:
        moved = client.redrive(
            dlq,
            count,
            fairness_key=key,
            error_contains=error_contains,
            message_ids=message_ids,
        )
    parent = dlq.removesuffix(".dlq")
    if session.json:
        render.print_document({"queue": parent, "dead_letter_queue": dlq, "redriven": moved})
    elif moved:
        render.say(f"Redrove {counted(moved, 'message')} from {quoted(dlq)} to {quoted(parent)}")
    else:
        render.say(
            f"Nothing to redrive from {quoted(dlq)}; see what it holds: fila peek {shell_word(dlq)}"
        )


@click.command(
    cls=BrokerCommand,
    example="""
    fila explain orders --key acme
    fila explain orders --message 0198c0de-7a3b-7cc1-9d52-2f4b8a1e6c90""",
)
@click.argument("queue")
@click.option("--key", metavar="K", help="The fairness key to explain.")
@click.option("--message", "message_id", metavar="ID", help="The message to explain.")
@pass_session
def explain(session: Session, queue: str, key: str | None, message_id: str | None) -> None:
    """Say why a fairness key or a message waits, and for how long."""
    if bool(key) == bool(message_id):
        raise click.UsageError(failures.KEY_OR_MESSAGE)
    with session.client() as client:
        found = client.explain(queue, fairness_key=key, message_id=message_id)
    if session.json:
        render.print_document({"queue": queue, **render.plain(found)})
    else:
        from fila_server.cli import views

        render.show(*views.explanation(found))
