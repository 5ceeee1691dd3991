# SPDX-License-Identifier: AGPL-3.0-only
"""What hooks decide: from a script's flat answer to values that the scheduler can use as they are.

This module brings what a hook returns into its range. It must not know how answers are obtained.
Numbers out of range are brought into it, because the script's intent is clear; keys out of range
are failures, because any other key would be a wrong one.
"""

from typing import Literal, NamedTuple

from fila_server.hooks.state import Answer, ScriptFailed
from fila_server.limits import MAX_RETRY_DELAY_MS, MAX_THROTTLE_COST, MAX_WEIGHT


class EnqueueDecision(NamedTuple):
    """Where a message stands in line; what a hook leaves out has its default.

    The throttle keys are sorted and without duplicates, so equal sets are equal tuples.
    """

    fairness_key: str
    weight: int
    throttle_keys: tuple[str, ...]
    throttle_cost: int


class FailureDecision(NamedTuple):
    """What becomes of a message whose delivery failed. The delay counts for "retry" only."""

    action: Literal["retry", "dlq"]
    delay_ms: int


DEFAULT_DECISION = EnqueueDecision("default", 1, (), 1)
_DEAD_LETTER = FailureDecision("dlq", 0)


def enqueue_decision(answer: Answer) -> EnqueueDecision:
    """Return what (0, key, weight, cost, *throttle keys), or (0, None), stands for.

    Raises ScriptFailed if a key is not UTF-8.
    """
    count = len(answer)
    if count == 2:
        return DEFAULT_DECISION
    _, key, weight, cost, *names = answer
    try:
        fairness_key = "default" if key is None else key.decode()
        if count == 4:
            throttle_keys: tuple[str, ...] = ()
        elif count == 5:
            throttle_keys = (names[0].decode(),)
        else:
            throttle_keys = tuple(sorted(name.decode() for name in names))
    except UnicodeDecodeError:
        raise ScriptFailed("a fairness or throttle key is not valid UTF-8") from None
    return EnqueueDecision(
        fairness_key,
        1 if weight is None else _whole(weight, 1, MAX_WEIGHT),
        throttle_keys,
        1 if cost is None else _whole(cost, 1, MAX_THROTTLE_COST),
    )


def failure_decision(answer: Answer) -> FailureDecision | None:
    """Return what (0, action, delay), or (0, None), stands for; None leaves it to the queue."""
    if answer[1] is None:
        return None
    if answer[1] == b"dlq":
        return _DEAD_LETTER
    delay_ms = 0 if answer[2] is None else _whole(answer[2], 0, MAX_RETRY_DELAY_MS)
    return FailureDecision("retry", delay_ms)


def _whole(value: float, least: int, most: int) -> int:
    """Return the nearest whole number in the range; what is not a number becomes the least."""
    if not value > least:
        return least
    if value >= most:
        return most
    return int(value + 0.5)
