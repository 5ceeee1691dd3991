# SPDX-License-Identifier: AGPL-3.0-only
"""`fila ack`, `nack` and `extend`: one leased message, by its id and token."""

from collections.abc import Callable

import pytest

from .conftest import Fila


def lease(fila: Fila, queue: str) -> tuple[str, str]:
    fila("enqueue", queue, "--payload", "x").ok()
    (message,) = fila("consume", queue, "--json").json_lines()
    return message["message_id"], message["lease_token"]


def test_ack_takes_a_leased_message(fila: Fila, queue: str) -> None:
    message_id, token = lease(fila, queue)
    answer = fila("ack", queue, message_id, "--token", token).ok()
    assert answer == f'Acked message "{message_id}" of queue "{queue}"\n'
    assert fila("ack", queue, message_id).error().endswith(f"with: fila peek {queue}")
    message_id, _ = lease(fila, queue)
    answer = fila("ack", queue, message_id, "--json").json()
    assert answer == {"queue": queue, "message_id": message_id, "settled": "ack"}


def test_a_stale_token_is_refused(fila: Fila, queue: str) -> None:
    message_id, token = lease(fila, queue)
    fila("nack", queue, message_id, "--token", token).ok()
    (again,) = fila("consume", queue, "--json").json_lines()
    assert again["message_id"] == message_id and again["lease_token"] != token
    for command in ("ack", "nack", "extend"):
        error = fila(command, queue, message_id, "--token", token, "--json").json_error()
        assert (error["reason"], error["code"]) == ("LEASE_EXPIRED", "FAILED_PRECONDITION")


def test_nack_leaves_its_error(fila: Fila, new_queue: Callable[..., str]) -> None:
    queue = new_queue("--max-attempts", "1")
    message_id, token = lease(fila, queue)
    words = ("nack", queue, message_id, "--token", token, "--error", "card declined", "--json")
    assert fila(*words).json() == {"queue": queue, "message_id": message_id, "settled": "nack"}
    (letter,) = fila("peek", f"{queue}.dlq", "--json").json_lines()
    assert letter["last_error"] == "card declined"
    shown = fila("peek", f"{queue}.dlq").ok()
    assert "max attempts" in shown and "card declined" in shown


def test_a_hopeless_message_is_dead_at_once(fila: Fila, queue: str) -> None:
    message_id, token = lease(fila, queue)
    words = ("nack", queue, message_id, "--token", token, "--error", "no such address")
    answer = fila(*words, "--dead-letter").ok()
    assert answer == f'Dead-lettered message "{message_id}" of queue "{queue}"\n'
    (letter,) = fila("peek", f"{queue}.dlq", "--json").json_lines()
    assert letter["last_error"] == "no such address"


def test_a_message_that_is_put_off_counts_no_attempt(fila: Fila, queue: str) -> None:
    message_id, _ = lease(fila, queue)
    answer = fila("nack", queue, message_id, "--retry-after", "1h").ok()
    assert answer == f'Put off for 1h: message "{message_id}" of queue "{queue}"\n'
    (waiting,) = fila("peek", queue, "--json").json_lines()
    assert (waiting["state"], waiting["attempt_count"]) == ("delayed", 0)


def test_extend_says_when_the_lease_ends(fila: Fila, queue: str) -> None:
    message_id, token = lease(fila, queue)
    words = ("extend", queue, message_id, "--token", token, "--for", "2h")
    assert f'The lease of "{message_id}" in "{queue}" ends in ' in fila(*words).ok()
    first = fila(*words, "--json").json()["lease_expires_at"]
    second = fila("extend", queue, message_id, "--for", "3h", "--json").json()
    assert list(second) == ["queue", "message_id", "lease_expires_at"]
    assert second["lease_expires_at"] > first


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("nack", "q", "m", "--throttle-key", "k"), "pass --retry-after with it"),
        (("nack", "q", "m", "--dead-letter", "--retry-after", "1s"), "pass one of them"),
        (("extend", "q", "m", "--for", "0"), "name a time above 0"),
        (("extend", "q", "m", "--for", "soon"), '"soon" is not a duration'),
        (("ack", "q"), "missing argument 'MESSAGE_ID'"),
    ],
)
def test_nonsense_is_refused(offline: Fila, words: tuple[str, ...], text: str) -> None:
    assert text in offline(*words).error(2)
