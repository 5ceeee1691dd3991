# SPDX-License-Identifier: AGPL-3.0-only
"""`fila enqueue`, `consume`, `peek` and `cancel` from the outside."""

import base64
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Fila

ID = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"


def test_enqueue_confirms_with_the_id(fila: Fila, queue: str) -> None:
    answer = fila("enqueue", queue, "--payload", "hello").ok()
    assert re.fullmatch(rf'Enqueued {ID} to "{queue}"\n', answer)


def test_enqueue_in_json(fila: Fila, queue: str) -> None:
    answer = fila("--json", "enqueue", queue).json()
    assert re.fullmatch(ID, answer.pop("message_id"))
    assert answer == {"queue": queue, "duplicate": False}


def test_same_idempotency_key_is_one_message(fila: Fila, queue: str) -> None:
    first = fila("enqueue", queue, "--idempotency-key", "k1", "--json").json()
    second = fila("enqueue", queue, "--idempotency-key", "k1", "--json").json()
    assert second == {**first, "duplicate": True}
    third = fila("enqueue", queue, "--idempotency-key", "k1").ok()
    assert third.startswith(f'Already in "{queue}" under this idempotency key: ')


def test_every_enqueue_option_arrives(fila: Fila, queue: str) -> None:
    fila(
        *("enqueue", queue, "--header", "tenant=acme", "--header", "note=a=b"),
        *("--payload", "olá", "--key", "acme", "--weight", "3"),
        *("--throttle-key", "stripe", "--throttle-key", "eu", "--throttle-cost", "2"),
    ).ok()
    (message,) = fila("peek", queue, "--json").json_lines()
    assert message["headers"] == {"tenant": "acme", "note": "a=b"}
    assert message["payload"] == base64.b64encode("olá".encode()).decode()
    assert message["payload_text"] == "olá"
    assert (message["fairness_key"], message["weight"]) == ("acme", 3)
    assert sorted(message["throttle_keys"]) == ["eu", "stripe"]
    assert (message["state"], message["queue"]) == ("pending", queue)
    assert message["enqueued_at"].endswith("Z")
    assert "lease_token" not in message


def test_payload_from_a_file_and_from_standard_input(
    fila: Fila, queue: str, tmp_path: Path
) -> None:
    binary = bytes(range(256))
    (tmp_path / "payload").write_bytes(binary)
    fila("enqueue", queue, "--payload", f"@{tmp_path / 'payload'}").ok()
    fila("enqueue", queue, "--payload", "-", stdin=binary[::-1]).ok()
    messages = fila("peek", queue, "--json").json_lines()
    assert [base64.b64decode(m["payload"]) for m in messages] == [binary, binary[::-1]]
    assert [m["payload_text"] for m in messages] == [None, None]
    shown = fila("peek", queue).ok()
    assert "<256 bytes, not text>" in shown


def test_missing_payload_file_is_named(fila: Fila, queue: str) -> None:
    error = fila("enqueue", queue, "--payload", "@/no/such").error(2)
    assert error.startswith('cannot read "/no/such": no such file or directory')


def test_bad_header_is_refused_without_repeating_it(fila: Fila, queue: str) -> None:
    error = fila("enqueue", queue, "--header", "s3cret").error(2)
    assert "K=V" in error
    assert "s3cret" not in error


def test_delay_holds_a_message_back(fila: Fila, queue: str) -> None:
    fila("enqueue", queue, "--payload", "later", "--delay", "1h").ok()
    (message,) = fila("peek", queue, "--state", "delayed", "--json").json_lines()
    assert message["state"] == "delayed"
    assert fila("consume", queue, "--wait", "0").out == ""
    assert fila("peek", queue, "--state", "pending", "--json").ok() == ""


def test_ttl_drops_a_message(fila: Fila, queue: str) -> None:
    fila("enqueue", queue, "--ttl", "50ms").ok()
    time.sleep(0.3)
    assert fila("consume", queue, "--wait", "0", "--ack").out == ""


