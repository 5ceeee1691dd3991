# SPDX-License-Identifier: AGPL-3.0-only
"""The interpreter, on drivers that answer from a table."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fila_conformance import steps
from fila_conformance.broker import ProcessBroker
from fila_conformance.cases import Case, _step
from fila_conformance.driver import Driver, DriverError, Launch
from fila_conformance.stage import Brokers, Stage
from fila_conformance.steps import Interpreter, StepFailure

FAKE = Path(__file__).parent / "fake_driver.py"
QUEUE = "c.fake.suite.case"

Run = Callable[..., None]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs steps of a scripted case on a fake driver; no broker is started."""
    drivers: list[Driver] = []

    def run_steps(table: dict[str, Any], *written: dict[str, Any], strict: bool = False) -> None:
        command = [sys.executable, str(FAKE), json.dumps(table)]
        driver = Driver(Launch("fake", tuple(command)), is_strict=strict)
        drivers.append(driver)
        listed = tuple(_step(step, "suite/case") for step in written)
        case = Case("suite", "case", "about", ("FR1",), listed, mode="scripted")
        stage = Stage(case, "fake", Brokers(ProcessBroker))
        try:
            Interpreter(case, stage, driver).run()
        finally:
            stage.close()

    yield run_steps
    for driver in drivers:
        driver.kill()


def test_steps_that_go_as_expected_pass(run: Run) -> None:
    table = {"enqueue": [{"ok": {"message_id": "m1"}}]}
    run(
        table,
        {"connect": {}},
        {"enqueue": {}, "save": "sent", "expect": {"message_id": "m1"}},
        {"check": "$sent.message_id", "expect": "m1"},
    )


def test_fields_that_a_case_leaves_out_are_filled_in(run: Run) -> None:
    table = {"enqueue": [{"ok": "echo"}], "next": [{"ok": "echo"}]}
    named = {"$matches": "^a-[0-9]+$"}
    run(table, {"enqueue": {}, "expect": {"client": named, "queue": QUEUE}})
    wanted = {"max": 1, "wait_ms": 15000, "consumer": {"$matches": "^c-"}}
    run(table, {"next": None, "expect": wanted})
    table = {"work": [{"ok": "echo"}], "handled": [{"ok": "echo"}]}
    worker = {"$matches": "^w-[0-9]+$"}
    run(table, {"work": {}, "expect": {"client": named, "worker": worker, "queue": QUEUE}})
    run(table, {"handled": {"count": 2}, "expect": {"worker": worker, "wait_ms": 15000}})
    waits = {"count": 2, "wait_ms": 0}
    run(table, {"handled": waits, "expect": {"worker": worker, **waits}})


def test_a_difference_names_the_step(run: Run) -> None:
    with pytest.raises(StepFailure, match=r"step 2 \(enqueue\): message_id: expected") as failed:
        run(
            {"enqueue": [{"ok": {"message_id": "m2"}}]},
            {"connect": {}},
            {"enqueue": {}, "expect": {"message_id": "m1"}},
        )
    assert any(line.startswith("sent:") for line in failed.value.lines)


ERROR = {"error": {"kind": "unavailable", "message": "gone", "retryable": True}}


def test_an_error_that_is_expected_passes(run: Run) -> None:
    run({"enqueue": [ERROR]}, {"enqueue": {}, "error": "unavailable"})
    run({"enqueue": [ERROR]}, {"enqueue": {}, "error": {"kind": "unavailable", "retryable": True}})


@pytest.mark.parametrize(
    ("reply", "step", "told"),
    [
        (ERROR, {"enqueue": {}}, "failed with unavailable: gone"),
        (ERROR, {"enqueue": {}, "error": "internal"}, "kind: expected 'internal'"),
        ({"ok": {}}, {"enqueue": {}, "error": "internal"}, "succeeded, expected the error"),
        ({"crashed": "oops"}, {"enqueue": {}, "error": "internal"}, "the driver crashed: oops"),
        ({"unsupported": "no"}, {"enqueue": {}}, "does not support it: no"),
        ({"ok": {}}, {"enqueue": {}, "at_least_ms": 5000}, "expected at least 5000"),
        ({"ok": {}}, {"enqueue": {"queue": "$nobody"}}, "nothing is saved as 'nobody'"),
    ],
)
def test_what_does_not_go_as_expected_fails(
    run: Run, reply: dict[str, Any], step: dict[str, Any], told: str
) -> None:
    with pytest.raises(StepFailure, match=told):
        run({"enqueue": [reply]}, step)


