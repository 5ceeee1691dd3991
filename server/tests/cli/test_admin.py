# SPDX-License-Identifier: AGPL-3.0-only
"""`fila stats`, `config`, `redrive`, `explain` and `throttle` from the outside."""

import json
import signal
import subprocess
from collections.abc import Callable

import pytest

from .conftest import Fila


def test_config_empty_states_come_first(fila: Fila) -> None:
    # First in the file: the module's broker has no entries yet.
    assert fila("config", "list").ok() == (
        "No entries yet. Set one with: fila config set KEY VALUE\n"
    )
    assert fila("throttle", "list").ok() == (
        "No throttles yet. Set one with: fila throttle set KEY --rate 10\n"
    )
    assert fila("config", "list", "--json").json() == {"entries": {}}
    assert fila("throttle", "list", "--json").json() == {"throttles": []}


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


def test_throttle_set_list_delete(fila: Fila) -> None:
    answer = fila("throttle", "set", "api:stripe", "--rate", "2.5", "--burst", "20").ok()
    assert answer == 'Throttled "api:stripe": 2.5/s, burst 20\n'
    answer = fila("throttle", "set", "api:stripe", "--concurrency", "4").ok()
    assert answer == 'Throttled "api:stripe": 2.5/s, burst 20, 4 at a time\n'
    assert fila("config", "get", "throttle:api:stripe:rate").ok() == "2.5\n"
    lines = fila("throttle", "list").ok().splitlines()
    assert lines[0].split() == ["THROTTLE", "KEY", "RATE/S", "BURST", "CONCURRENCY"]
    assert lines[1].split() == ["api:stripe", "2.5", "20", "4"]
    assert fila("throttle", "list", "--json").json() == {
        "throttles": [{"key": "api:stripe", "rate": 2.5, "burst": 20, "concurrency": 4}]
    }
    answer = fila("throttle", "delete", "api:stripe").ok()
    assert answer == 'Removed the limits of "api:stripe"\n'
    assert fila("config", "list", "--json").json() == {"entries": {}}
    error = fila("throttle", "delete", "api:stripe").error()
    assert error == 'no throttle is set for "api:stripe"; list them with: fila throttle list'


def test_throttle_list_shows_the_compact_form_too(fila: Fila) -> None:
    fila("config", "set", "throttle.mail", "10,5").ok()
    (row,) = fila("throttle", "list", "--json").json()["throttles"]
    assert row == {"key": "mail", "rate": 10, "burst": 5, "concurrency": None}
    fila("throttle", "delete", "mail").ok()
    assert fila("throttle", "list", "--json").json() == {"throttles": []}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "nothing to set"),
        (("--rate", "0"), "'--rate'"),
        (("--rate", "fast"), "'--rate'"),
        (("--rate", "nan"), "'--rate'"),
        (("--rate", "inf"), "'--rate'"),
        (("--concurrency", "0"), "'--concurrency'"),
        (("--concurrency", "1.5"), "'--concurrency'"),
    ],
)
def test_throttle_refuses_nonsense(fila: Fila, options: tuple[str, ...], text: str) -> None:
    assert text in fila("throttle", "set", "k", *options).error(2)


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
    assert document == {"from": f"{dead}.dlq", "to": dead, "redriven": 1}
    answer = fila("redrive", f"{dead}.dlq").ok()
    assert answer.startswith(f'Nothing to redrive from "{dead}.dlq"; ')


def test_redrive_filters(fila: Fila, dead: str) -> None:
    dlq = f"{dead}.dlq"
    letters = fila("peek", dlq, "--json").json_lines()
    assert fila("redrive", dlq, "--key", "zeta", "--json").json()["redriven"] == 1
    filtered = fila("redrive", dlq, "--error-contains", "declined", "--json").json()
    assert filtered["redriven"] == 1
    named = fila("redrive", dlq, "--message", letters[0]["id"], "--json").json()
    assert named["redriven"] == 1


def test_redrive_of_an_ordinary_queue_is_refused(fila: Fila, queue: str) -> None:
    error = fila("redrive", queue).error()
    assert error.startswith(f'"{queue}" is not a dead-letter queue; ')


def test_redrive_into_a_deleted_queue_says_what_to_do(fila: Fila, dead: str) -> None:
    fila("queue", "delete", dead, "--yes").ok()
    error = fila("redrive", f"{dead}.dlq").error()
    assert "create" in error or "does not exist" in error


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


def test_stats_shows_totals_and_keys(fila: Fila, queue: str) -> None:
    for key in ("acme", "acme", "zeta"):
        fila("enqueue", queue, "--key", key, "--throttle-key", "stripe").ok()
    fila("throttle", "set", "stripe", "--rate", "100").ok()
    shown = fila("stats", queue).ok()
    lines = [line.split() for line in shown.splitlines()]
    assert ["waiting", "3", "enqueued", "3"] in lines
    assert ["acme", "1", "2", "0", "0", "0"] in [line[:6] for line in lines]
    document = fila("stats", queue, "--json").json()
    assert document["queue"] == queue
    assert (document["depth"], document["active_fairness_keys"]) == (3, 2)
    assert [key["key"] for key in document["per_key_stats"]] == ["acme", "zeta"]
    assert document["per_throttle_stats"][0]["rate_per_second"] == 100
    fila("throttle", "delete", "stripe").ok()


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
