# SPDX-License-Identifier: AGPL-3.0-only
"""`fila consume`: lease messages, print them, and settle what was printed.

Messages come and are settled by the hundred. Whatever ends the command, Ctrl-C and a closed pipe
included, what was printed is settled as asked and what was not is given back, with no attempt
counted. Running a command for each message is `work.py`.
"""

import sys
import time
from typing import TYPE_CHECKING

import click

from fila_server.cli import documents, failures, render
from fila_server.cli.command import BrokerCommand
from fila_server.cli.session import Session, pass_session
from fila_server.cli.values import DURATION, Finite, Whole
from fila_server.cli.words import counted, duration, shell_word, until

if TYPE_CHECKING:
    from fila import Client, ConsumeMessage, FilaError

# Messages asked for at a time: enough to drain a queue quickly, few enough to settle as one batch.
_CHUNK = 100
# One call waits no longer than this, so that Ctrl-C and a lost broker are noticed soon.
WAIT_SLICE_S = 2.0
_DEFAULT_WAIT_S = 5.0
# For commands that are put off: long enough for a provider to recover, short enough to wait for.
_DEFAULT_RETRY_AFTER_MS = 10_000
# The broker's own default. It is extended, so it only says how soon a dead worker is noticed.
_DEFAULT_LEASE_MS = 30_000
# Programs at once; each is a process, and a shell's worth of memory.
_MAX_CONCURRENCY = 1_000


@click.command(
    cls=BrokerCommand,
    example="""
    fila consume orders
    fila consume orders --count 100 --ack --json
    fila consume orders --count 0 --ack --payload-only > payloads.txt
    fila consume orders --nack --error "card declined"
    fila consume orders --count 0 --concurrency 4 --exec './charge.sh'""",
)
@click.argument("queue")
@click.option(
    "--count",
    type=Whole(min=0),
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
@click.option(
    "--exec", "command", metavar="CMD", help="Run this for each message; settle by its exit code."
)
@click.option(
    "--concurrency",
    type=Whole(1, _MAX_CONCURRENCY),
    metavar="N",
    help="With --exec: how many run at a time; 1 unless told.",
)
@click.option(
    "--retry-after",
    "retry_after_ms",
    type=DURATION,
    help="With --exec: when a message comes back that CMD put off; 10s unless told.",
)
@click.option(
    "--lease",
    "lease_ms",
    type=DURATION,
    help="With --exec: how soon it comes back if this machine dies; 30s unless told.",
)
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
    command: str | None,
    concurrency: int | None,
    retry_after_ms: int | None,
    lease_ms: int | None,
) -> None:
    """Lease messages and print them, or run a command for each.

    Without --ack or --nack the leases simply run out: the messages come back, and each run-out
    counts as a failed attempt. To look without leasing, use: fila peek.

    With --exec, CMD runs in a shell with the payload on standard input and FILA_MESSAGE_ID,
    FILA_QUEUE, FILA_FAIRNESS_KEY, FILA_ATTEMPT_COUNT, FILA_LEASE_TOKEN, FILA_HEADERS (JSON) and
    FILA_HEADER_<NAME> in the environment. Exit code 0 acks. 75 puts the message off, with no
    attempt counted. 126 and 127, which say that CMD cannot be run, give the message back and stop.
    Any other nacks with the last line of standard error. The lease is extended while CMD runs.
    Ctrl-C waits for what runs, a second one ends it and gives it back.
    """
    _check(session, ack, nack, error, payload_only, command)
    if wait is None and count:
        wait = _DEFAULT_WAIT_S
    if command is not None:
        from fila_server.cli.work import Work

        put_off_ms = _DEFAULT_RETRY_AFTER_MS if retry_after_ms is None else retry_after_ms
        lease_ms = lease_ms or _DEFAULT_LEASE_MS
        Work(session, queue, command, concurrency or 1, put_off_ms, lease_ms).run(count, wait)
        return
    if any(option is not None for option in (concurrency, retry_after_ms, lease_ms)):
        raise click.UsageError(failures.NEEDS_EXEC)
    printer = _Printer(session, ack, nack, error or "", payload_only)
    try:
        with session.client() as client:
            while count == 0 or printer.printed < count:
                wanted = min(count - printer.printed, _CHUNK) if count else _CHUNK
                batch = receive(client, queue, wanted, wait)
                if not batch:
                    break
                printer.handle(client, batch)
    finally:
        if printer.printed:
            printer.report()
    if not printer.printed:
        waited = duration((wait or 0) * 1_000)
        see = f"see why with: fila stats {shell_word(queue)}"
        render.note(f"No message became ready within {waited}; {see}")


