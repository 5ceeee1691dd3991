# SPDX-License-Identifier: AGPL-3.0-only
"""`fila enqueue --lines`: one message per line, in batches, with progress on stderr.

Lines are sent as they are read, so a file of any size needs little memory. A line that is refused
does not stop the others; a batch that is refused as a whole does.
"""

import io
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from fila_server.cli import failures, render
from fila_server.cli.session import Session
from fila_server.cli.words import counted, quoted

if TYPE_CHECKING:
    from rich.progress import Progress

    from fila import Client, EnqueueResult, FilaError

# Large enough that the cost of a call is small next to its messages.
_CHUNK = 1_000
# Refused lines that are kept to be reported one by one.
_ERRORS_KEPT = 20
# Errors that leave open whether a message was stored: none of the broker's own, or these.
_OUTCOME_UNKNOWN = (None, "STORAGE_FAILED", "INTERNAL")


@dataclass
class Tally:
    """What became of the lines so far."""

    stored: int = 0
    refused: int = 0
    errors: "list[tuple[int, FilaError]]" = field(default_factory=list)

    @property
    def lines(self) -> int:
        return self.stored + self.refused

    def add(self, results: "Sequence[EnqueueResult]") -> None:
        for result in results:
            if result.error is None:
                self.stored += 1
                continue
            if len(self.errors) < _ERRORS_KEPT:
                self.errors.append((self.lines + 1, result.error))
            self.refused += 1


def enqueue_lines(session: Session, message: dict[str, Any], source: str | None) -> None:
    """Enqueues every line of the source with the same headers and options."""
    tally = Tally()
    with _open(source) as stream, session.client() as client:
        _send_all(session, client, message, stream, tally)
    if not tally.stored and tally.errors:
        raise tally.errors[0][1]
    if session.json:
        render.print_document(
            {
                "queue": message["queue"],
                "stored": tally.stored,
                "refused": tally.refused,
                "errors": [
                    {"line": line, "reason": error.reason, "message": error.message}
                    for line, error in tally.errors
                ],
            }
        )
    if tally.refused:
        line, error = tally.errors[0]
        why = failures.describe(error, session)
        text = failures.lines_refused(tally.stored, tally.refused, line, why)
        raise click.ClickException(text)
    if not session.json:
        render.say(f"Enqueued {counted(tally.stored, 'message')} to {quoted(message['queue'])}")


def _open(source: str | None) -> BinaryIO:
    if source is None or source == "-":
        return sys.stdin.buffer
    if not source.startswith("@"):
        return io.BytesIO(source.encode(errors="surrogateescape"))
    try:
        return open(source[1:], "rb")
    except OSError as error:
        raise click.UsageError(failures.unreadable_file(source[1:], error)) from error


def _send_all(
    session: Session, client: "Client", message: dict[str, Any], stream: BinaryIO, tally: Tally
) -> None:
    from fila import EnqueueMessage

    with _progress() as progress:
        task = progress.add_task("", total=None, stored=counted(0, "message"))
        while chunk := list(itertools.islice(stream, _CHUNK)):
            first = tally.lines + 1
            results = client.enqueue_many(
                EnqueueMessage(**message, payload=_without_line_end(line)) for line in chunk
            )
            tally.add(results)
            progress.update(task, stored=counted(tally.stored, "message"))
            for line, result in enumerate(results, start=first):
                if result.error is not None and result.error.reason in _OUTCOME_UNKNOWN:
                    why = failures.describe(result.error, session)
                    text = failures.lines_interrupted(tally.stored, line, tally.lines, why)
                    raise click.ClickException(text)
            if all(result.error is not None for result in results):
                return


def _without_line_end(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def _progress() -> "Progress":
    # Slow to import, and only this command shows progress.
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = render.console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.fields[stored]} stored"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
