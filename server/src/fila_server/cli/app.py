# SPDX-License-Identifier: AGPL-3.0-only
"""`fila`: the root command, and the one place where errors become a line and an exit code.

0 done    1 failed    2 wrong usage    130 stopped by Ctrl-C
"""

import os
import sys
from typing import Any

import click

from fila_server.cli import admin, auth, hook, messages, queues, stats, throttle
from fila_server.cli.command import CommandGroup
from fila_server.cli.demo import demo
from fila_server.cli.session import Session
from fila_server.cli.words import one_line

_EXIT_INTERRUPTED = 130


class RootGroup(CommandGroup):
    """Turns what the SDK and Ctrl-C raise into click's own exceptions."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with ctx.ensure_object(Session).one_line_errors():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(_EXIT_INTERRUPTED) from None


@click.group(
    "fila",
    cls=RootGroup,
    root=True,
    example="""
    fila demo
    fila queue create orders
    fila enqueue orders --key acme --payload hello
    fila consume orders --ack""",
)
@click.version_option(package_name="fila-server", message="fila %(version)s")
def cli() -> None:
    """Operate a Fila broker: queues, messages, limits and hooks."""


for _command in (
    queues.queue,
    messages.enqueue,
    messages.consume,
    messages.peek,
    messages.cancel,
    stats.stats,
    admin.explain,
    admin.redrive,
    throttle.throttle,
    admin.config,
    auth.auth,
    hook.hook,
    demo,
):
    cli.add_command(_command)


def run(arguments: list[str] | None = None) -> int:
    """Runs one command line and returns its exit code; prints at most one line of error."""
    # gRPC would add lines of its own. It looks at this when it is imported, which is later.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        return cli.main(arguments, prog_name="fila", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        sys.stderr.write(f"{error.format_message()}\n")
        return error.exit_code
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "fila"
        sys.stderr.write(f"error: {_clause(error.format_message())}; see: {path} --help\n")
        return error.exit_code
    except click.ClickException as error:
        sys.stderr.write(f"error: {_clause(error.format_message())}\n")
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _EXIT_INTERRUPTED


def _clause(message: str) -> str:
    """A message of click's or ours as one lower-case clause on one line."""
    text = one_line(" ".join(message.split())).rstrip(".?").replace(". Did you", "; did you")
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def main() -> None:
    """The console script."""
    sys.exit(run())


if __name__ == "__main__":
    main()
