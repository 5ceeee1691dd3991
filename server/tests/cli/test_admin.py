# SPDX-License-Identifier: AGPL-3.0-only
"""`fila stats`, `config`, `redrive` and `explain` from the outside."""

import json
import signal
import subprocess
from collections.abc import Callable

import pytest

from .conftest import Fila


def test_config_set_get_list_delete(fila: Fila) -> None:
    assert fila("config", "set", "plan:acme", "gold").ok() == 'Set "plan:acme"\n'
    assert fila("config", "get", "plan:acme").ok() == "gold\n"
    document = fila("config", "get", "plan:acme", "--json").json()
    assert document == {"key": "plan:acme", "value": "gold"}
    lines = fila("config", "list", "--prefix", "plan:").ok().splitlines()
    assert [line.split() for line in lines] == [["KEY", "VALUE"], ["plan:acme", "gold"]]
    assert fila("config", "list", "--prefix", "plan:", "--json").json() == {
        "entries": {"plan:acme": "gold"}
    }
    assert fila("config", "delete", "plan:acme").ok() == 'Deleted "plan:acme"\n'
    error = fila("config", "get", "plan:acme").error()
    assert error.endswith("list the entries with: fila config list")
    assert fila("config", "list", "--prefix", "plan:").ok() == (
        'No entries start with "plan:". See all with: fila config list\n'
    )


def test_an_empty_value_removes_an_entry(fila: Fila) -> None:
    fila("config", "set", "plan:zeta", "gold").ok()
    assert fila("config", "set", "plan:zeta", "").ok() == 'Removed "plan:zeta"\n'
    assert "no configuration entry" in fila("config", "get", "plan:zeta").error()


@pytest.fixture
def dead(fila: Fila, new_queue: Callable[..., str]) -> str:
    """A queue whose dead-letter queue holds three messages with different errors."""
    queue = new_queue("--max-attempts", "1")
    for key, error in (("acme", "timeout"), ("acme", "card declined"), ("zeta", "timeout")):
        fila("enqueue", queue, "--key", key, "--payload", error).ok()
        fila("consume", queue, "--nack", "--error", error).ok()
    return queue


def test_redrive_confirms_with_the_count(fila: Fila, dead: str) -> None:
    answer = fila("redrive", f"{dead}.dlq", "--count", "2").ok()
    assert answer == f'Redrove 2 messages from "{dead}.dlq" to "{dead}"\n'
    document = fila("redrive", f"{dead}.dlq", "--json").json()
    assert document == {"queue": dead, "dead_letter_queue": f"{dead}.dlq", "redriven": 1}
    answer = fila("redrive", f"{dead}.dlq").ok()
    assert answer.startswith(f'Nothing to redrive from "{dead}.dlq"; ')


def test_redrive_filters(fila: Fila, dead: str) -> None:
    dlq = f"{dead}.dlq"
    letters = fila("peek", dlq, "--json").json_lines()
    assert fila("redrive", dlq, "--key", "zeta", "--json").json()["redriven"] == 1
    filtered = fila("redrive", dlq, "--error-contains", "declined", "--json").json()
    assert filtered["redriven"] == 1
    named = fila("redrive", dlq, "--message", letters[0]["message_id"], "--json").json()
    assert named["redriven"] == 1


def test_redrive_of_an_ordinary_queue_is_refused(fila: Fila, queue: str) -> None:
    error = fila("redrive", queue).error()
    assert error.startswith(f'"{queue}" is not a dead-letter queue; ')


def test_redrive_into_a_deleted_queue_says_what_to_do(fila: Fila, dead: str) -> None:
    fila("queue", "delete", dead, "--yes", "--keep-dead-letters").ok()
    error = fila("redrive", f"{dead}.dlq").error()
    assert error.endswith("; create that queue again, then redrive")


def test_dead_letters_show_how_they_failed(fila: Fila, new_queue: Callable[..., str]) -> None:
    queue = new_queue("--max-attempts", "2")
    fila("enqueue", queue, "--key", "acme", "--payload", "bad").ok()
    for error in ("timeout", "card declined"):
        fila("consume", queue, "--nack", "--error", error).ok()
    (letter,) = fila("peek", f"{queue}.dlq", "--json").json_lines()
    causes = [failure["cause"] for failure in letter["failures"]]
    assert (causes[0], causes[-1]) == ("nack", "max_attempts")
    errors = [failure["error"] for failure in letter["failures"]]
    assert errors[:2] == ["timeout", "card declined"]
    assert all(failure["failed_at"].endswith("Z") for failure in letter["failures"])
    header, first, *history = fila("peek", f"{queue}.dlq").ok().splitlines()
    assert first.split()[0] == letter["message_id"] and first.endswith("bad")
    words = [cause.replace("_", " ") for cause in causes]
    state, key = header.index("STATE"), header.index("KEY")
    assert [line[state:key].strip() for line in history] == words
    assert [line[header.index("PAYLOAD") :] for line in history[:2]] == ["timeout", "card declined"]
    shown = fila("explain", f"{queue}.dlq", "--message", letter["message_id"]).ok()
    lines = [line.split() for line in shown.splitlines()]
    assert ["FAILED", "CAUSE", "ERROR"] in lines
    assert [line[-1] for line in lines if line[1:2] == ["ago"]][:2] == ["timeout", "declined"]


