# SPDX-License-Identifier: AGPL-3.0-only
"""`fila ack`, `nack` and `extend`: what becomes of one leased message, by its id.

`fila consume --json` shows the lease token of each delivery. With it a settlement counts only while
that delivery's lease is live; without it the id alone decides.
"""

import click

from fila_server.cli import failures, render
from fila_server.cli.command import BrokerCommand
from fila_server.cli.session import Session, pass_session
from fila_server.cli.values import DURATION
from fila_server.cli.words import duration, quoted, until

_ID = "0198c0de-7a3b-7cc1-9d52-2f4b8a1e6c90"
_TOKEN = click.option(
    "--token", metavar="T", help="The delivery's lease token; a stale one is refused."
)


@click.command(cls=BrokerCommand, example=f"fila ack orders {_ID} --token 1f")
@click.argument("queue")
@click.argument("message_id")
@_TOKEN
@pass_session
def ack(session: Session, queue: str, message_id: str, token: str | None) -> None:
    """Report that a leased message was processed; it is gone."""
    with session.client() as client:
        client.ack(queue, message_id, token)
    _say_settled(session, queue, message_id, "ack", "Acked")


@click.command(
    cls=BrokerCommand,
    example=f"""
    fila nack orders {_ID} --error "card declined"
    fila nack orders {_ID} --retry-after 30s
    fila nack orders {_ID} --dead-letter""",
)
@click.argument("queue")
@click.argument("message_id")
@_TOKEN
@click.option("--error", default="", metavar="TEXT", help="What went wrong.")
@click.option(
    "--retry-after",
    "retry_after_ms",
    type=DURATION,
    help="Put off, not failed: comes back after this, no attempt counted.",
)
@click.option(
    "--throttle-key",
    metavar="K",
    help="With --retry-after: lets nothing through until then, for anybody.",
)
@click.option("--dead-letter", is_flag=True, help="Hopeless: to the dead letters at once.")
@pass_session
def nack(
    session: Session,
    queue: str,
    message_id: str,
    token: str | None,
    error: str,
    retry_after_ms: int | None,
    throttle_key: str | None,
    dead_letter: bool,
) -> None:
    """Report that processing failed.

    The message is retried or dead-lettered, as the queue's settings or its hook say.
    """
    if throttle_key is not None and retry_after_ms is None:
        raise click.UsageError(failures.THROTTLE_KEY_NEEDS_TIME)
    if dead_letter and retry_after_ms is not None:
        raise click.UsageError(failures.HOPELESS_OR_LATER)
    with session.client() as client:
        client.nack(
            queue,
            message_id,
            error,
            token,
            retry_after_ms=retry_after_ms,
            throttle_key=throttle_key,
            dead_letter=dead_letter,
        )
    if dead_letter:
        _say_settled(session, queue, message_id, "dead_letter", "Dead-lettered")
    elif retry_after_ms is None:
        _say_settled(session, queue, message_id, "nack", "Nacked")
    else:
        put_off = f"Put off for {duration(retry_after_ms)}:"
        _say_settled(session, queue, message_id, "retry", put_off)


@click.command(cls=BrokerCommand, example=f"fila extend orders {_ID} --token 1f --for 5m")
@click.argument("queue")
@click.argument("message_id")
@_TOKEN
@click.option(
    "--for", "ms", type=DURATION, help="From now; the queue's visibility timeout unless told."
)
@pass_session
def extend(
    session: Session, queue: str, message_id: str, token: str | None, ms: int | None
) -> None:
    """Prolong a lease, counted from now."""
    if ms == 0:
        raise click.UsageError(failures.BAD_EXTENSION)
    with session.client() as client:
        end = client.extend(queue, message_id, token, ms)
    if session.json:
        answer = {"queue": queue, "message_id": message_id, "lease_expires_at": end}
        render.print_document(answer)
    else:
        render.say(f"The lease of {quoted(message_id)} in {quoted(queue)} ends in {until(end)}")


def _say_settled(session: Session, queue: str, message_id: str, how: str, verb: str) -> None:
    if session.json:
        render.print_document({"queue": queue, "message_id": message_id, "settled": how})
    else:
        render.say(f"{verb} message {quoted(message_id)} of queue {quoted(queue)}")
