# SPDX-License-Identifier: AGPL-3.0-only
"""Runs a script once on made-up input, for `fila hook test`.

This module owns what a dry run reports. It must not know the command line or the broker; the clock
is an argument.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

from fila_server.errors import InvalidScript
from fila_server.hooks.decision import (
    EnqueueDecision,
    FailureDecision,
    enqueue_decision,
    failure_decision,
)
from fila_server.hooks.sandbox import ON_ENQUEUE, ON_FAILURE, Sandbox, failure_arguments
from fila_server.hooks.state import Answer, ScriptFailed
from fila_server.limits import MIB


@dataclass(frozen=True, slots=True)
class HookRun:
    """What one hook did. If `error` is empty the decision stands; None leaves it to the queue.

    `line` is where in the script the error arose, if that is known.
    """

    decision: EnqueueDecision | FailureDecision | None
    elapsed_ns: int
    error: str = ""
    line: int | None = None


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a script did: None for a hook that it does not define.

    `error` and `line` say why the script as a whole cannot be used; then no hook was run.
    """

    on_enqueue: HookRun | None = None
    on_failure: HookRun | None = None
    error: str = ""
    line: int | None = None


def dry_run(
    source: str,
    headers: Mapping[str, str],
    *,
    payload_size: int = 0,
    config: Mapping[str, str] | None = None,
    error: str | None = None,
    attempts: int = 1,
    fairness_key: str = "default",
    throttle_keys: Sequence[str] = (),
    queue: str = "test",
    timeout_ms: int = 10,
    memory_limit_bytes: int = MIB,
    clock_ns: Callable[[], int] = perf_counter_ns,
) -> DryRun:
    """Run every hook that the script defines. Raises nothing but InvalidArgument for the limits."""
    try:
        sandbox = Sandbox(
            source,
            name="hook",
            queue=queue,
            timeout_ms=timeout_ms,
            memory_limit_bytes=memory_limit_bytes,
            config=config or {},
        )
        if not sandbox.defines(ON_ENQUEUE):
            sandbox.require(ON_FAILURE)
    except InvalidScript as invalid:
        cause = invalid.__cause__
        if isinstance(cause, ScriptFailed):
            return DryRun(error=cause.text, line=cause.line)
        return DryRun(error=invalid.message)
    on_enqueue = on_failure = None
    if sandbox.defines(ON_ENQUEUE):
        on_enqueue = _run(
            lambda: sandbox.call(ON_ENQUEUE, (payload_size,), headers), enqueue_decision, clock_ns
        )
    if sandbox.defines(ON_FAILURE):
        fixed = failure_arguments(
            "00000000-0000-0000-0000-000000000000",
            attempts,
            error or "",
            "nack",
            payload_size,
            fairness_key,
            throttle_keys,
        )
        on_failure = _run(
            lambda: sandbox.call(ON_FAILURE, fixed, headers), failure_decision, clock_ns
        )
    return DryRun(on_enqueue, on_failure)


def _run(
    call: Callable[[], Answer],
    decide: Callable[[Answer], EnqueueDecision | FailureDecision | None],
    clock_ns: Callable[[], int],
) -> HookRun:
    started_ns = clock_ns()
    try:
        decision = decide(call())
        # The first call also prepares the way into the script; what a message pays is the second.
        started_ns = clock_ns()
        call()
    except ScriptFailed as failure:
        return HookRun(None, clock_ns() - started_ns, failure.text, failure.line)
    return HookRun(decision, clock_ns() - started_ns)
