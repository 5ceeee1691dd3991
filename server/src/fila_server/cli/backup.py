# SPDX-License-Identifier: AGPL-3.0-only
"""`fila backup`, `fila verify`, `fila restore`: copies of a broker's store.

A backup is made by the broker. The other two work on the files of this machine, with no broker, so
they use the broker's own code for them. It is imported when they run: RocksDB takes a while.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fila_server.cli import render
from fila_server.cli.command import BrokerCommand, OfflineCommand
from fila_server.cli.session import Session, pass_session
from fila_server.cli.sheet import Column, Table
from fila_server.cli.words import counted, one_line

if TYPE_CHECKING:
    from fila_server.storage.backups.contents import Verified

Tell = Callable[[str, int, int], None]

_EXISTING = click.Path(exists=True, file_okay=False, path_type=Path)
_ANY = click.Path(path_type=Path)

_WORDS = {
    "checkpoint": "Writing out memory",
    "checksums": "Comparing checksums",
    "copy": "Copying",
    "verify": "Reading every record",
}


@click.command(
    cls=BrokerCommand,
    example="fila backup\nfila backup daily",
)
@click.argument("directory", metavar="[DIR]", default="")
@pass_session
def backup(session: Session, directory: str) -> None:
    """Copy the broker's store while it runs, and verify the copy.

    DIR is a directory of the broker's machine inside its storage.backup_dir, or relative to that;
    without one it is that itself. Each backup gets a directory of its own in it, named after the
    time, and shares the files that have not changed with the one before. Deleting one never harms
    another.
    """
    with session.client() as client, _progress(session) as tell:
        for step in client.backup(directory):
            tell(step.phase, step.done_bytes, step.total_bytes)
    made = {"path": step.path, "messages": step.messages, "copied_bytes": step.copied_bytes}
    if session.json:
        render.print_document(made)
    else:
        render.say(
            f"Backed up {counted(step.messages, 'message')} to {one_line(step.path)}"
            f" ({size(step.copied_bytes)} copied), and read it back"
        )


@click.command(
    cls=OfflineCommand,
    example="fila verify /backups/20260730-101530Z\nfila verify /var/lib/fila",
)
@click.argument("directory", metavar="DIR", type=_EXISTING)
@pass_session
def verify(session: Session, directory: Path) -> None:
    """Read all of a backup, or of a stopped broker's data directory.

    Compares every checksum, parses every record, and says what is in it. Changes nothing. Exit code
    1 names what is damaged.
    """
    from fila_server.storage.backups import contents

    with _progress(session) as tell, _one_line_errors():
        verified = contents.verify(directory, tell)
    _show(session, directory, verified, "Whole")


@click.command(
    cls=OfflineCommand,
    example="fila restore /backups/20260730-101530Z /var/lib/fila",
)
@click.argument("directory", metavar="BACKUP", type=_EXISTING)
@click.argument("data_dir", metavar="DATA_DIR", type=_ANY)
@pass_session
def restore(session: Session, directory: Path, data_dir: Path) -> None:
    """Make a data directory out of a backup.

    DATA_DIR must be empty, or not exist yet. The backup is verified first, and stays as it is.
    """
    from fila_server.storage.backups.restore import restore

    with _progress(session) as tell, _one_line_errors():
        verified = restore(directory, data_dir, tell)
    _show(session, data_dir, verified, "Restored")
    if not session.json:
        render.say(f"Start it: fila-server --data-dir {one_line(str(data_dir))}")


def size(count: int) -> str:
    """A number of bytes as people read it."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def _show(session: Session, path: Path, verified: "Verified", what: str) -> None:
    made, found = verified.made, verified.contents
    if session.json:
        render.print_document(
            {
                "path": str(path),
                "backup": made is not None,
                "created_at": made and made.created_at,
                "fila_version": made and made.fila_version,
                "format": verified.format,
                "sequence": found.sequence,
                "bytes": verified.bytes,
                "messages": found.messages,
                "queues": [{"name": name, "messages": n} for name, n in found.queues.items()],
            }
        )
        return
    kind = f"a backup of {made.created_at}" if made is not None else "a data directory"
    render.say(
        f"{what}: {one_line(str(path))}, {kind}, {size(verified.bytes)},"
        f" format {verified.format}, sequence {found.sequence}"
    )
    columns = (Column("queue"), Column("messages", number=True))
    if found.queues:
        render.show(Table(columns, found.queues.items()))
    render.say(f"{counted(found.messages, 'message')} in {counted(len(found.queues), 'queue')}")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    from fila_server.errors import FilaError

    try:
        yield
    except FilaError as error:
        raise click.ClickException(error.message) from error


@contextmanager
def _progress(session: Session) -> Iterator[Tell]:
    """A bar on a terminal; nothing elsewhere."""
    console = render.console(stderr=True)
    if session.json or not console.is_terminal:
        yield lambda phase, done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        phases: list[str] = []

        def tell(phase: str, done: int, total: int) -> None:
            if phase == "done":
                return
            if phases[-1:] != [phase]:
                phases.append(phase)
                bar.reset(task, description=_WORDS[phase], total=total or None)
            bar.update(task, completed=done, total=total or None)

        yield tell
