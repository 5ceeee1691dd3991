# SPDX-License-Identifier: AGPL-3.0-only
"""`fila`: the root command, and the one place where errors become a line and an exit code.

0 done    1 failed    2 wrong usage    130 stopped by Ctrl-C

With --json the line is a document: {"error": {"code", "reason", "message", "hint"}}. `code` is a
gRPC status and `reason` the broker's, where the broker or the way to it failed; `reason` is USAGE
for wrong usage and LOCAL for what failed on this machine.
"""

import importlib
import json
import os
import sys
from collections.abc import Iterator, MutableMapping
from typing import Any

import click

from fila_server import __version__
from fila_server.cli.command import CommandGroup
from fila_server.cli.failures import BrokerFailure, Text
from fila_server.cli.session import Session
from fila_server.cli.words import one_line

_EXIT_INTERRUPTED = 130

# Where each command is. A module is imported when its command runs, or is listed.
_PLACES = {
    "queue": "queues:queue",
    "enqueue": "messages:enqueue",
    "consume": "consume:consume",
    "ack": "settle:ack",
    "nack": "settle:nack",
    "extend": "settle:extend",
    "peek": "messages:peek",
    "cancel": "messages:cancel",
    "top": "top:top",
    "stats": "top:stats",
    "status": "status:status",
    "doctor": "doctor:doctor",
    "explain": "admin:explain",
    "redrive": "admin:redrive",
    "throttle": "throttle:throttle",
    "config": "admin:config",
    "auth": "auth:auth",
    "hook": "hook:hook",
    "backup": "backup:backup",
    "verify": "backup:verify",
    "restore": "backup:restore",
    "demo": "demo:demo",
    "completion": "completion:completion",
}


class Commands(MutableMapping[str, click.Command]):
    """The root's commands by name, each imported when it is asked for."""

    def __init__(self) -> None:
        self._found: dict[str, click.Command] = {}
        self._places = dict(_PLACES)

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._found:
            module, _, attribute = self._places[name].partition(":")
            place = importlib.import_module(f"fila_server.cli.{module}")
            self._found[name] = getattr(place, attribute)
        return self._found[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._places.setdefault(name, "")
        self._found[name] = command

    def __delitem__(self, name: str) -> None:
        del self._places[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


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
    commands=Commands(),
    context_settings={"help_option_names": ["-h", "--help"]},
    example="""
    fila demo
    fila queue create orders
    fila enqueue orders --key acme --payload hello
    fila consume orders --ack""",
)
@click.version_option(__version__, message="fila %(version)s")
def cli() -> None:
    """Operate a Fila broker: queues, messages, limits and hooks."""


def run(arguments: list[str] | None = None) -> int:
    """Runs one command line and returns its exit code; prints at most one line of error."""
    # gRPC would add lines of its own. It looks at this when it is imported, which is later.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    words = sys.argv[1:] if arguments is None else arguments
    # Asked of the words, because a line that cannot be parsed has no options yet.
    as_json = "--json" in words
    try:
        return cli.main(words, prog_name="fila", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        sys.stderr.write(f"{error.format_message()}\n")
        return error.exit_code
    except click.ClickException as error:
        _tell(error, as_json)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _EXIT_INTERRUPTED


def _tell(error: click.ClickException, as_json: bool) -> None:
    code, reason = None, "LOCAL"
    if isinstance(error, BrokerFailure):
        text, code, reason = error.text, error.code, error.reason  # type: ignore[assignment]
    elif isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx is not None else "fila"
        text, reason = Text(_clause(error.format_message()), f"see: {path} --help"), "USAGE"
    else:
        message, _, hint = _clause(error.format_message()).partition("; ")
        text = Text(message, hint)
    if as_json:
        document = {"code": code, "reason": reason, "message": text.message, "hint": text.hint}
        sys.stderr.write(json.dumps({"error": document}) + "\n")
    else:
        sys.stderr.write(f"error: {_clause(str(text))}\n")


def _clause(message: str) -> str:
    """A message of click's or ours as one lower-case clause on one line."""
    text = one_line(" ".join(message.split())).rstrip(".?").replace(". Did you", "; did you")
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


if __name__ == "__main__":
    sys.exit(run())
