# SPDX-License-Identifier: AGPL-3.0-only
"""The click classes that `fila` is made of: shared options everywhere, an example in every help.

OfflineCommand   works on this machine alone: only `--json` is shared
BrokerCommand    talks to a broker: also takes the connection options
CommandGroup     holds commands, in the order in which they were written
"""

from typing import Any, ClassVar

import click

from fila_server.cli.session import Session, shared_options


def write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    lines = examples.strip().splitlines()
    with formatter.section("Examples" if len(lines) > 1 else "Example"):
        for line in lines:
            formatter.write(f"{'':>{formatter.current_indent}}{line.strip()}\n")


class OfflineCommand(click.Command):
    """A command that needs no broker."""

    talks_to_broker: ClassVar[bool] = False

    def __init__(self, *args: Any, example: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.example = example
        self.params.extend(shared_options(root=False, broker=self.talks_to_broker))

    def invoke(self, ctx: click.Context) -> Any:
        ctx.ensure_object(Session).command = ctx.command_path
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.example)


class BrokerCommand(OfflineCommand):
    """A command that talks to a broker."""

    talks_to_broker = True


class CommandGroup(click.Group):
    """A group of commands; without one of them it shows its help, which is a usage error."""

    def __init__(self, *args: Any, example: str, root: bool = False, **attributes: Any) -> None:
        super().__init__(*args, **{"no_args_is_help": True, **attributes})
        self.example = example
        self.params.extend(shared_options(root=root, broker=True))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.example)