def test_until_tries_again(run: Run) -> None:
    table = {"stats": [ERROR, {"ok": {"depth": 1}}, {"ok": {"depth": 2}}]}
    run(table, {"stats": {}, "until_ms": 20_000, "expect": {"depth": 2}})
    with pytest.raises(StepFailure, match="depth: expected 3, got 2"):
        run(
            {"stats": [{"ok": {"depth": 2}}]},
            {"stats": {}, "until_ms": 300, "expect": {"depth": 3}},
        )


def test_a_started_step_is_awaited_later(run: Run) -> None:
    table = {"receive": [{"after_ms": 300, "ok": {"messages": []}}], "stats": [{"ok": {}}]}
    run(
        table,
        {"receive": {}, "start": "slow"},
        {"stats": {}},
        {"await": "slow", "expect": {"messages": []}, "at_least_ms": 250, "since": "slow"},
    )


def test_cancel_names_the_request_that_is_under_way(run: Run) -> None:
    run(
        {"receive": ["silence"], "cancel": [{"ok": "echo"}]},
        {"receive": {}, "start": "slow"},
        {"cancel": {"target": "slow"}, "expect": {"target": 1}},
    )


def test_an_error_of_a_consumer_may_come_early_or_late(run: Run) -> None:
    step = {"consume_first": {}, "error": "unavailable"}
    run({"consume": [ERROR]}, step)
    run({"next": [ERROR]}, step)
    with pytest.raises(StepFailure, match="succeeded"):
        run({"next": [{"ok": {"messages": [], "ended": False}}]}, step)


def test_a_request_in_a_span_gets_its_defaults_too(run: Run) -> None:
    then = {"op": "enqueue", "headers": {"a": "b"}}
    run(
        {"with_span": [{"ok": "echo"}]},
        {
            "with_span": {"traceparent": "00-1-2-01", "then": then},
            "expect": {"then": {"op": "enqueue", "queue": QUEUE}},
        },
    )


def test_a_driver_that_ends_is_no_failure_of_the_case(run: Run) -> None:
    with pytest.raises(DriverError, match="ended before it answered"):
        run({"enqueue": ["exit"]}, {"enqueue": {}})


def test_output_that_is_no_reply_is_told(run: Run) -> None:
    with pytest.raises(DriverError, match="not a reply to anything"):
        run({"enqueue": ["garbage"]}, {"enqueue": {}})


def test_silence_is_bounded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "REPLY_TIMEOUT_S", 0.3)
    with pytest.raises(StepFailure, match="no reply to enqueue"):
        run({"enqueue": ["silence"]}, {"enqueue": {}})


def test_strict_mode_holds_replies_to_the_schema(run: Run) -> None:
    table = {"enqueue": [{"ok": {"message_id": 7}}]}
    run(table, {"enqueue": {}})
    with pytest.raises(StepFailure, match=r"breaks the protocol at \$.message_id"):
        run(table, {"enqueue": {}}, strict=True)


def test_a_driver_is_told_to_end(run: Run) -> None:
    run({}, {"connect": {}}, {"driver": "eof", "expect": {"exit_code": 0}})
    run({}, {"connect": {}}, {"driver": "terminate", "expect": {"exit_code": -15}})


def test_a_driver_may_be_expected_to_end_by_itself(run: Run) -> None:
    table = {"work": [{"ok": {}, "then_exit": 9}]}
    run(table, {"connect": {}}, {"work": {}}, {"driver": "exited", "expect": {"exit_code": 9}})


def test_a_driver_that_goes_on_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_EXIT_TIMEOUT_S", 0.3)
    with pytest.raises(StepFailure, match="did not end within"):
        run({}, {"connect": {}}, {"driver": "exited"})
