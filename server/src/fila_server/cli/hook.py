# SPDX-License-Identifier: AGPL-3.0-only
"""`fila hook test`: run a hook on a made-up message, in the broker's own sandbox, without a broker."""

import click

from fila_server.cli.command import CommandGroup


@click.group(cls=CommandGroup, example="fila hook test fairness.lua --header tenant=acme")
def hook() -> None:
    """Try Lua hooks before a queue uses them."""
