# SPDX-License-Identifier: AGPL-3.0-only
"""`fila completion`: the script with which a shell completes commands and options."""

import click

from fila_server.cli import render
from fila_server.cli.command import OfflineCommand
from fila_server.cli.session import Session, pass_session

_SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=OfflineCommand,
    example="""
    fila completion bash > ~/.local/share/bash-completion/completions/fila
    fila completion zsh > ~/.zfunc/_fila
    fila completion fish > ~/.config/fish/completions/fila.fish""",
)
@click.argument("shell", type=click.Choice(_SHELLS))
@pass_session
def completion(session: Session, shell: str) -> None:
    """Print the script that completes commands and options in a shell.

    Put it where the shell looks, as below, and open a new one. To try it: eval "$(fila completion
    bash)". For zsh, fpath must have ~/.zfunc before compinit runs.
    """
    from click.shell_completion import get_completion_class

    from fila_server.cli.app import cli

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(cli, {}, "fila", "_FILA_COMPLETE").source()
    if session.json:
        render.print_document({"shell": shell, "script": script})
    else:
        render.say(script)
