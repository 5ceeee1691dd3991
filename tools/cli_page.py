# SPDX-License-Identifier: AGPL-3.0-only
"""docs/reference/cli.md, made from the commands themselves: `python -m tools.cli_page`.

The test of the command line compares the page with what this writes, so it cannot go stale.
"""

import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

from fila_server.cli.app import cli

TARGET = "docs/reference/cli.md"
_INTRODUCTION = """\
# The `fila` command

<!-- Written by `python -m tools.cli_page`. DO NOT EDIT -->

Every command takes `--json`, which answers in JSON for programs, and `-h` or `--help`. The exit
code is 0 when it is done, 1 when it failed (one line on standard error says why and what to do;
with `--json` one document), 2 for wrong usage, 130 after Ctrl-C. `fila status` and `fila doctor`
also end with 1 when they find something critical. Examples are in
[operating from the terminal](../guides/operating-from-the-terminal.md).

## Connecting

These stand anywhere on the line of a command that talks to a broker.
"""


def render() -> str:
    """Return the whole page."""
    lines = [_INTRODUCTION]
    lines += _options(cli, skip=set())
    shared = {option.opts[0] for option in _listed(cli)}
    for path, command in _commands(cli, ()):
        lines += _section(path, command, shared)
    return "\n".join(lines).rstrip() + "\n"


def _commands(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if path:
        yield path, command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _commands(child, (*path, name))


def _section(path: tuple[str, ...], command: click.Command, shared: set[str]) -> list[str]:
    words = " ".join(("fila", *path))
    help_text = cleandoc((command.help or "").replace("\b", ""))
    if isinstance(command, click.Group):
        return ["", f"## `{words}`", "", help_text]
    arguments = [
        param.make_metavar(click.Context(command))
        for param in command.params
        if isinstance(param, click.Argument)
    ]
    level = "##" if len(path) == 1 else "###"
    lines = ["", f"{level} `{' '.join((words, *arguments))}`", "", help_text, "", "```sh"]
    lines += [f"$ {line.strip()}" for line in command.example.strip().splitlines()]  # type: ignore[attr-defined]
    lines += ["```"]
    own = _options(command, shared)
    return [*lines, "", *own] if own else lines


def _listed(command: click.Command) -> Iterator[click.Option]:
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden:
            yield param


def _options(command: click.Command, skip: set[str]) -> list[str]:
    rows = []
    for option in _listed(command):
        if option.opts[0] in skip:
            continue
        names = ", ".join(f"`{name}`" for name in option.opts)
        metavar = "" if option.is_flag else f" {option.make_metavar(click.Context(command))}"
        text = (option.help or "").replace("|", "\\|")
        variable = f" (`{option.envvar}`)" if option.envvar else ""
        value = metavar.replace("|", "\\|").strip()
        rows.append(f"| {names} | {value} | {text}{variable} |")
    return ["| option | value | what it does |", "|---|---|---|", *rows] if rows else []


def main() -> int:
    (Path(__file__).parent.parent / TARGET).write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
