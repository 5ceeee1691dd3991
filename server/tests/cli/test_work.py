# SPDX-License-Identifier: AGPL-3.0-only
"""`fila consume --exec`: commands that succeed, fail, ask for time, cannot run and are stopped."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Fila


def test_exit_0_acks_and_the_command_sees_the_message(
    fila: Fila, queue: str, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    fila(
        *("enqueue", queue, "--key", "acme", "--payload", "olá\nx"),
        *("--header", "x-tenant=a b", "--header", "plain=1"),
    ).ok()
    script = (
        "echo $FILA_QUEUE $FILA_MESSAGE_ID $FILA_FAIRNESS_KEY $FILA_ATTEMPT_COUNT "
        '"$FILA_HEADER_X_TENANT" "$FILA_HEADERS" "$FILA_ADDR" ${#FILA_LEASE_TOKEN}; cat'
    )
    answer = fila.process("consume", queue, "--exec", f"({script}) > {seen}")
    assert answer.ok() == ""
    assert answer.err == "Ran 1 message: 1 acked, 0 nacked, 0 put off, 0 given back\n"
    first, rest = seen.read_text().split("\n", 1)
    words = first.split()
    assert (words[0], words[2], words[3]) == (queue, "acme", "0")
    assert '{"plain": "1", "x-tenant": "a b"}' in first and fila.address in first
    assert int(words[-1]) > 0
    assert rest == "olá\nx"
    assert fila("stats", queue, "--json").json()["counters"]["acked"] == 1


def test_another_exit_code_nacks_with_the_last_line_of_stderr(
    fila: Fila, new_queue: Callable[..., str]
) -> None:
    queue = new_queue("--max-attempts", "1")
    fila("enqueue", queue, "--payload", "a").ok()
    answer = fila.process("consume", queue, "--exec", "echo first >&2; echo 'no card ' >&2; exit 3")
    assert answer.code == 0
    assert answer.err.startswith("first\nno card \nRan 1 message: 0 acked, 1 nacked")
    fila("enqueue", queue, "--payload", "b").ok()
    fila.process("consume", queue, "--exec", "kill -9 $$").ok()
    fila("enqueue", queue, "--payload", "c").ok()
    fila.process("consume", queue, "--exec", "exit 4").ok()
    letters = fila("peek", f"{queue}.dlq", "--json").json_lines()
    errors = [letter["last_error"] for letter in letters]
    assert errors == ["no card", "ended by signal 9", "exit code 4"]


def test_75_puts_off_and_counts_no_attempt(fila: Fila, queue: str) -> None:
    fila("enqueue", queue).ok()
    words = ("consume", queue, "--exec", "echo busy >&2; exit 75", "--retry-after", "1h", "--json")
    answer = fila.process(*words)
    (line,) = answer.json_lines()
    message_id = line.pop("message_id")
    assert line == {"queue": queue, "settled": "retry", "exit_code": 75, "error": "busy"}
    (waiting,) = fila("peek", queue, "--json").json_lines()
    assert (waiting["message_id"], waiting["state"]) == (message_id, "delayed")
    assert waiting["attempt_count"] == 0


def test_a_command_that_cannot_run_costs_no_message(fila: Fila, queue: str) -> None:
    fila("enqueue", queue, "--lines", stdin="1\n2\n3\n").ok()
    answer = fila.process("consume", queue, "--count", "3", "--exec", "no-such-command-here")
    assert answer.code == 1
    assert 'error: the shell cannot run "no-such-command-here"' in answer.err
    messages = fila("peek", queue, "--json").json_lines()
    assert [message["attempt_count"] for message in messages] == [0, 0, 0]
    assert fila("stats", queue, "--json").json()["in_flight"] == 0


def test_a_lease_outlasts_its_length_while_the_command_runs(
    fila: Fila, queue: str, tmp_path: Path
) -> None:
    fila("enqueue", queue).ok()
    go = tmp_path / "go"
    process = fila.start(
        *("consume", queue, "--lease", "3s", "--exec", f"while ! [ -e {go} ]; do sleep 0.1; done"),
        stderr=subprocess.PIPE,
    )
    while not fila("stats", queue, "--json").json()["in_flight"]:
        time.sleep(0.1)
    time.sleep(6.5)  # more than two leases
    go.touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    counters = fila("stats", queue, "--json").json()["counters"]
    assert (counters["acked"], counters["expired"], counters["delivered"]) == (1, 0, 1)


def test_as_many_run_at_a_time_as_were_asked_for(fila: Fila, queue: str, tmp_path: Path) -> None:
    """Each waits for the other, so one at a time would never end."""
    fila("enqueue", queue, "--lines", stdin="a\nb\n").ok()
    meet = (
        f'touch {tmp_path}/$(cat); while [ "$(ls {tmp_path} | wc -l)" -lt 2 ]; do sleep 0.05; done'
    )
    words = ("consume", queue, "--count", "2", "--concurrency", "2", "--exec", meet)
    assert "2 acked" in fila.process(*words).err


def test_ctrl_c_lets_the_command_finish(fila: Fila, queue: str, tmp_path: Path) -> None:
    fila("enqueue", queue, "--lines", stdin="a\nb\n").ok()
    go = tmp_path / "go"
    process = fila.start(
        *("consume", queue, "--count", "0"),
        *("--exec", f"touch {tmp_path}/here; while ! [ -e {go} ]; do sleep 0.1; done"),
        stderr=subprocess.PIPE,
    )
    while not (tmp_path / "here").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    go.touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.decode() == "Ran 1 message: 1 acked, 0 nacked, 0 put off, 0 given back\n"
    assert fila("stats", queue, "--json").json()["depth"] == 1


def test_a_second_ctrl_c_gives_back(fila: Fila, queue: str, tmp_path: Path) -> None:
    fila("enqueue", queue).ok()
    process = fila.start(
        *("consume", queue, "--count", "0", "--exec", f"touch {tmp_path}/here; sleep 600"),
        stderr=subprocess.PIPE,
    )
    while not (tmp_path / "here").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    # Two at once might count as one; after the first it takes nothing more.
    while fila("stats", queue, "--json").json()["active_consumers"]:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.decode() == "Ran 1 message: 0 acked, 0 nacked, 0 put off, 1 given back\n"
    (waiting,) = fila("peek", queue, "--json").json_lines()
    assert (waiting["state"], waiting["attempt_count"]) == ("pending", 0)


def test_an_empty_queue_is_told(fila: Fila, queue: str) -> None:
    answer = fila("consume", queue, "--wait", "0", "--exec", "true")
    assert (answer.ok(), answer.err) == (
        "",
        f"No message became ready within 0ms; see why with: fila stats {queue}\n",
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--exec", "x", "--ack"), "leave out --ack"),
        (("--exec", " "), "--exec names no command"),
        (("--concurrency", "2"), "pass --exec CMD"),
        (("--lease", "2s"), "pass --exec CMD"),
        (("--exec", "x", "--concurrency", "0"), "invalid value for '--concurrency'"),
    ],
)
def test_nonsense_is_refused(fila: Fila, queue: str, words: tuple[str, ...], text: str) -> None:
    assert text in fila("consume", queue, *words).error(2)


def test_an_unknown_queue_is_an_error(fila: Fila) -> None:
    error = fila("consume", "nowhere", "--exec", "true", "--json").json_error()
    assert error["reason"] == "QUEUE_NOT_FOUND"
    assert json.dumps(error["hint"]) == '"create it with: fila queue create nowhere"'
