# SPDX-License-Identifier: AGPL-3.0-only
"""--json: one name per thing and one type per name, in every answer; errors are documents too."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fila.v1 import admin_pb2, service_pb2

from .conftest import Fila
from .fake_broker import fake_broker

# Every field of every answer, by what it is. A new field goes here; a second name for the same
# thing, or a second meaning for a name, does not.
TYPES = {
    "text": """cause check data_dir dead_letter_of dead_letter_queue detail error
        fairness_key file hint http_addr key key_id kind last_error lease_token message
        message_id name on_enqueue_script on_failure_script on_hook_error pattern payload
        payload_text permission reason remedy role round_key script secret settled severity shell
        source state summary sync tenant throttle_key value version what code""",
    "time": """at created_at enqueued_at estimated_at expires_at failed_at lease_expires_at
        paused_until started_at until""",
    "yes": """cancelled circuit_open deleted disk_low duplicate is_ready paused revoked superadmin
        unset""",
    "number": """acked acked_per_second active_consumers active_fairness_keys ahead attempt_count
        blocked blocked_per_second buffer_bytes burst bypassed calls compaction_bytes
        concurrency_limit connections consumer_credit count credit current_deficit dead_lettered
        dead_lettered_per_second dead_letters default_ttl_ms delay_ms delayed delivered
        delivered_per_second depth disk_floor_bytes disk_free_bytes disk_total_bytes duplicates
        duration_ms elapsed_ns enqueued enqueued_per_second entitled_share entitlement exit_code
        expired hook_memory_limit_bytes hook_timeout_ms hot_bytes
        idempotency_window_ms in_flight inbox_bytes largest_share_error leader_node_id limit line
        log_bytes max_attempts max_batch max_connections max_messages memory_bytes messages nacked
        nacked_per_second number oldest_pending_age_ms p50_ms p95_ms passed passed_per_second
        pending_count position purged quantum queue_count rate_per_second redriven refused
        replication_count retried retry_delay_max_ms retry_delay_ms round_position seconds share
        stored table_bytes throttle_cost throttled timed_out tokens total_count
        visibility_timeout_ms wait_p50_ms wait_p95_ms waiting weight""",
    "list": """acl checks config_keys consumers errors keys patterns per_key_stats
        per_throttle_stats queues reasons tenants throttle_keys throttles troubles
        unset_throttle_keys updated waits""",
    "group": """config counters decision entries headers hooks on_enqueue on_failure quiet_wait
        quiet_wait_if_fifo_computed traffic wait""",
}
KNOWN = {name: kind for kind, names in TYPES.items() for name in names.split()}
# A queue by its name in most answers; a number of failures for hooks, their history for messages.
KNOWN["queue"] = "text"
BOTH = {"failures": ("list", "number")}
# What an operator names, not we.
FREE = {"entries", "headers"}


def kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "yes"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, list):
        return "list"
    if isinstance(value, dict):
        return "group"
    return "text"


def fields(document: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(document, list):
        for item in document:
            yield from fields(item)
    elif isinstance(document, dict):
        for name, value in document.items():
            yield name, value
            if name not in FREE:
                yield from fields(value)


def check(document: Any) -> None:
    for name, value in fields(document):
        if value is None:
            assert name in KNOWN or name in BOTH, name
        elif name in BOTH:
            assert kind_of(value) in BOTH[name], (name, value)
        elif KNOWN.get(name) == "time":
            assert datetime.fromisoformat(value).tzinfo is not None, (name, value)
        else:
            assert KNOWN.get(name) == kind_of(value), (name, value)


@pytest.fixture
def answers(
    fila: Fila, new_queue: Callable[..., str], new_name: Callable[[], str], tmp_path: Path
) -> dict[str, Any]:
    """What every command answers, by its words."""
    found: dict[str, Any] = {}

    def ask(name: str, *words: str, stdin: str = "") -> Any:
        answer = fila(*name.split(), *words, "--json", stdin=stdin)
        assert answer.code == 0, (name, answer.err)
        found[name] = (
            [json.loads(line) for line in answer.out.splitlines()]
            if ("\n{" in answer.out)
            else json.loads(answer.out)
        )
        return found[name]

    queue, key = new_queue("--max-attempts", "1"), new_name()
    other = new_name()
    ask("queue create", other)
    ask("queue update", other, "--quantum", "2")
    ask("throttle set", key, "--rate", "100", "--burst", "5", "--concurrency", "3")
    ask("throttle set", f"{key}*", "--rate", "10")
    message = ("--header", "a=b", "--key", "acme", "--throttle-key", key, "--payload", "x")
    ask("enqueue", queue, *message)
    ask("enqueue --lines", queue, stdin="1\n2\n3\n4\n")
    leased = [ask("consume", queue) for _ in range(3)]
    ask("ack", queue, leased[0]["message_id"])
    ask("extend", queue, leased[1]["message_id"])
    ask("nack", queue, leased[1]["message_id"], "--error", "boom")
    ask("peek", f"{queue}.dlq")
    waiting = fila("peek", queue, "--state", "pending", "--json").json_lines()
    ask("explain", queue, "--message", waiting[0]["message_id"])
    ask("cancel", queue, waiting[0]["message_id"])
    ask("queue list")
    ask("queue inspect", queue)
    ask("queue pause", queue)
    ask("queue resume", queue, "--key", "acme")
    ask("stats", queue)
    ask("top --count 1")
    ask("top --count 2 --interval 0.1", queue)
    ask("redrive", f"{queue}.dlq")
    ask("throttle list", key)
    ask("throttle pause", key, "--for", "1s")
    ask("throttle resume", key)
    ask("throttle delete", key)
    ask("config set", key, "v")
    ask("config get", key)
    ask("config list")
    ask("config delete", key)
    ask("queue purge --yes", queue)
    ask("queue delete --yes", other)
    ask("completion fish")
    ask("doctor", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    script = tmp_path / "hook.lua"
    script.write_text("function on_enqueue(msg) return {fairness_key = 'k'} end")
    ask("hook test", str(script))
    return found


def test_every_answer_has_one_name_and_one_type_per_thing(answers: dict[str, Any]) -> None:
    for words, document in answers.items():
        try:
            check(document)
        except AssertionError as error:
            raise AssertionError(f"fila {words} --json: {error}") from error


def test_things_have_the_same_name_in_every_answer(answers: dict[str, Any]) -> None:
    for words, document in answers.items():
        names = {name for name, _ in fields(document)}
        assert not names & {"id", "from", "to", "token", "rate", "concurrency"}, words
        if "config" not in words.split():
            assert "key" not in names, words
    (row,) = [
        it for it in answers["queue list"]["queues"] if it["queue"] == answers["stats"]["queue"]
    ]
    shared = row.keys() & answers["stats"].keys()
    assert shared >= {"queue", "depth", "in_flight", "delayed", "paused", "counters", "throttled"}


def test_the_status_has_the_same_names() -> None:
    trouble = admin_pb2.Trouble(severity="SEVERITY_NOTICE", kind="paused", queue="q")
    answer = admin_pb2.GetStatusResponse(troubles=[trouble])
    answer.started_at.GetCurrentTime()
    with fake_broker({"GetStatus": lambda _: answer}) as (address, _):
        check(Fila(address)("status", "--json").json())


def test_an_error_of_the_broker_is_a_document(fila: Fila) -> None:
    assert fila("queue", "delete", "nowhere", "--yes", "--json").json_error() == {
        "code": "NOT_FOUND",
        "reason": "QUEUE_NOT_FOUND",
        "message": 'queue "nowhere" does not exist',
        "hint": "list queues with: fila queue list",
    }


def test_an_error_on_the_way_is_a_document(offline: Fila) -> None:
    error = offline("queue", "list", "--json").json_error()
    assert (error["code"], error["reason"]) == ("UNAVAILABLE", None)
    assert error["message"] == "no broker answers at 127.0.0.1:1"
    assert error["hint"].startswith("start one with: fila-server --listen 127.0.0.1:1")


@pytest.mark.parametrize(
    ("words", "message", "command"),
    [
        (("stats", "--json"), "missing argument 'QUEUE'", "fila stats"),
        (("--json", "stats", "q", "--what"), "no such option '--what'", "fila stats"),
        (("--json", "frobnicate"), "no such command 'frobnicate'", "fila"),
        (("--json", "peek", "q", "--limit", "x"), "invalid value for '--limit'", "fila peek"),
    ],
)
def test_wrong_usage_is_a_document(
    offline: Fila, words: tuple[str, ...], message: str, command: str
) -> None:
    error = offline(*words).json_error(2)
    assert (error["code"], error["reason"]) == (None, "USAGE")
    assert error["message"].startswith(message)
    assert error["hint"] == f"see: {command} --help"


def test_a_failure_of_this_machine_is_a_document(offline: Fila, tmp_path: Path) -> None:
    script = tmp_path / "hook.lua"
    script.write_text("nonsense")
    answer = offline("hook", "test", str(script), "--json")
    error = json.loads(answer.err)["error"]
    assert (answer.code, error["code"], error["reason"]) == (1, None, "LOCAL")
    assert "cannot be used as a hook" in error["message"]


def test_a_request_that_is_too_large_is_told_in_our_words(fila: Fila, tmp_path: Path) -> None:
    script = tmp_path / "big.lua"
    script.write_text("-" * 17_000_000)
    error = fila("queue", "create", "big", "--on-enqueue", f"@{script}").error()
    assert error == (
        f"the request has 17,000,015 bytes, and {fila.address} takes no more than 16,777,216; "
        "send less at a time, or raise limits.max_request_bytes there"
    )


def test_acks_travel_together() -> None:
    """One call per message was 170 messages a second."""
    left = iter([100, 100, 50, 0])

    def receive(request: Any) -> service_pb2.ReceiveResponse:
        answer = service_pb2.ReceiveResponse()
        for number in range(min(next(left), request.max_messages)):
            message = answer.messages.add(id=f"m-{number}", payload=b"x")
            message.metadata.queue_id = "q"
        return answer

    def ack(request: Any) -> service_pb2.AckBatchResponse:
        answer = service_pb2.AckBatchResponse()
        for _ in request.acks:
            answer.results.add()
        return answer

    with fake_broker({"Receive": receive, "AckBatch": ack}) as (address, calls):
        words = ("consume", "q", "--count", "300", "--wait", "0", "--ack", "--json")
        answer = Fila(address)(*words)
    assert len(answer.json_lines()) == 250
    assert answer.err == "Acked 250 messages\n"
    assert calls.count("AckBatch") == 3
