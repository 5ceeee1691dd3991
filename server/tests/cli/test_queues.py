# SPDX-License-Identifier: AGPL-3.0-only
"""`fila queue ...` from the outside."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Fila

ON_ENQUEUE = """
function on_enqueue(msg)
  return { fairness_key = msg.headers["tenant"] or "none", weight = 2 }
end
"""


def test_create_confirms_and_names_the_dead_letter_queue(fila: Fila) -> None:
    answer = fila("queue", "create", "orders").ok()
    assert answer == 'Created queue "orders" (dead letters go to "orders.dlq")\n'


def test_create_in_json(fila: Fila) -> None:
    answer = fila("queue", "create", "billing", "--json").json()
    assert answer == {"queue": "billing", "dead_letter_queue": "billing.dlq"}


def test_create_twice_points_to_update(fila: Fila, queue: str) -> None:
    error = fila("queue", "create", queue).error()
    assert error == (
        f'queue "{queue}" already exists; change its settings with: fila queue update {queue}'
    )


@pytest.mark.parametrize("name", ["", "has space", "a" * 300, "x.dlq", "new\nline"])
def test_bad_names_are_refused_in_one_line(fila: Fila, name: str) -> None:
    assert "name" in fila("queue", "create", name).error()


def test_every_setting_arrives(fila: Fila, new_queue: Callable[..., str]) -> None:
    name = new_queue(
        *("--visibility-timeout", "45s", "--max-attempts", "7", "--retry-delay", "250"),
        *("--retry-delay-max", "10m", "--default-ttl", "2h", "--idempotency-window", "3d"),
        *("--max-messages", "1000", "--on-hook-error", "reject", "--hook-timeout", "20"),
        *("--hook-memory", "2000000", "--quantum", "4", "--on-enqueue", ON_ENQUEUE),
        *("--on-failure", "function on_failure(msg) return { action = 'retry' } end"),
    )
    config = fila("queue", "inspect", name, "--json").json()["config"]
    assert config == {
        "on_enqueue_script": ON_ENQUEUE,
        "on_failure_script": "function on_failure(msg) return { action = 'retry' } end",
        "visibility_timeout_ms": 45_000,
        "max_attempts": 7,
        "retry_delay_ms": 250,
        "retry_delay_max_ms": 600_000,
        "default_ttl_ms": 7_200_000,
        "idempotency_window_ms": 259_200_000,
        "max_messages": 1000,
        "on_hook_error": "reject",
        "hook_timeout_ms": 20,
        "hook_memory_limit_bytes": 2_000_000,
        "quantum": 4,
    }


def test_script_from_a_file(fila: Fila, tmp_path: Path, new_queue: Callable[..., str]) -> None:
    script = tmp_path / "fair.lua"
    script.write_text(ON_ENQUEUE)
    name = new_queue("--on-enqueue", f"@{script}")
    assert fila("stats", name, "--json").json()["config"]["on_enqueue_script"] == ON_ENQUEUE
    shown = fila("queue", "inspect", name).ok()
    assert '  return { fairness_key = msg.headers["tenant"] or "none", weight = 2 }' in shown


def test_missing_script_file_is_named(fila: Fila) -> None:
    error = fila("queue", "create", "x", "--on-enqueue", "@/no/such.lua").error(2)
    assert error.startswith('cannot read "/no/such.lua": no such file or directory')


def test_bad_lua_is_refused_in_one_line(fila: Fila) -> None:
    error = fila("queue", "create", "lua", "--on-enqueue", "function on_enqueue(").error()
    assert "fila hook test FILE" in error
    assert "lua" not in [q["queue"] for q in fila("queue", "list", "--json").json()["queues"]]


def test_update_changes_only_what_is_named(fila: Fila, new_queue: Callable[..., str]) -> None:
    name = new_queue("--visibility-timeout", "45s", "--max-attempts", "7")
    answer = fila("queue", "update", name, "--max-attempts", "3").ok()
    assert answer == f'Updated queue "{name}" (max_attempts)\n'
    config = fila("queue", "inspect", name, "--json").json()["config"]
    assert (config["visibility_timeout_ms"], config["max_attempts"]) == (45_000, 3)
    fila("queue", "update", name, "--max-attempts", "0").ok()
    assert fila("queue", "inspect", name, "--json").json()["config"]["max_attempts"] == 0


def test_update_removes_a_hook_with_an_empty_script(
    fila: Fila, new_queue: Callable[..., str]
) -> None:
    name = new_queue("--on-enqueue", ON_ENQUEUE)
    fila("queue", "update", name, "--on-enqueue", "").ok()
    assert fila("stats", name, "--json").json()["config"]["on_enqueue_script"] == ""


def test_update_without_a_setting_is_a_usage_error(fila: Fila, queue: str) -> None:
    assert fila("queue", "update", queue).error(2).startswith("nothing to change; name at least")


@pytest.mark.parametrize(
    "command",
    [
        ("queue", "inspect"),
        ("queue", "delete", "--yes"),
        ("queue", "purge", "--yes"),
        ("queue", "pause"),
        ("queue", "resume"),
        ("queue", "update", "--quantum", "2"),
        ("peek",),
        ("explain", "--key", "k"),
    ],
    ids=" ".join,
)
def test_a_mistyped_queue_says_how_to_list_them(fila: Fila, command: tuple[str, ...]) -> None:
    error = fila(*command, "nowhere").error()
    assert error == 'queue "nowhere" does not exist; list queues with: fila queue list'


@pytest.mark.parametrize(
    "command",
    [
        ("stats",),
        ("top", "--count", "1"),
        ("consume",),
        ("enqueue",),
        ("enqueue", "--lines", "--payload", "a"),
    ],
    ids=" ".join,
)
def test_unknown_queue_says_how_to_create_it(fila: Fila, command: tuple[str, ...]) -> None:
    error = fila(*command, "nowhere").error()
    assert error == 'queue "nowhere" does not exist; create it with: fila queue create nowhere'


def test_list_is_an_aligned_table(fila: Fila, queue: str) -> None:
    for _ in range(3):
        fila("enqueue", queue).ok()
    fila("queue", "pause", queue).ok()
    lines = fila("queue", "list").ok().splitlines()
    assert lines[0].split() == ["QUEUE", "WAITING", "IN", "FLIGHT", "DELAYED", "CONSUMERS", "NOTE"]
    row = next(line for line in lines if line.startswith(f"{queue} "))
    assert row.split() == [queue, "3", "0", "0", "0", "paused"]
    for title in ("WAITING", "IN FLIGHT", "DELAYED", "CONSUMERS"):
        end = lines[0].index(title) + len(title)
        assert all(
            line[end - 1].isdigit() and line[end : end + 1] in ("", " ") for line in lines[1:]
        )
    dead = next(line for line in lines if line.startswith(f"{queue}.dlq"))
    assert dead.rstrip().endswith(f"dead letters of {queue}")


def test_an_empty_queue_is_deleted_without_a_question(fila: Fila, new_queue: Any) -> None:
    queue = new_queue()
    assert fila("queue", "delete", queue).ok() == f'Deleted queue "{queue}"\n'
    assert "does not exist" in fila("stats", queue).error()
    assert "does not exist" in fila("stats", f"{queue}.dlq").error()
    queue = new_queue()
    assert fila("queue", "delete", queue, "--json").json() == {
        "queue": queue,
        "deleted": True,
        "messages": 0,
        "dead_letters": 0,
    }


@pytest.fixture
def doomed(fila: Fila, new_queue: Callable[..., str]) -> str:
    """A queue with two messages, one of them delayed, and one dead letter."""
    queue = new_queue("--max-attempts", "1")
    fila("enqueue", queue).ok()
    fila("consume", queue, "--nack").ok()
    fila("enqueue", queue).ok()
    fila("enqueue", queue, "--delay", "1h").ok()
    return queue


def test_delete_asks_where_messages_would_go(fila: Fila, doomed: str) -> None:
    error = fila("queue", "delete", doomed).error(2)
    assert error.startswith(
        f'this deletes queue "{doomed}" with 2 messages and 1 dead letter; add --yes'
    )
    answer = fila("queue", "delete", doomed, "--yes").ok()
    assert answer == f'Deleted queue "{doomed}" with 2 messages and 1 dead letter\n'
    assert "does not exist" in fila("stats", f"{doomed}.dlq").error()


def test_dead_letters_alone_are_worth_a_question(fila: Fila, doomed: str) -> None:
    fila("queue", "purge", doomed, "--yes").ok()
    error = fila("queue", "delete", doomed).error(2)
    assert error.startswith(f'this deletes queue "{doomed}" with 1 dead letter; add --yes')
    assert fila("queue", "delete", doomed, "--keep-dead-letters").ok() == (
        f'Deleted queue "{doomed}"\n'
    )
    assert fila("stats", f"{doomed}.dlq", "--json").json()["depth"] == 1
    error = fila("queue", "delete", f"{doomed}.dlq").error(2)
    assert error.startswith(f'this deletes queue "{doomed}.dlq" with 1 message; add --yes')


def test_kept_dead_letters_are_not_counted(fila: Fila, doomed: str) -> None:
    error = fila("queue", "delete", doomed, "--keep-dead-letters").error(2)
    assert error.startswith(f'this deletes queue "{doomed}" with 2 messages; add --yes')
    words = ("queue", "delete", doomed, "--keep-dead-letters", "--yes", "--json")
    assert fila(*words).json() == {
        "queue": doomed,
        "deleted": True,
        "messages": 2,
        "dead_letters": 0,
    }


def test_purge_needs_yes_and_counts(fila: Fila, queue: str) -> None:
    for key in ("acme", "acme", "zeta"):
        fila("enqueue", queue, "--key", key).ok()
    assert "--yes" in fila("queue", "purge", queue).error(2)
    answer = fila("queue", "purge", queue, "--key", "acme", "--yes").ok()
    assert answer == f'Purged 2 messages from key "acme" of queue "{queue}"\n'
    answer = fila("queue", "purge", queue, "--yes", "--json").json()
    assert answer == {"queue": queue, "fairness_key": None, "purged": 1}


def test_pause_and_resume_a_key(fila: Fila, queue: str) -> None:
    fila("enqueue", queue, "--key", "acme", "--payload", "held").ok()
    answer = fila("queue", "pause", queue, "--key", "acme").ok()
    assert answer == f'Paused key "acme" of queue "{queue}"\n'
    assert fila("consume", queue, "--wait", "0").out == ""
    fila("queue", "resume", queue, "--key", "acme").ok()
    assert fila("consume", queue, "--ack", "--payload-only").ok() == "held\n"


def test_inspect_spells_defaults_out(fila: Fila, queue: str) -> None:
    shown = fila("queue", "inspect", queue).ok()
    assert shown.startswith(f'Queue "{queue}"\n')
    assert "max attempts          no limit" in shown
    assert "idempotency window    1d" in shown
    assert "SINCE START" in shown
