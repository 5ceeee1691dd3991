# SPDX-License-Identifier: AGPL-3.0-only
"""A failing hook rests for a while, and nobody waits for it."""

import logging
from collections.abc import Callable

import pytest

from fila_server.errors import HookFailed
from fila_server.hooks.breaker import Breaker
from fila_server.hooks.hook import QueueHooks

SECOND_NS = 1_000_000_000
SCRIPT = """
  function on_enqueue(msg)
    if msg.headers.bad then error("bad") end
    return { fairness_key = "hook" }
  end"""
BAD, GOOD = {"bad": "1"}, {"good": "1"}


def test_closed_until_the_threshold() -> None:
    breaker = Breaker(3, 10_000)
    for _ in range(2):
        breaker.failed(0)
    assert breaker.allows(0) and not breaker.is_open
    breaker.failed(0)
    assert not breaker.allows(0) and breaker.is_open


def test_a_success_starts_the_count_again() -> None:
    breaker = Breaker(2, 10_000)
    for _ in range(5):
        breaker.failed(0)
        breaker.succeeded()
    assert breaker.allows(0)


def test_one_trial_after_the_cooldown() -> None:
    breaker = Breaker(1, 10_000)
    breaker.failed(5)
    assert not breaker.allows(5 + 10 * SECOND_NS - 1)
    assert breaker.allows(5 + 10 * SECOND_NS)
    assert breaker.is_open
    breaker.failed(11 * SECOND_NS)
    assert not breaker.allows(20 * SECOND_NS)
    assert breaker.allows(21 * SECOND_NS)
    breaker.succeeded()
    assert breaker.allows(0) and not breaker.is_open


def test_a_queue_bypasses_its_hook_after_three_failures() -> None:
    queue = QueueHooks("orders", on_enqueue_script=SCRIPT)
    for _ in range(3):
        assert queue.on_enqueue(BAD, 0, 0) is None
    assert queue.on_enqueue(GOOD, 0, 9 * SECOND_NS) is None
    assert queue.stats() == (0, 3, 1, True, "line 3: bad")


def test_a_queue_tries_again_after_the_cooldown() -> None:
    queue = QueueHooks("orders", on_enqueue_script=SCRIPT)
    for _ in range(3):
        queue.on_enqueue(BAD, 0, 0)
    assert queue.on_enqueue(BAD, 0, 10 * SECOND_NS) is None
    assert queue.on_enqueue(GOOD, 0, 19 * SECOND_NS) is None
    assert queue.on_enqueue(GOOD, 0, 20 * SECOND_NS) == ("hook", 1, (), 1)
    assert queue.on_enqueue(BAD, 0, 20 * SECOND_NS) is None
    assert queue.on_enqueue(GOOD, 0, 20 * SECOND_NS) == ("hook", 1, (), 1)
    assert queue.stats() == (2, 5, 1, False, "line 3: bad")


def test_threshold_and_cooldown_are_settings() -> None:
    queue = QueueHooks(
        "orders", on_enqueue_script=SCRIPT, breaker_threshold=1, breaker_cooldown_ms=5
    )
    queue.on_enqueue(BAD, 0, 0)
    assert queue.on_enqueue(GOOD, 0, 4_999_999) is None
    assert queue.on_enqueue(GOOD, 0, 5_000_000) is not None


def test_reject_refuses_failed_and_bypassed_messages() -> None:
    queue = QueueHooks("orders", on_enqueue_script=SCRIPT, on_hook_error="reject")
    for _ in range(3):
        with pytest.raises(HookFailed, match='on_enqueue of queue "orders" failed: line 3: bad'):
            queue.on_enqueue(BAD, 0, 0)
    with pytest.raises(HookFailed, match=r'"orders" failed: resting .*: line 3: bad'):
        queue.on_enqueue(GOOD, 0, 0)
    assert queue.stats().bypassed == 1


def test_each_hook_has_its_own_breaker() -> None:
    queue = QueueHooks(
        "orders",
        on_enqueue_script=SCRIPT,
        on_failure_script="function on_failure() error('always') end",
    )
    for _ in range(5):
        assert queue.on_failure(GOOD, "id", 1, "", "nack", 0, 0, "acme", ()) is None
    assert queue.on_enqueue(GOOD, 0, 0) == ("hook", 1, (), 1)
    assert queue.stats() == (1, 3, 2, True, "line 1: always")


def test_a_message_the_hook_never_saw_does_not_count_against_it() -> None:
    queue = QueueHooks("orders", on_enqueue_script=SCRIPT)
    for _ in range(5):
        assert queue.on_enqueue({"x": "\ud800"}, 0, 0) is None
    assert queue.stats() == (0, 5, 0, False, "a header is not valid UTF-8")
    assert queue.on_enqueue(GOOD, 0, 0) is not None


def test_opening_and_closing_is_logged_once_each(
    caplog: pytest.LogCaptureFixture, logged: Callable[[], list[logging.LogRecord]]
) -> None:
    caplog.set_level(logging.INFO)
    queue = QueueHooks("orders", on_enqueue_script=SCRIPT)
    for _ in range(10):
        queue.on_enqueue({"bad": "private"}, 0, 0)
    queue.on_enqueue({"bad": "private"}, 0, 20 * SECOND_NS)  # a trial that fails changes nothing
    (opened,) = logged()
    assert opened.levelno == logging.WARNING
    assert 'on_enqueue of queue "orders" failed 3 times in a row' in opened.getMessage()
    assert "messages go under the default key" in opened.getMessage()
    for _ in range(3):
        queue.on_enqueue(GOOD, 0, 40 * SECOND_NS)
    (_, closed) = logged()
    assert closed.levelno == logging.INFO
    assert closed.getMessage() == 'on_enqueue of queue "orders" works again'
    assert "private" not in caplog.text


def test_a_failure_below_the_threshold_is_not_logged(
    caplog: pytest.LogCaptureFixture, logged: Callable[[], list[logging.LogRecord]]
) -> None:
    caplog.set_level(logging.INFO)
    queue = QueueHooks("orders", on_enqueue_script=SCRIPT)
    for headers in (BAD, BAD, GOOD, BAD, BAD, GOOD):
        queue.on_enqueue(headers, 0, 0)
    assert not logged()


def test_the_time_that_hooks_take_adds_up_failed_calls_included() -> None:
    ticks = iter(range(0, 1000, 7))
    queue = QueueHooks("orders", on_enqueue_script=SCRIPT, clock_ns=lambda: next(ticks))
    assert queue.spent_ns == 0
    queue.on_enqueue(GOOD, 0, 0)
    queue.on_enqueue(BAD, 0, 0)
    assert queue.spent_ns == 14
