# SPDX-License-Identifier: AGPL-3.0-only
"""`fila hook test`: run a script's hooks on a made-up message, in the sandbox that the broker uses.

No broker is needed: the command imports a part of the broker itself.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fila_server.cli import failures, render
from fila_server.cli.command import CommandGroup, OfflineCommand
from fila_server.cli.session import Session, pass_session
from fila_server.cli.values import PAIR, Whole, read_file

if TYPE_CHECKING:
    from fila_server.hooks.dryrun import DryRun


@click.group(cls=CommandGroup, example="fila hook test fairness.lua --header tenant=acme")
def hook() -> None:
    """Try Lua hooks before a queue uses them."""


@hook.command(
    cls=OfflineCommand,
    example="""
    fila hook test fairness.lua --header tenant=acme --config plan:acme=gold
    fila hook test retry.lua --error timeout --attempts 3""",
)
@click.argument("file")
@click.option("--header", "headers", type=PAIR, multiple=True, help="A header; may be repeated.")
@click.option("--payload-size", type=Whole(min=0), default=0, metavar="N", help="msg.payload_size.")
@click.option(
    "--config",
    "config",
    type=PAIR,
    multiple=True,
    help="What fila.get(K) answers; may be repeated.",
)
@click.option("--error", metavar="TEXT", help="What on_failure is told went wrong.")
@click.option(
    "--attempts",
    type=Whole(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="How many deliveries on_failure is told have failed.",
)
@click.option("--key", default="default", metavar="K", help="msg.fairness_key of on_failure.")
@click.option(
    "--throttle-key",
    "throttle_keys",
    multiple=True,
    metavar="K",
    help="One of msg.throttle_keys of on_failure; may be repeated.",
)
@pass_session
def test(
    session: Session,
    file: str,
    headers: Sequence[tuple[str, str]],
    payload_size: int,
    config: Sequence[tuple[str, str]],
    error: str | None,
    attempts: int,
    key: str,
    throttle_keys: Sequence[str],
) -> None:
    """Run every hook that FILE defines and show what it decides.

    Runs here, in the broker's own sandbox with its default limits; no broker is asked.
    """
    # The sandbox brings Lua, which no other command needs.
    from fila_server.hooks.dryrun import dry_run

    try:
        source = read_file(file).decode()
    except UnicodeDecodeError as invalid:
        raise click.UsageError(failures.not_utf8(file)) from invalid
    found = dry_run(
        source,
        dict(headers),
        payload_size=payload_size,
        config=dict(config),
        error=error,
        attempts=attempts,
        fairness_key=key,
        throttle_keys=throttle_keys,
    )
    if session.json:
        render.print_document({"file": file, **render.plain(found)})
    _raise_failure(file, found)
    if error is not None and found.on_failure is None:
        raise click.ClickException(failures.no_on_failure(file))
    if not session.json:
        from fila_server.cli import views

        render.show(*views.hook_runs(found))


def _raise_failure(file: str, found: "DryRun") -> None:
    if found.error:
        raise click.ClickException(failures.script_unusable(file, found.error, found.line))
    for name, run in (("on_enqueue", found.on_enqueue), ("on_failure", found.on_failure)):
        if run is not None and run.error:
            raise click.ClickException(failures.hook_failed(name, file, run.error, run.line))
