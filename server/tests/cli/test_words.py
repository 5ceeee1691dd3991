# SPDX-License-Identifier: AGPL-3.0-only
"""What a new user tripped over: piped payloads, short help, texts that said nothing."""

import os
import signal
import subprocess
import time
from pathlib import Path

import click
import pytest

from fila_server.cli.app import cli

from .conftest import COMMAND, Fila, clean_environment
from .test_terminal import at_terminal
from .test_usage import commands


def test_what_is_piped_in_is_the_payload_byte_for_byte(fila: Fila, queue: str) -> None:
    fila.process("enqueue", queue, stdin=b"hello\n").ok()
    fila("enqueue", queue, "--key", "k", stdin=b"\x00\xff").ok()
    fila("enqueue", queue, "--payload", "told", stdin=b"not read").ok()
    fila("enqueue", queue, "--payload", "", stdin=b"not read").ok()
    texts = [it["payload_text"] for it in fila("peek", queue, "--json").json_lines()]
    assert texts == ["hello\n", None, "told", ""]


def test_at_a_terminal_nothing_is_waited_for(fila: Fila, queue: str) -> None:
    assert at_terminal(fila, "enqueue", queue)[0] == 0
    (message,) = fila("peek", queue, "--json").json_lines()
    assert message["payload"] == ""


def test_more_than_a_message_can_hold_is_refused_before_it_is_sent(
    offline: Fila, tmp_path: Path
) -> None:
    large = b"x" * (4 << 20)
    error = offline("enqueue", "q", stdin=large).error(2)
    assert error.startswith('"standard input" holds 4 MiB or more, which no broker takes as one')
    (tmp_path / "large").write_bytes(large)
    assert "--lines" in offline("enqueue", "q", "--payload", f"@{tmp_path / 'large'}").error(2)


@pytest.mark.parametrize(
    "path", [path for path, _ in commands()], ids=lambda path: " ".join(("fila", *path))
)
def test_h_is_help_everywhere(offline: Fila, path: tuple[str, ...]) -> None:
    text = offline(*path, "-h").ok()
    assert text == offline(*path, "--help").ok()
    assert "-h, --help" in text


def test_the_last_lease_has_an_end(fila: Fila, queue: str) -> None:
    fila("enqueue", queue, "--lines", stdin="a\nb\n").ok()
    answer = fila("consume", queue, "--count", "5", "--wait", "0.1")
    assert answer.err.startswith("Leased 2 messages, neither acked nor nacked: the last lease ends")
    assert "ends in -" not in answer.err
    assert "ends in 29" in answer.err or "ends in 30s" in answer.err or "ends in 2" in answer.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("throttle", "set", "k", "--rate", "x"), "'x' is not a valid number"),
        (("stats", "q", "--interval", "often"), "'often' is not a valid number"),
        (("peek", "q", "--limit", "many"), "'many' is not a valid whole number"),
        (("queue", "create", "q", "--quantum", "1.5"), "'1.5' is not a valid whole number"),
    ],
)
def test_a_bad_number_is_called_one(offline: Fila, words: tuple[str, ...], text: str) -> None:
    error = offline(*words).error(2)
    assert text in error and "range" not in error


def test_ctrl_c_settles_what_was_printed_and_gives_the_rest_back(fila: Fila, queue: str) -> None:
    """The reader takes one line and no more, so the command is held in the middle of a batch."""
    fila("enqueue", queue, "--lines", stdin=("x" * 9_000 + "\n") * 50).ok()
    process = fila.start(
        *("consume", queue, "--count", "0", "--ack", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    while len(os.listdir(f"/proc/{process.pid}/fd")) < 3 or not _is_blocked(process.pid):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    printed = out.count(b"\n") + 1
    stats = fila("stats", queue, "--json").json()
    acked = stats["counters"]["acked"]
    # The line that was being written may or may not have been taken whole.
    assert printed - 1 <= acked <= printed < 50
    assert f"Acked {acked} message" in err.decode()
    assert (stats["depth"], stats["in_flight"]) == (50 - acked, 0)
    attempts = fila("peek", queue, "--limit", "50", "--json").json_lines()
    assert {it["attempt_count"] for it in attempts} == {0}


def _is_blocked(pid: int) -> bool:
    return "pipe" in Path(f"/proc/{pid}/wchan").read_text()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_back(offline: Fila, shell: str) -> None:
    assert "_FILA_COMPLETE" in offline("completion", shell).ok()


def test_completion_knows_the_commands() -> None:
    done = subprocess.run(
        [*COMMAND],
        env=clean_environment(
            _FILA_COMPLETE="bash_complete", COMP_WORDS="fila queue cr", COMP_CWORD="2"
        ),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == b"plain,create\n"
    assert isinstance(cli, click.Group)
