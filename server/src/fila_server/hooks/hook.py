# SPDX-License-Identifier: AGPL-3.0-only
"""The hooks of one queue, as the core calls them.

This module owns what happens when a hook fails: the circuit breaker, the policy and the counters.
It must not know Lua, storage or the scheduler. It logs nothing: texts of errors may hold whatever a
script put there with `error(...)`, so they only go to whoever asks for the queue's stats or had a
message refused.

Each hook has a breaker of its own. What makes on_failure fail (an error text it did not expect)
says nothing about on_enqueue, and a queue must not lose its limits because its retry rules are
broken.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from fila_server.errors import HookFailed
from fila_server.hooks.breaker import Breaker
from fila_server.hooks.decision import (
    EnqueueDecision,
    FailureDecision,
    enqueue_decision,
    failure_decision,
)
from fila_server.hooks.sandbox import ON_ENQUEUE, ON_FAILURE, Sandbox, failure_arguments
from fila_server.hooks.state import HOOKS, ScriptFailed

# An error's text goes into stats and answers; a script can make it as long as it likes.
ERROR_CHARS_MAX = 200

_NO_CONFIG: Mapping[str, str] = MappingProxyType({})


class HookStats(NamedTuple):
    """How a queue's hooks are doing, both together. `last_error` is the most recent failure's."""

    calls: int
    failures: int
    bypassed: int
    circuit_open: bool
    last_error: str


class QueueHooks:
    """The on_enqueue and on_failure scripts of one queue; an empty script is no hook.

    Equal scripts share one Lua state, so their functions see the same globals.
    Raises InvalidScript or InvalidArgument.
    """

    def __init__(
        self,
        queue: str,
        *,
        on_enqueue_script: str = "",
        on_failure_script: str = "",
        timeout_ms: int = 10,
        memory_limit_bytes: int = 1024 * 1024,
        on_hook_error: Literal["default", "reject"] = "default",
        breaker_threshold: int = 3,
        breaker_cooldown_ms: int = 10_000,
        config: Mapping[str, str] = _NO_CONFIG,
    ) -> None:
        self._queue = queue
        self._rejects = on_hook_error == "reject"
        scripts = (on_enqueue_script, on_failure_script)
        built: dict[str, Sandbox] = {}
        sandboxes: list[Sandbox | None] = [None, None]
        for hook, script in enumerate(scripts):
            if not script:
                continue
            if script not in built:
                built[script] = Sandbox(
                    script,
                    name=HOOKS[hook],
                    queue=queue,
                    timeout_ms=timeout_ms,
                    memory_limit_bytes=memory_limit_bytes,
                    config=config,
                )
            built[script].require(hook)
            sandboxes[hook] = built[script]
        self._on_enqueue, self._on_failure = sandboxes
        self._sandboxes = tuple(built.values())
        self._breakers = tuple(Breaker(breaker_threshold, breaker_cooldown_ms) for _ in HOOKS)
        self._enqueue_breaker, self._failure_breaker = self._breakers
        self._calls = self._failures = self._bypassed = 0
        self._last_error = ""

    @property
    def has_on_enqueue(self) -> bool:
        """Return whether messages are to be shown to on_enqueue."""
        return self._on_enqueue is not None

    @property
    def has_on_failure(self) -> bool:
        """Return whether failed deliveries are to be shown to on_failure."""
        return self._on_failure is not None

    def on_enqueue(
        self, headers: Mapping[str, str], payload_size: int, now_ns: int
    ) -> EnqueueDecision | None:
        """Return the hook's decision, or None where the safe defaults apply.

        Raises HookFailed where there is none and the policy is to refuse the message.
        """
        sandbox, breaker = self._on_enqueue, self._enqueue_breaker
        if sandbox is None:
            return None
        if not breaker.allows(now_ns):
            self._bypassed += 1
            self._refuse("resting after failures in a row, the last: ")
            return None
        try:
            decision = enqueue_decision(sandbox.call(ON_ENQUEUE, (payload_size,), headers))
        except ScriptFailed as failure:
            self._count(failure, breaker, now_ns)
            self._refuse("")
            return None
        if breaker.failures_in_a_row:
            breaker.succeeded()
        self._calls += 1
        return decision

    def on_failure(
        self,
        headers: Mapping[str, str],
        message_id: str,
        attempts: int,
        error: str,
        reason: Literal["nack", "expired"],
        now_ns: int,
    ) -> FailureDecision | None:
        """Return the hook's decision, or None where the queue's own retry settings apply."""
        sandbox, breaker = self._on_failure, self._failure_breaker
        if sandbox is None:
            return None
        if not breaker.allows(now_ns):
            self._bypassed += 1
            return None
        fixed = failure_arguments(message_id, attempts, error, reason)
        try:
            decision = failure_decision(sandbox.call(ON_FAILURE, fixed, headers))
        except ScriptFailed as failure:
            self._count(failure, breaker, now_ns)
            return None
        if breaker.failures_in_a_row:
            breaker.succeeded()
        self._calls += 1
        return decision

    def set_config(self, key: str, value: str | None) -> None:
        """Change what `fila.get(key)` returns from the next call on; None removes the entry."""
        for sandbox in self._sandboxes:
            sandbox.set_config(key, value)

    def stats(self) -> HookStats:
        """Return the counters of both hooks together, since they were built."""
        return HookStats(
            self._calls,
            self._failures,
            self._bypassed,
            any(breaker.is_open for breaker in self._breakers),
            self._last_error,
        )

    def _count(self, failure: ScriptFailed, breaker: Breaker, now_ns: int) -> None:
        self._failures += 1
        self._last_error = str(failure)[:ERROR_CHARS_MAX]
        if failure.is_scripts_fault:
            breaker.failed(now_ns)

    def _refuse(self, why: str) -> None:
        """Raise HookFailed if the policy is to refuse messages without a decision."""
        if self._rejects:
            raise HookFailed(f'on_enqueue of queue "{self._queue}" failed: {why}{self._last_error}')