def test_consume_without_settling_says_what_happens(
    fila: Fila, new_queue: Callable[..., str]
) -> None:
    queue = new_queue("--visibility-timeout", "1s")
    fila("enqueue", queue, "--payload", "hello", "--header", "tenant=acme").ok()
    answer = fila("consume", queue)
    lines = answer.ok().splitlines()
    assert re.match(rf"{ID}  key default, waited ", lines[0])
    assert lines[1:] == ["  tenant: acme", "  hello"]
    assert answer.err.startswith("Leased 1 message, neither acked nor nacked: ")
    assert "use --ack to take them" in answer.err
    (again,) = fila("consume", queue, "--ack", "--json", "--wait", "10").json_lines()
    assert (again["payload_text"], again["attempt_count"]) == ("hello", 1)
    assert again["lease_token"]


def test_consume_acks_after_printing(fila: Fila, queue: str) -> None:
    for text in ("a", "b", "c"):
        fila("enqueue", queue, "--payload", text).ok()
    answer = fila("consume", queue, "--count", "10", "--wait", "0.2", "--ack", "--payload-only")
    assert answer.ok() == "a\nb\nc\n"
    assert answer.err == "Acked 3 messages\n"
    stats = fila("stats", queue, "--json").json()
    assert (stats["depth"], stats["in_flight"], stats["counters"]["acked"]) == (0, 0, 3)


def test_consume_nacks_with_an_error_that_stays(fila: Fila, new_queue: Callable[..., str]) -> None:
    queue = new_queue("--max-attempts", "1")
    fila("enqueue", queue, "--payload", "bad").ok()
    answer = fila("consume", queue, "--nack", "--error", "card declined")
    answer.ok()
    assert answer.err == "Nacked 1 message\n"
    (dead,) = fila("peek", f"{queue}.dlq", "--json").json_lines()
    assert (dead["payload_text"], dead["last_error"]) == ("bad", "card declined")


def test_consume_from_an_empty_queue_says_so(fila: Fila, queue: str) -> None:
    answer = fila("consume", queue, "--wait", "0.2")
    assert answer.ok() == ""
    assert answer.err == (
        f"No message became ready within 200ms; see why with: fila stats {queue}\n"
    )


def test_consume_payloads_are_byte_exact(fila: Fila, queue: str) -> None:
    binary = bytes(range(256))
    fila("enqueue", queue, "--payload", "-", stdin=binary).ok()
    assert fila("consume", queue, "--ack", "--payload-only").raw == binary + b"\n"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--ack", "--nack"), "exclude each other"),
        (("--error", "x"), "pass --nack"),
        (("--count", "-1"), "invalid value for '--count'"),
        (("--count", "many"), "invalid value for '--count'"),
        (("--wait", "-1"), "invalid value for '--wait'"),
    ],
)
def test_consume_refuses_nonsense(
    fila: Fila, queue: str, options: tuple[str, ...], text: str
) -> None:
    assert text in fila("consume", queue, *options).error(2)


def test_peek_table_is_aligned_and_oldest_first(fila: Fila, queue: str) -> None:
    for key, text in (("acme", "one"), ("a-rather-long-tenant", "two")):
        fila("enqueue", queue, "--key", key, "--payload", text).ok()
    lines = fila("peek", queue).ok().splitlines()
    assert lines[0].split() == ["MESSAGE", "STATE", "KEY", "TRIES", "AGE", "PAYLOAD"]
    column = lines[0].index("PAYLOAD")
    assert [line[column:].strip() for line in lines[1:]] == ["one", "two"]
    assert fila("peek", queue, "--key", "acme", "--json").json_lines()[0]["payload_text"] == "one"


