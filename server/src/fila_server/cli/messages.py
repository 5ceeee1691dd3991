# SPDX-License-Identifier: AGPL-3.0-only
"""`fila enqueue`, `peek` and `cancel`: single messages, by hand or by script."""

from collections.abc import Sequence
from typing import Any

import click

from fila_server.cli import documents, failures, render
from fila_server.cli.command import BrokerCommand
from fila_server.cli.session import Session, pass_session
from fila_server.cli.values import DURATION, PAIR, Whole, read_payload
from fila_server.cli.words import quoted, shell_word
from fila_server.limits import DEFAULT_PEEK, MAX_PEEK, MAX_THROTTLE_COST, MAX_WEIGHT


@click.command(
    cls=BrokerCommand,
    example="""
    fila enqueue orders --header tenant=acme --payload '{"total": 12}'
    fila enqueue orders --key acme --payload @order.json --delay 5m
    fila enqueue orders --key acme < order.json
    fila enqueue orders --key acme --lines < orders.jsonl""",
)
@click.argument("queue")
@click.option("--header", "headers", type=PAIR, multiple=True, help="A header; may be repeated.")
@click.option(
    "--payload", metavar="TEXT|@FILE|-", help="The payload; what is piped in unless told."
)
@click.option("--key", "fairness_key", metavar="FAIRNESS_KEY", help="Whose turn it waits for.")
@click.option("--weight", type=Whole(1, MAX_WEIGHT), metavar="N", help="The key's share.")
@click.option(
    "--throttle-key",
    "throttle_keys",
    multiple=True,
    metavar="K",
    help=("A limit that the delivery takes from; may be repeated."),
)
@click.option(
    "--throttle-cost",
    type=Whole(1, MAX_THROTTLE_COST),
    metavar="N",
    help="Tokens it takes.",
)
@click.option("--delay", "delay_ms", type=DURATION, help="Deliver no earlier than this from now.")
@click.option("--ttl", "ttl_ms", type=DURATION, help="Drop it when not delivered in this time.")
@click.option("--idempotency-key", metavar="K", help="Store it once, however often it is sent.")
@click.option(
    "--lines",
    "by_line",
    is_flag=True,
    help=("One message per line of the payload; standard input unless --payload is given."),
)
@pass_session
def enqueue(
    session: Session,
    /,
    queue: str,
    headers: Sequence[tuple[str, str]],
    payload: str | None,
    by_line: bool,
    **options: Any,
) -> None:
    """Store a message, or one message per line of a file.

    Without --payload the payload is what is piped in, byte for byte, a final line end included;
    at a terminal it is empty. Durations are milliseconds, or 30s, 5m, 2h, 7d. Where the queue has
    an on_enqueue hook, the hook decides key, weight and throttle keys.
    """
    message = {"queue": queue, "headers": dict(headers), **options}
    if by_line:
        if options["idempotency_key"] is not None:
            raise click.UsageError(failures.LINES_NEED_OWN_KEYS)
        from fila_server.cli import lines

        lines.enqueue_lines(session, message, payload)
    else:
        _enqueue_one(session, {**message, "payload": read_payload(payload)})


def _enqueue_one(session: Session, message: dict[str, Any]) -> None:
    from fila import EnqueueMessage

    queue = message["queue"]
    with session.client() as client:
        result = client.enqueue_many([EnqueueMessage(**message)])[0]
    message_id = result.unwrap()
    if session.json:
        answer = {"queue": queue, "message_id": message_id, "duplicate": result.duplicate}
        render.print_document(answer)
    elif result.duplicate:
        render.say(f"Already in {quoted(queue)} under this idempotency key: {message_id}")
    else:
        render.say(f"Enqueued {message_id} to {quoted(queue)}")


@click.command(
    cls=BrokerCommand,
    example="""
    fila peek orders --limit 20 --key acme
    fila peek orders.dlq --json""",
)
@click.argument("queue")
@click.option(
    "--limit",
    type=Whole(1, MAX_PEEK),
    default=DEFAULT_PEEK,
    show_default=True,
    metavar="N",
    help=("The most messages to show."),
)
@click.option("--key", metavar="K", help="Only this fairness key.")
@click.option(
    "--state",
    type=click.Choice(["pending", "delayed", "leased"]),
    help=("Only messages in this state."),
)
@pass_session
def peek(session: Session, queue: str, limit: int, key: str | None, state: str | None) -> None:
    """Show messages without leasing them, oldest first."""
    with session.client() as client:
        page = client.peek(queue, limit, fairness_key=key, state=state)
    if session.json:
        for found in page.messages:
            render.print_json_line(documents.peeked(found))
    elif not page.messages:
        render.say(
            f"Nothing to see in {quoted(queue)}; its numbers: fila stats {shell_word(queue)}"
        )
    else:
        from fila_server.cli import views

        render.show(views.peeked(page))
    if page.next_position:
        render.note(f"More messages follow; show up to {MAX_PEEK:,} with --limit (now {limit})")


@click.command(cls=BrokerCommand, example="fila cancel orders 0198c0de-7a3b-7cc1-9d52-2f4b8a1e6c90")
@click.argument("queue")
@click.argument("message_id")
@pass_session
def cancel(session: Session, queue: str, message_id: str) -> None:
    """Drop one message that is not leased."""
    with session.client() as client:
        client.cancel(queue, message_id)
    if session.json:
        render.print_document({"queue": queue, "message_id": message_id, "cancelled": True})
    else:
        render.say(f"Cancelled message {quoted(message_id)} of queue {quoted(queue)}")