def _check(
    session: Session,
    ack: bool,
    nack: bool,
    error: str | None,
    payload_only: bool,
    command: str | None,
) -> None:
    if ack and nack:
        raise click.UsageError(failures.ACK_OR_NACK)
    if command is not None and (ack or nack or payload_only):
        raise click.UsageError(failures.EXEC_SETTLES)
    if command is not None and not command.strip():
        raise click.UsageError(failures.EMPTY_EXEC)
    if error is not None and not nack:
        raise click.UsageError(failures.ERROR_NEEDS_NACK)
    if payload_only and session.json:
        raise click.UsageError(failures.JSON_OR_PAYLOAD)


def receive(
    client: "Client", queue: str, count: int, wait_s: float | None
) -> "list[ConsumeMessage]":
    """The next messages; none when the wait is over."""
    deadline = None if wait_s is None else time.monotonic() + wait_s
    while True:
        left_s = WAIT_SLICE_S if deadline is None else deadline - time.monotonic()
        slice_ms = round(max(0.0, min(left_s, WAIT_SLICE_S)) * 1_000)
        batch = client.receive(queue, count, wait_ms=slice_ms)
        if batch or (deadline is not None and time.monotonic() >= deadline):
            return batch


def give_back(client: "Client", messages: "list[ConsumeMessage]") -> None:
    """Returns messages that nobody has seen; those that cannot be come back with their leases."""
    from fila import FilaError

    for message in messages:
        try:
            client.nack(message.queue, message.id, "", message.lease_token, retry_after_ms=0)
        except FilaError:
            return


class _Printer:
    """Prints batches and settles what was printed."""

    def __init__(
        self, session: Session, ack: bool, nack: bool, error: str, payload_only: bool
    ) -> None:
        self._session = session
        self._ack = ack
        self._nack = nack
        self._error = error
        self._payload_only = payload_only
        self._last: ConsumeMessage | None = None
        self.printed = 0

    def handle(self, client: "Client", batch: "list[ConsumeMessage]") -> None:
        shown = 0
        try:
            for message in batch:
                self._print(message)
                shown += 1
        finally:
            self.printed += shown
            self._last = batch[shown - 1] if shown else self._last
            self._settle(client, batch[:shown])
            give_back(client, batch[shown:])

    def _print(self, message: "ConsumeMessage") -> None:
        if self._payload_only:
            sys.stdout.buffer.write(message.payload + b"\n")
            sys.stdout.buffer.flush()
        elif self._session.json:
            render.print_json_line(documents.leased(message))
        else:
            from fila_server.cli import views

            render.show(*views.message(message))

    def _settle(self, client: "Client", batch: "list[ConsumeMessage]") -> None:
        if not batch or not (self._ack or self._nack):
            return
        outcomes = client.ack_many(batch) if self._ack else client.nack_many(batch, self._error)
        failed: list[FilaError] = [outcome for outcome in outcomes if outcome is not None]
        if failed:
            self.printed -= len(failed)
            text = failures.settle_failed(self.printed, len(failed), failed[0].message)
            raise click.ClickException(text)

    def report(self) -> None:
        """Says on stderr what became of the messages."""
        if self._ack or self._nack:
            verb = "Acked" if self._ack else "Nacked"
            render.note(f"{verb} {counted(self.printed, 'message')}")
            return
        ends = until(self._last.lease_expires_at if self._last is not None else None)
        render.note(
            f"Leased {counted(self.printed, 'message')}, neither acked nor nacked: the last lease "
            f"ends in {ends}, then they come back; use --ack to take them"
        )
