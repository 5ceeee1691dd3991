# SPDX-License-Identifier: AGPL-3.0-only
"""`fila enqueue`, `consume`, `peek` and `cancel`: single messages, by hand or by script."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fila_server.cli import failures, lines, render, views
from fila_server.cli.command import BrokerCommand
from fila_server.cli.session import Session, pass_session
from fila_server.cli.values import DURATION, PAIR, Finite, read_payload
from fila_server.cli.words import counted, duration, quoted, until

if TYPE_CHECKING:
    from fila import Client, ConsumeMessage, FilaError

# Messages asked for at a time: enough to drain a queue quickly, few enough to settle as one batch.
_CHUNK = 100
# One call waits no longer than this, so that Ctrl-C and a lost broker are noticed soon.
_WAIT_SLICE_S = 2.0
_DEFAULT_WAIT_S = 5.0


@click.command(
    cls=BrokerCommand,
    example="""
    fila enqueue orders --header tenant=acme --payload '{"total": 12}'
    fila enqueue orders --key acme --payload @order.json --delay 5m
    fila enqueue orders --key acme --lines < orders.jsonl""",
)
@click.argument("queue")
@click.option("--header", "headers", type=PAIR, multiple=True, help="A header; may be repeated.")
@click.option("--payload", metavar="TEXT|@FILE|-", help="The payload; - reads standard input.")
@click.option("--key", "fairness_key", metavar="FAIRNESS_KEY", help="Whose turn it waits for.")
@click.option("--weight", type=click.IntRange(min=1), metavar="N", help="The key's share.")
@click.option(
    "--throttle-key",
    "throttle_keys",
    multiple=True,
    metavar="K",
    help=("A limit that the delivery takes from; may be repeated."),
)
@click.option("--throttle-cost", type=click.IntRange(min=1), metavar="N", help="Tokens it takes.")
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

    Durations are milliseconds, or 30s, 5m, 2h, 7d. Where the queue has an on_enqueue hook, the
    hook decides key, weight and throttle keys.
    """
    message = {"queue": queue, "headers": dict(headers), **options}
    if by_line:
        if options["idempotency_key"] is not None:
            raise click.UsageError(failures.LINES_NEED_OWN_KEYS)
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
    fila consume orders
    fila consume orders --count 100 --ack --json
    fila consume orders --count 0 --ack --payload-only > payloads.txt
    fila consume orders --nack --error "card declined\"""",
)
@click.argument("queue")
@click.option(
    "--count",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="N",
    help=("Stop after this many messages; 0 goes on until Ctrl-C."),
)
@click.option("--ack", is_flag=True, help="Ack each message after it was printed.")
@click.option("--nack", is_flag=True, help="Nack each message after it was printed.")
@click.option("--error", metavar="TEXT", help="What a nack says went wrong.")
@click.option(
    "--wait",
    type=Finite(min=0),
    metavar="S",
    help=("Seconds to wait for the next message; 5 unless told, without end when --count is 0."),
)
@click.option("--payload-only", is_flag=True, help="Print payloads alone, a line end after each.")
@pass_session
def consume(
    session: Session,
    queue: str,
    count: int,
    ack: bool,
    nack: bool,
    error: str | None,
    wait: float | None,
    payload_only: bool,
) -> None:
    """Lease messages and print them.

    Without --ack or --nack the leases simply run out: the messages come back, and each run-out
    counts as a failed attempt. To look without leasing, use: fila peek.
    """
    if ack and nack:
        raise click.UsageError(failures.ACK_OR_NACK)
    if error is not None and not nack:
        raise click.UsageError(failures.ERROR_NEEDS_NACK)
    if payload_only and session.json:
        raise click.UsageError(failures.JSON_OR_PAYLOAD)
    if wait is None and count:
        wait = _DEFAULT_WAIT_S
    taken = 0
    with session.client() as client:
        while count == 0 or taken < count:
            wanted = min(count - taken, _CHUNK) if count else _CHUNK
            batch = _receive(client, queue, wanted, wait)
            if not batch:
                break
            for message in batch:
                _print_message(session, message, payload_only)
            _settle(client, batch, ack, nack, error)
            taken += len(batch)
    _report(queue, taken, batch, "Acked" if ack else "Nacked" if nack else None, wait)


def _receive(
    client: "Client", queue: str, count: int, wait_s: float | None
) -> "list[ConsumeMessage]":
    """The next messages; none when the wait is over."""
    deadline = None if wait_s is None else time.monotonic() + wait_s
    while True:
        left_s = _WAIT_SLICE_S if deadline is None else deadline - time.monotonic()
        slice_ms = round(max(0.0, min(left_s, _WAIT_SLICE_S)) * 1_000)
        batch = client.receive(queue, count, wait_ms=slice_ms)
        if batch or (deadline is not None and time.monotonic() >= deadline):
            return batch


def _print_message(session: Session, message: "ConsumeMessage", payload_only: bool) -> None:
    if payload_only:
        sys.stdout.buffer.write(message.payload + b"\n")
        sys.stdout.buffer.flush()
    elif session.json:
        render.print_json_line(views.message_document(message))
    else:
        render.show(views.message(message))


def _settle(
    client: "Client", batch: "list[ConsumeMessage]", ack: bool, nack: bool, error: str | None
) -> None:
    if not ack and not nack:
        return
    outcomes = client.ack_many(batch) if ack else client.nack_many(batch, error or "")
    failed: list[FilaError] = [outcome for outcome in outcomes if outcome is not None]
    if failed:
        text = failures.settle_failed(len(batch) - len(failed), len(failed), failed[0].message)
        raise click.ClickException(text)


def _report(
    queue: str, taken: int, last: "list[ConsumeMessage]", settled: str | None, wait: float | None
) -> None:
    if not taken:
        waited = duration((wait or 0) * 1_000)
        render.note(f"No message became ready within {waited}; see why with: fila stats {queue}")
    elif settled:
        render.note(f"{settled} {counted(taken, 'message')}")
    else:
        ends = until(last[-1].lease_expires_at if last else None)
        render.note(
            f"Leased {counted(taken, 'message')}, neither acked nor nacked: the last lease ends "
            f"in {ends}, then they come back; use --ack to take them"
        )


@click.command(
    cls=BrokerCommand,
    example="""
    fila peek orders --limit 20 --key acme
    fila peek orders.dlq --json""",
)
@click.argument("queue")
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000),
    default=10,
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
            render.print_json_line(views.peeked_document(found))
    elif not page.messages:
        render.say(f"Nothing to see in {quoted(queue)}; its numbers: fila stats {queue}")
    else:
        render.show(views.peeked(page))
    if page.next_position:
        render.note(f"More messages follow; show up to 1,000 with --limit (now {limit})")


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
