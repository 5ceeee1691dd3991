# SPDX-License-Identifier: AGPL-3.0-only
"""What a person at a terminal sees: widths, colours and questions."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

import pytest

from .conftest import COMMAND, Fila

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def at_terminal(
    fila: Fila, *arguments: str, columns: int = 80, typed: str = "", **environment: str
) -> tuple[int, str]:
    """Runs the command on a terminal of that width; returns its exit code and what it showed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=fila.environment(**{"TERM": "xterm-256color", **environment}),
        start_new_session=True,
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    shown = bytearray()
    while True:
        try:
            chunk = os.read(ours, 65_536)
        except OSError:  # Linux reports the end of a pseudo-terminal as EIO.
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    return process.wait(60), shown.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def busy(fila: Fila) -> str:
    """A queue with long names and much in it."""
    name = "orders-of-all-european-customers-with-a-rather-long-name"
    fila("queue", "create", name).ok()
    key = "tenant-with-a-name-that-is-longer-than-anybody-expected"
    fila("enqueue", name, "--key", key, "--payload", "x" * 500, "--throttle-key", key).ok()
    fila("enqueue", name, "--key", "b", "--payload", "short").ok()
    fila("throttle", "set", key, "--rate", "1000000", "--burst", "1000000").ok()
    fila("throttle", "set", f"{key}-and-others-*", "--rate", "1000000").ok()
    fila("throttle", "pause", f"{key}-paused").ok()
    fila("enqueue", f"{name}", "--throttle-key", f"{key}-unset").ok()
    return name


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "arguments",
    [
        ("queue", "list"),
        ("queue", "inspect", "{}"),
        ("stats", "{}"),
        ("peek", "{}"),
        ("throttle", "list"),
        ("throttle", "list", "--unset"),
        ("config", "list"),
        ("explain", "{}", "--key", "b"),
    ],
    ids=" ".join,
)
def test_no_table_is_wider_than_the_terminal(
    fila: Fila, busy: str, arguments: tuple[str, ...], columns: int
) -> None:
    words = [word.format(busy) for word in arguments]
    shown = fila(*words, COLUMNS=str(columns)).ok()
    assert [line for line in shown.splitlines() if len(line) > columns] == []


def test_a_terminal_gets_styles_and_a_pipe_gets_none(fila: Fila, busy: str) -> None:
    shown = at_terminal(fila, "queue", "list")[1]
    assert "\x1b[" in shown
    assert [line for line in ESCAPES.sub("", shown).splitlines() if len(line) > 80] == []
    assert "\x1b[" not in at_terminal(fila, "queue", "list", NO_COLOR="1", TERM="dumb")[1]
    assert "\x1b[" not in fila("queue", "list").ok()


def test_a_pipe_gets_names_in_full(fila: Fila, busy: str) -> None:
    assert busy in fila("queue", "list").ok()
    shown = at_terminal(fila, "queue", "list")[1]
    assert "orders-of-all-eur" in shown and "…" in shown


def test_message_ids_are_never_cut(fila: Fila, busy: str) -> None:
    ids = [message["message_id"] for message in fila("peek", busy, "--json").json_lines()]
    shown = at_terminal(fila, "peek", busy)[1]
    assert all(message_id in shown for message_id in ids)


def test_delete_asks_at_a_terminal(fila: Fila) -> None:
    fila("queue", "create", "asked").ok()
    fila("enqueue", "asked").ok()
    code, shown = at_terminal(fila, "queue", "delete", "asked", typed="n\n")
    assert code == 1
    assert 'This deletes queue "asked" with 1 message. Go ahead? [y/N]: ' in shown
    assert "error: nothing was changed" in shown
    code, shown = at_terminal(fila, "queue", "delete", "asked", typed="y\n")
    assert code == 0
    assert 'Deleted queue "asked" with 1 message' in shown


def test_ctrl_c_at_a_question_changes_nothing(fila: Fila) -> None:
    fila("queue", "create", "kept").ok()
    fila("stats", "kept").ok()
    code, _ = at_terminal(fila, "queue", "purge", "kept", typed="\x04")
    assert code in (1, 130)
    fila("stats", "kept").ok()


def test_demo_redraws_at_a_terminal(fila: Fila) -> None:
    code, shown = at_terminal(fila, "demo", "--seconds", "3")
    assert code == 0
    plain = ESCAPES.sub("", shown)
    assert "msg/s arrive, consumers handle 500 msg/s" in plain
    assert "█" in plain
    assert [line for line in plain.replace("\r", "\n").splitlines() if len(line) > 80] == []
