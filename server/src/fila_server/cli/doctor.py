# SPDX-License-Identifier: AGPL-3.0-only
"""`fila doctor`: what a start of `fila-server` here would find, before it does.

No broker is asked. The examination itself is the broker's own code, in the room `doctor`.
"""

import os

import click

from fila_server.cli import render
from fila_server.cli.command import OfflineCommand
from fila_server.cli.session import Session, pass_session
from fila_server.cli.sheet import Line
from fila_server.cli.words import counted, one_line

_STYLES = {"ok": "green", "notice": "cyan", "warning": "yellow", "critical": "red"}


@click.command(
    cls=OfflineCommand,
    example="""
    fila doctor
    fila doctor --config /etc/fila/fila.toml --data-dir /var/lib/fila""",
)
@click.option("--config", "config_file", metavar="FILE", help="As for fila-server: a TOML file.")
@click.option("--listen", metavar="ADDR", help="As for fila-server: HOST:PORT to listen on.")
@click.option("--data-dir", metavar="DIR", help="As for fila-server: where messages are kept.")
@pass_session
def doctor(
    session: Session, config_file: str | None, listen: str | None, data_dir: str | None
) -> None:
    """Check what a broker needs, before it is started.

    Configuration, directories for data and backups, addresses, certificates, collector, limits,
    memory and clock, as fila-server would find them with the same options and environment; run it
    as the broker's user. It changes and locks nothing, so it may run beside a broker. The exit code
    is 1 when a start would fail.
    """
    # The broker's own modules, which no other command needs.
    from fila_server.config import ConfigError
    from fila_server.doctor.examination import examine

    try:
        found = list(examine(config_file, os.environ, listen, data_dir))
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    bad = [it for it in found if it.severity == "critical"]
    if session.json:
        render.print_document({"checks": found, "is_ready": not bad})
    else:
        for it in found:
            level = (f"{it.severity:<9}", _STYLES[it.severity])
            render.show(Line(level, f"{it.check}: {one_line(it.what)}"))
            if it.remedy:
                render.say(f"         what to do: {one_line(it.remedy)}")
        doubts = counted(sum(it.severity == "warning" for it in found), "warning")
        verdict = "A start works"
        if bad:
            verdict = f"{counted(len(bad), 'thing')} would stop a start"
        elif any(it.check == "data_dir" and it.severity == "notice" for it in found):
            verdict = "A broker runs here already"
        render.say(f"\n{verdict}; {doubts}.")
    if bad:
        raise click.exceptions.Exit(1)
