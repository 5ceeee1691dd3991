# SPDX-License-Identifier: AGPL-3.0-only
"""The hooks of one queue, as the core calls them.

This module owns what happens when a hook fails: the circuit breaker, the policy, the counters and
what is logged of it. It must not know Lua, storage or the scheduler. Texts of errors may hold
whatever a script put there with `error(...)`, so they are never logged: they go to whoever asks for
the queue's stats or had a message refused.

Each hook has a breaker of its own. What makes on_failure fail (an error text it did not expect)
says nothing about on_enqueue, and a queue must not lose its limits because its retry rules are
broken.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from types import MappingProxyType
from typing import Literal, NamedTuple

from fila_server.core.schedule.histogram import Histogram
from fila_server.errors import HookFailed
from fila_server.hooks.breaker import Breaker
from fila_server.hooks.decision import (
    EnqueueDecision,
    FailureDecision,
    enqueue_decision,
    failure_decision,
)
from fila_server.hooks.sandbox import ON_ENQUEUE, ON_FAILURE, Sandbox, failure_arguments
from fila_server.hooks.state import HOOKS, Answer, ScriptFailed
from fila_server.limits import MIB

# An error's text goes into stats and answers; a script can make it as long as it likes.
ERROR_CHARS_MAX = 200
# Microseconds. A hook takes a few; lua.max_timeout_ms ends one at 50,000.
DURATION_BOUNDS_US = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)

_NO_CONFIG: Mapping[str, str] = MappingProxyType({})
_log = logging.getLogger(__name__)


class HookStats(NamedTuple):
    """How a queue's hooks are doing, both together. `last_error` is the most recent failure's."""

    calls: int
    failures: int
    bypassed: int
    circuit_open: bool
    last_error: str


class QueueHooks:
    """The on_enqueue and on_failure scripts of one queue; an empty script is no hook.

    Equal scripts share one Lua state, so their functions see the same globals. Raises InvalidScript
    or InvalidArgument. Where it is not `strict`, a script that cannot be loaded is a hook that
    fails at every call until it can.
    """

    def __init__(
        self,
        queue: str,
        *,
        on_enqueue_script: str = "",
        on_failure_script: str = "",
        timeout_ms: int = 10,
        memory_limit_bytes: int = MIB,
        max_key_bytes: int = 256,
        max_throttle_keys: int = 16,
        on_hook_error: Literal["default", "reject"] = "default",
        breaker_threshold: int = 3,
        breaker_cooldown_ms: int = 10_000,
        config: Mapping[str, str] = _NO_CONFIG,
        strict: bool = True,
        clock_ns: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._queue = queue
        self._rejects = on_hook_error == "reject"
        self._cooldown_ms = breaker_cooldown_ms
        self._clock_ns = clock_ns
        self._spent_ns = 0
        self.durations = tuple(Histogram(DURATION_BOUNDS_US) for _ in HOOKS)
        self.activations = 0  # of the circuit breakers
        self._breakers = tuple(Breaker(breaker_threshold, breaker_cooldown_ms) for _ in HOOKS)
        self._calls = self._failures = self._bypassed = 0
        self._last_error = ""
        scripts = (on_enqueue_script, on_failure_script)
        built: dict[str, Sandbox] = {}
        self._hooks: list[Sandbox | None] = [None, None]
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
                    max_key_bytes=max_key_bytes,
                    max_throttle_keys=max_throttle_keys,
                    config=config,
                    strict=strict,
                )
            self._hooks[hook] = built[script]
            if strict:
                built[script].require(hook)
            elif not built[script].defines(hook):
                self._report_unloaded(hook, built[script])
        self._sandboxes = tuple(built.values())

    @property
    def has_on_enqueue(self) -> bool:
        """Return whether messages are to be shown to on_enqueue."""
        return self._hooks[ON_ENQUEUE] is not None

    @property
    def has_on_failure(self) -> bool:
        """Return whether failed deliveries are to be shown to on_failure."""
        return self._hooks[ON_FAILURE] is not None

    @property
    def spent_ns(self) -> int:
        """Return how long the hooks have held the thread, all calls together."""
        return self._spent_ns

    def on_enqueue(
        self, headers: Mapping[str, str], payload_size: int, now_ns: int
    ) -> EnqueueDecision | None:
        """Return the hook's decision, or None where the safe defaults apply.

        Raises HookFailed where there is none and the policy is to refuse the message.
        """
        sandbox = self._hooks[ON_ENQUEUE]
        if sandbox is None:
            return None
        if not self._breakers[ON_ENQUEUE].allows(now_ns):
            self._bypassed += 1
            self._refuse("resting after failures in a row, the last: ")
            return None
        try:
            decision = enqueue_decision(self._call(sandbox, ON_ENQUEUE, (payload_size,), headers))
        except ScriptFailed as failure:
            self._failed(ON_ENQUEUE, failure, now_ns)
            self._refuse("")
            return None
        self._succeeded(ON_ENQUEUE)
        return decision

    def on_failure(
        self,
        headers: Mapping[str, str],
        message_id: str,
        attempts: int,
        error: str,
        reason: Literal["nack", "expired"],
        now_ns: int,
        payload_size: int,
        fairness_key: str,
        throttle_keys: Sequence[str],
    ) -> FailureDecision | None:
        """Return the hook's decision, or None where the queue's own retry settings apply."""
        sandbox = self._hooks[ON_FAILURE]
        if sandbox is None:
            return None
        if not self._breakers[ON_FAILURE].allows(now_ns):
            self._bypassed += 1
            return None
        fixed = failure_arguments(
            message_id, attempts, error, reason, payload_size, fairness_key, throttle_keys
        )
        try:
            decision = failure_decision(self._call(sandbox, ON_FAILURE, fixed, headers))
        except ScriptFailed as failure:
            self._failed(ON_FAILURE, failure, now_ns)
            return None
        self._succeeded(ON_FAILURE)
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

    def _call(
        self,
        sandbox: Sandbox,
        hook: int,
        fixed: tuple[bytes | int, ...],
        headers: Mapping[str, str],
    ) -> Answer:
        started_ns = self._clock_ns()
        try:
            return sandbox.call(hook, fixed, headers)
        finally:
            spent_ns = self._clock_ns() - started_ns
            self._spent_ns += spent_ns
            self.durations[hook].add(spent_ns / 1000)

    def _succeeded(self, hook: int) -> None:
        self._calls += 1
        breaker = self._breakers[hook]
        if breaker.failures_in_a_row and breaker.succeeded():
            _log.info('%s of queue "%s" works again', HOOKS[hook], self._queue)

    def _failed(self, hook: int, failure: ScriptFailed, now_ns: int) -> None:
        self._failures += 1
        self._note(failure)
        breaker = self._breakers[hook]
        if failure.is_scripts_fault and breaker.failed(now_ns):
            self.activations += 1
            _log.warning(
                '%s of queue "%s" failed %d times in a row and is left alone for %d ms, then tried'
                " again; meanwhile %s",
                HOOKS[hook],
                self._queue,
                breaker.failures_in_a_row,
                self._cooldown_ms,
                self._instead(hook),
            )

    def _report_unloaded(self, hook: int, sandbox: Sandbox) -> None:
        failure = sandbox.load_failure or ScriptFailed(f"no function {HOOKS[hook]} is defined")
        self._note(failure)
        _log.error(
            '%s of queue "%s" cannot be loaded%s: it fails until it can, and %s; the queue\'s stats'
            " say why",
            HOOKS[hook],
            self._queue,
            "" if failure.line is None else f" (line {failure.line})",
            self._instead(hook),
        )

    def _note(self, failure: ScriptFailed) -> None:
        self._last_error = str(failure)[:ERROR_CHARS_MAX]

    def _instead(self, hook: int) -> str:
        """Say what becomes of messages for which a hook gives no answer."""
        if hook == ON_FAILURE:
            return "failed deliveries follow the queue's settings"
        if self._rejects:
            return "enqueues are refused (on_hook_error is reject)"
        return "messages go under the default key, with no throttle keys"

    def _refuse(self, why: str) -> None:
        """Raise HookFailed if the policy is to refuse messages without a decision."""
        if self._rejects:
            raise HookFailed(f'on_enqueue of queue "{self._queue}" failed: {why}{self._last_error}')
