# SPDX-License-Identifier: AGPL-3.0-only
"""What holds for every command: help, exit codes, one-line errors, no secrets."""

import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fila_server.cli.app import cli
from tools import cli_page

from .conftest import COMMAND, Fila, clean_environment

REPOSITORY = Path(__file__).parents[3]


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command of the tree with the words that name it."""
    yield path, command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands(child, (*path, name))


ALL = [path for path, _ in commands()]
LEAVES = [path for path, command in commands() if not isinstance(command, click.Group)]


@pytest.mark.parametrize("path", ALL, ids=lambda path: " ".join(("fila", *path)))
def test_every_help_has_an_example_and_fits_80_columns(path: tuple[str, ...]) -> None:
    # With the root's own settings: click remembers a command's help option from the first look.
    context = click.Context(cli, info_name="fila", terminal_width=80, **cli.context_settings)
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
        context = click.Context(command, info_name=name, parent=context, terminal_width=80)
    text = command.get_help(context)
    assert "\nExample" in text
    examples = text.partition("\nExample")[2].splitlines()[1:]
    words = " ".join(("fila", *path))
    assert any(line.strip().startswith(words) for line in examples), examples
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "..." not in text.replace("[ARGS]...", "")


def test_help_of_the_real_command(offline: Fila) -> None:
    text = offline.process("--help").ok()
    for name in cli.commands:
        assert f"\n  {name} " in text
    assert "FILA_ADDR" in text


def test_version(offline: Fila) -> None:
    assert offline("--version").ok().startswith("fila 0.")


def test_the_real_command_takes_and_gives_bytes(fila: Fila, queue: str) -> None:
    binary = bytes(range(256))
    fila.process("enqueue", queue, "--payload", "-", stdin=binary).ok()
    assert fila.process("consume", queue, "--ack", "--payload-only").raw == binary + b"\n"
    assert fila.process("stats", f"{queue}-not").error().endswith(f"create {queue}-not")
    assert fila.process("stats").error(2) == "missing argument 'QUEUE'; see: fila stats --help"


@pytest.mark.parametrize("path", [(), ("queue",), ("throttle",)])
def test_a_group_alone_shows_its_help_and_is_a_usage_error(
    offline: Fila, path: tuple[str, ...]
) -> None:
    answer = offline(*path)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("Usage: fila")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("frobnicate",), "no such command 'frobnicate'; see: fila --help"),
        (("queue", "crate"), "no such command 'crate'; did you mean 'create'; see: fila queue"),
        (("stats",), "missing argument 'QUEUE'; see: fila stats --help"),
        (("stats", "q", "--what"), "no such option '--what'"),
        (("stats", "q", "more"), "got unexpected extra argument"),
        (("--timeout", "0", "queue", "list"), "invalid value for '--timeout'"),
        (("--addr", "nonsense", "queue", "list"), '"nonsense" is not an address; write HOST:PORT'),
        (("--addr", "h:99999", "queue", "list"), '"h:99999" is not an address'),
        (("--tls-cert", "c.pem", "queue", "list"), "--tls-cert and --tls-key go together"),
        (("--tls-ca", "/no/ca.pem", "queue", "list"), 'cannot read "/no/ca.pem"'),
        (("enqueue", "q", "--delay", "soon"), '"soon" is not a duration'),
        (("enqueue", "q", "--weight", "0"), "invalid value for '--weight'"),
        (("peek", "q", "--state", "lost"), "invalid value for '--state'"),
        (("peek", "q", "--limit", "1001"), "invalid value for '--limit'"),
        (("queue", "create", "q", "--on-hook-error", "explode"), "'explode' is not one of"),
        (("queue", "create", "q", "--max-attempts", "-1"), "invalid value for '--max-attempts'"),
        (("redrive", "q.dlq", "--count", "0"), "invalid value for '--count'"),
        (("demo", "--tenants", "2"), "invalid value for '--tenants'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    offline: Fila, arguments: tuple[str, ...], text: str
) -> None:
    assert text in offline(*arguments).error(2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("queue", "list"),
        ("stats", "q"),
        ("enqueue", "q"),
        ("consume", "q"),
        ("config", "list"),
        ("throttle", "list"),
    ],
    ids=" ".join,
)
def test_unreachable_broker_says_how_to_start_one(
    offline: Fila, arguments: tuple[str, ...]
) -> None:
    error = offline(*arguments).error()
    assert error == (
        "no broker answers at 127.0.0.1:1; start one with: fila-server --listen 127.0.0.1:1 "
        "(or name another with --addr)"
    )


def test_addr_option_wins_over_the_environment(fila: Fila, offline: Fila) -> None:
    fila("queue", "list", FILA_ADDR=offline.address).error()
    fila("--addr", fila.address, "queue", "list", FILA_ADDR=offline.address).ok()
    fila("queue", "list", "--addr", fila.address, FILA_ADDR=offline.address).ok()
    fila("--addr", fila.address, "queue", "list", "--addr", offline.address).error()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--json", "queue", "list"),
        ("queue", "--json", "list"),
        ("queue", "list", "--json"),
        ("config", "list", "--json"),
    ],
)
def test_json_is_accepted_in_every_place(fila: Fila, arguments: tuple[str, ...]) -> None:
    assert fila(*arguments).ok().startswith("{")


def test_every_command_takes_json() -> None:
    for path, command in commands():
        names = {option for param in command.params for option in param.opts}
        assert "--json" in names, path


@pytest.mark.parametrize("key", ["sup3rs3cret", "sup3rs3cret\n", "sup3rs3créte"])
def test_the_api_key_is_never_shown(offline: Fila, key: str) -> None:
    runs = [
        offline("--api-key", key, "queue", "list"),
        offline("queue", "list", FILA_API_KEY=key),
        offline("--help", FILA_API_KEY=key),
        offline("queue", "list", "--api-key", key, "--no-such-option"),
    ]
    for run in runs:
        assert "sup3rs3cr" not in run.out + run.err


def test_ctrl_c_is_quiet_and_exits_130(fila: Fila) -> None:
    fila("queue", "create", "interrupted").ok()
    process = fila.start(
        *("consume", "interrupted", "--count", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while fila("stats", "interrupted", "--json").json()["active_consumers"] == 0:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_broken_pipe_is_quiet(fila: Fila) -> None:
    fila("queue", "create", "piped").ok()
    fila("enqueue", "piped", "--lines", stdin="x\n" * 1_000).ok()
    fila_words = shlex.join(COMMAND)
    done = subprocess.run(
        ["bash", "-c", f"{fila_words} peek piped --limit 1000 --json | head -1"],
        env=clean_environment(FILA_ADDR=fila.address),
        capture_output=True,
        timeout=60,
    )
    assert done.stdout.count(b"\n") == 1
    assert done.stderr.replace(b"More messages follow", b"") == done.stderr
    assert b"Broken" not in done.stderr and b"Traceback" not in done.stderr


def test_the_reference_page_names_every_command() -> None:
    page = (REPOSITORY / "docs" / "reference" / "cli.md").read_text()
    for path in LEAVES:
        words = " ".join(("fila", *path))
        assert f"\n## `{words}" in page or f"\n### `{words}" in page, words
        assert f"$ {words}" in page, f"no example of {words}"


def test_the_reference_page_names_every_option() -> None:
    page = (REPOSITORY / "docs" / "reference" / "cli.md").read_text()
    for path, command in commands():
        for param in command.params:
            if isinstance(param, click.Option):
                assert f"`{param.opts[0]}" in page, (path, param.opts[0])


def test_the_reference_page_is_fresh() -> None:
    page = (REPOSITORY / cli_page.TARGET).read_text()
    assert page == cli_page.render(), "run `python -m tools.cli_page`"