def test_peek_says_when_there_is_more(fila: Fila, queue: str) -> None:
    fila("enqueue", queue, "--lines", stdin="1\n2\n3\n").ok()
    answer = fila("peek", queue, "--limit", "2", "--json")
    assert [m["payload_text"] for m in answer.json_lines()] == ["1", "2"]
    assert answer.err.startswith("More messages follow; ")


def test_peek_into_nothing_says_so(fila: Fila, queue: str) -> None:
    answer = fila("peek", queue).ok()
    assert answer == f'Nothing to see in "{queue}"; its numbers: fila stats {queue}\n'


def test_hostile_payload_cannot_steer_the_terminal(fila: Fila, queue: str) -> None:
    fila("enqueue", queue, "--key", "[red]k", "--payload", "\x1b[2J[bold]hi\r\n:smile:").ok()
    shown = fila("peek", queue, COLUMNS="200").ok()
    assert "\x1b" not in shown
    assert r"\x1b[2J[bold]hi\r\n:smile:" in shown
    assert "[red]k" in shown
    consumed = fila("consume", queue, "--ack").ok()
    assert r"\x1b[2J[bold]hi\r\n:smile:" in consumed


def test_cancel_drops_a_waiting_message(fila: Fila, queue: str) -> None:
    message_id = fila("enqueue", queue, "--json").json()["message_id"]
    answer = fila("cancel", queue, message_id).ok()
    assert answer == f'Cancelled message "{message_id}" of queue "{queue}"\n'
    error = fila("cancel", queue, message_id).error()
    assert error.endswith(f"see what is there with: fila peek {queue}")


def test_cancel_refuses_a_leased_message(fila: Fila, queue: str) -> None:
    fila("enqueue", queue).ok()
    (message,) = fila("consume", queue, "--json").json_lines()
    assert "lease" in fila("cancel", queue, message["message_id"]).error()


def test_lines_become_messages(fila: Fila, queue: str) -> None:
    text = "".join(f"line {n}\n" for n in range(2_500))
    answer = fila("enqueue", queue, "--lines", "--key", "acme", stdin=text)
    assert answer.ok() == f'Enqueued 2,500 messages to "{queue}"\n'
    assert answer.err == ""
    stats = fila("stats", queue, "--json").json()
    assert stats["depth"] == 2_500
    shown = fila("consume", queue, "--count", "2500", "--ack", "--payload-only").ok()
    assert shown == text


def test_lines_keep_blank_lines_and_drop_line_ends(fila: Fila, queue: str, tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.write_bytes(b"a\r\n\nlast without end")
    answer = fila("enqueue", queue, "--lines", "--payload", f"@{source}", "--json").json()
    assert answer == {"queue": queue, "stored": 3, "refused": 0, "errors": []}
    messages = fila("peek", queue, "--json").json_lines()
    assert [m["payload_text"] for m in messages] == ["a", "", "last without end"]


def test_refused_lines_are_named(fila: Fila, new_queue: Callable[..., str]) -> None:
    queue = new_queue("--max-messages", "2")
    answer = fila("enqueue", queue, "--lines", "--json", stdin="1\n2\n3\n4\n")
    assert answer.code == 1
    document = json.loads(answer.out)
    assert (document["stored"], document["refused"]) == (2, 2)
    assert [error["line"] for error in document["errors"]] == [3, 4]
    assert {error["reason"] for error in document["errors"]} == {"QUEUE_FULL"}
    error = answer.json_error()
    assert error["message"].startswith("2 lines were stored and 2 refused, the first, line 3: ")
    assert error["hint"].startswith("raise it with: fila queue update ")


def test_lines_refuse_one_idempotency_key(fila: Fila, queue: str) -> None:
    assert "--lines" in fila("enqueue", queue, "--lines", "--idempotency-key", "k").error(2)


def test_no_lines_are_no_messages(fila: Fila, queue: str) -> None:
    assert fila("enqueue", queue, "--lines").ok() == f'Enqueued 0 messages to "{queue}"\n'