def test_a_delivery_shows_how_the_ones_before_it_failed(fila: Fila, queue: str) -> None:
    fila("enqueue", queue, "--payload", "again").ok()
    fila("consume", queue, "--nack", "--error", "timeout").ok()
    first, failure, payload = fila("consume", queue, "--ack").ok().splitlines()
    assert "failed 1x" in first
    assert failure.startswith("  nack ") and failure.endswith(" ago: timeout")
    assert payload == "  again"


def test_explain_a_paused_key(fila: Fila, queue: str) -> None:
    message_id = fila("enqueue", queue, "--key", "acme", "--json").json()["message_id"]
    fila("queue", "pause", queue, "--key", "acme").ok()
    document = fila("explain", queue, "--key", "acme", "--json").json()
    assert document["queue"] == queue
    assert (document["fairness_key"], document["pending_count"]) == ("acme", 1)
    assert document["reasons"][0]["kind"] == "paused"
    shown = fila("explain", queue, "--message", message_id).ok()
    assert shown.startswith(document["summary"]) or "paused" in shown


@pytest.mark.parametrize("options", [(), ("--key", "a", "--message", "b")])
def test_explain_needs_one_thing_to_explain(
    fila: Fila, queue: str, options: tuple[str, ...]
) -> None:
    assert "--key FAIRNESS_KEY or --message ID" in fila("explain", queue, *options).error(2)


def test_explain_names_throttle_keys_without_a_limit(
    fila: Fila, queue: str, new_name: Callable[[], str]
) -> None:
    limited, unlimited = f"{new_name()} a", f"{new_name()} b"
    fila("throttle", "set", limited, "--rate", "100").ok()
    keys = ("--throttle-key", limited, "--throttle-key", unlimited)
    message_id = fila("enqueue", queue, *keys, "--json").json()["message_id"]
    document = fila("explain", queue, "--message", message_id, "--json").json()
    assert document["unset_throttle_keys"] == [unlimited]
    assert fila("explain", queue, "--message", message_id).ok().splitlines()[-1] == (
        f'Nobody has set a limit for "{unlimited}"; '
        f"set one with: fila throttle set '{unlimited}' --rate R"
    )


def test_stats_shows_totals_keys_and_the_round(
    fila: Fila, queue: str, new_name: Callable[[], str]
) -> None:
    limit = new_name()
    fila("throttle", "set", limit, "--rate", "100", "--concurrency", "7").ok()
    for key in ("acme", "acme", "zeta"):
        fila("enqueue", queue, "--key", key, "--throttle-key", limit).ok()
    shown = fila("stats", queue).ok()
    lines = [line.split() for line in shown.splitlines()]
    assert ["waiting", "3", "enqueued", "3"] in lines
    assert 'Round: the turn of "acme", quantum 1' in shown
    rows = {line[0]: line for line in lines if line[:1] in (["acme"], ["zeta"])}
    assert (rows["acme"][1:5], rows["acme"][-1]) == (["1", "2", "0", "0"], "now")
    assert (rows["zeta"][1:5], rows["zeta"][-1]) == (["1", "1", "0", "0"], "1")
    heads = ["SOURCE", "RATE/S", "TOKENS", "IN", "FLIGHT", "WAITING", "PASSED/S", "BLOCKED/S"]
    assert ["THROTTLE", "KEY", *heads] in lines
    assert [limit, "exact", "100", "100", "0/7", "3", "0", "0"] in lines
    document = fila("stats", queue, "--json").json()
    assert document["queue"] == queue
    assert (document["depth"], document["active_fairness_keys"]) == (3, 2)
    assert (document["quantum"], document["round_key"]) == (1, "acme")
    keys = [(key["fairness_key"], key["round_position"]) for key in document["per_key_stats"]]
    assert keys == [("acme", 0), ("zeta", 1)]
    assert document["per_throttle_stats"][0]["rate_per_second"] == 100


def test_stats_of_an_idle_queue_have_nobodys_turn(fila: Fila, queue: str) -> None:
    assert "Round: nobody's turn, quantum 1" in fila("stats", queue).ok()
    assert fila("stats", queue, "--json").json()["round_key"] == ""


def test_watching_prints_json_lines_until_ctrl_c(fila: Fila, queue: str) -> None:
    process = fila.start(
        *("stats", queue, "--watch", "--interval", "0.2", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    looks = [json.loads(process.stdout.readline()) for _ in range(3)]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors == b""
    assert [look["queue"] for look in looks] == [queue] * 3
    assert looks[0]["at"] < looks[1]["at"] < looks[2]["at"]


def test_watching_in_a_pipe_prints_a_line_per_look(fila: Fila, queue: str) -> None:
    process = fila.start(*("stats", queue, "--watch", "--interval", "0.2"), stdout=subprocess.PIPE)
    assert process.stdout is not None
    lines = [process.stdout.readline().decode() for _ in range(3)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert all("waiting 0 in flight 0" in line for line in lines)
    assert "delivered 0/s" in lines[2]
