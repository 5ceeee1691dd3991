# SPDX-License-Identifier: AGPL-3.0-only
"""Runs the steps of one case: driver verbs through the driver, the others by the runner itself.

A step has an outcome (a value or an error), which is compared with what the case expects. The first
step that differs ends the case with a StepFailure that says what was sent and what came back.
"""

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

from fila_conformance.admin import AdminError
from fila_conformance.broker import BrokerError
from fila_conformance.cases import Case, Step
from fila_conformance.driver import Driver, DriverError, Pending, protocol_schema
from fila_conformance.match import differences, shown
from fila_conformance.stage import Stage
from fila_conformance.values import UnknownVariable, resolve

# Beyond every deadline, wait and backoff that a case can name, and still finite.
REPLY_TIMEOUT_S = 45.0
# PROTOCOL.md says 2 s; a busy machine with two cores gets more.
_EXIT_TIMEOUT_S = 10.0
# How often `until_ms` looks again.
_POLL_S = 0.05
# Long enough for anything that is going to arrive; these return as soon as they have it.
_WAIT_MS: Mapping[str, int] = {"next": 15_000, "next_shared": 15_000, "handled": 15_000}

DEFAULTS: Mapping[str, Any] = {
    "client": "a",
    "consumer": "c",
    "worker": "w",
    "queue": "$queue",
    "target": "$target",
    "max": 1,
}


_case_numbers = itertools.count(1)


class StepFailure(Exception):
    """A step did not go as the case says. `number` counts from 1."""

    def __init__(self, number: int, step: Step, what: str, lines: list[str]) -> None:
        self.number = number
        self.step = step
        self.lines = lines
        super().__init__(f"step {number} ({step.verb}): {what}")


class _Mismatch(Exception):
    def __init__(self, what: str, outcome: Any = None) -> None:
        super().__init__(what)
        self.outcome = outcome


def driver_verbs() -> Mapping[str, Any]:
    """The requests of the protocol by their names, as its schema describes them."""
    requests: Mapping[str, Any] = protocol_schema()["$defs"]["requests"]
    return requests


class Interpreter:
    """One case on one driver."""

    def __init__(self, case: Case, stage: Stage, driver: Driver) -> None:
        self._case = case
        self._stage = stage
        self._driver = driver
        self._variables = stage.variables
        self._started: dict[str, Pending] = {}
        self._began: dict[str, float] = {}
        self._clients: list[str] = []
        # Cases may run side by side on one driver, so what they name needs own names.
        self._suffix = f"-{next(_case_numbers)}"
        self._sent: Any = None
        self._runner_verbs: Mapping[str, Callable[[Any], Any]] = {
            "await": self._await,
            "broker": self._broker,
            "check": lambda value: value,
            "consume_first": self._consume_first,
            "driver": self._end_driver,
            "proxy": self._proxy,
            "proxy.stats": self._proxy_stats,
            "wait": lambda given: time.sleep(given["ms"] / 1000),
            "wire": self._wire,
        }

    def run(self) -> None:
        """Runs every step. Raises StepFailure or DriverError."""
        for number, step in enumerate(self._case.steps, start=1):
            self._sent = None
            try:
                self._run_step(step)
            except (_Mismatch, AdminError, UnknownVariable, BrokerError) as error:
                raise self._failure(number, step, error) from error
            except DriverError as error:
                if self._driver.is_alive:
                    raise self._failure(number, step, error) from error
                raise

    def close_clients(self) -> None:
        """Leaves nothing open in the driver. Raises DriverError when it does not answer."""
        pending = [self._driver.send("close", {"client": name}) for name in self._clients]
        for request in pending:
            request.wait(REPLY_TIMEOUT_S)

    def _failure(self, number: int, step: Step, error: Exception) -> StepFailure:
        lines = [] if self._sent is None else [f"sent:     {shown(self._sent)}"]
        if isinstance(error, _Mismatch) and error.outcome is not None:
            lines.append(f"got:      {shown(error.outcome)}")
        if step.has_expect:
            lines.append(f"expected: {shown(step.expect)}")
        if step.error is not None:
            lines.append(f"expected: the error {shown(step.error)}")
        return StepFailure(number, step, str(error), lines)

    def _run_step(self, step: Step) -> None:
        if (name := step.start or step.save) is not None:
            self._began[name] = time.monotonic()
        if step.start is not None:
            self._started[step.start] = self._send(step.verb, step.arguments)
            return
        deadline = time.monotonic() + (step.until_ms or 0) / 1000
        while True:
            try:
                self._attempt(step)
                return
            except _Mismatch:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_POLL_S)

    def _attempt(self, step: Step) -> None:
        began = time.monotonic()
        outcome = self._perform(step.verb, step.arguments)
        took_ms = (time.monotonic() - began) * 1000
        self._judge(step, outcome)
        if step.at_least_ms is not None:
            begin = self._began[step.since] if step.since else began
            since_ms = (time.monotonic() - begin) * 1000
            if since_ms < step.at_least_ms:
                raise _Mismatch(f"took {since_ms:.0f} ms, expected at least {step.at_least_ms}")
        if step.at_most_ms is not None and took_ms > step.at_most_ms:
            raise _Mismatch(f"took {took_ms:.0f} ms, expected at most {step.at_most_ms}")

    def _perform(self, verb: str, arguments: Any) -> Any:
        """The outcome of a verb: `{"ok": value}` or `{"error": {...}}`."""
        if verb in self._runner_verbs:
            given = resolve(arguments, self._variables)
            outcome = self._runner_verbs[verb](given)
            return outcome if verb in _REPLY_VERBS else {"ok": outcome}
        if verb.startswith("admin."):
            given = self._with_queue(verb, resolve(arguments or {}, self._variables))
            assert self._stage.admin is not None
            return {"ok": self._stage.admin.call(verb.removeprefix("admin."), given)}
        return self._reply(self._send(verb, arguments))

    def _judge(self, step: Step, outcome: Mapping[str, Any]) -> None:
        expected = self._resolved_error(step)
        if "error" in outcome:
            if expected is None:
                error = outcome["error"]
                what = f"failed with {error.get('kind')}: {error.get('message')}"
                raise _Mismatch(what, outcome)
            lines = differences(expected, outcome["error"])
        elif expected is not None:
            raise _Mismatch(f"succeeded, expected the error {shown(expected)}", outcome)
        else:
            wanted = resolve(step.expect, self._variables) if step.has_expect else {}
            lines = differences(wanted, outcome["ok"]) if step.has_expect else []
        if lines:
            raise _Mismatch("; ".join(lines), outcome)
        if step.save is not None:
            self._variables[step.save] = outcome.get("ok", outcome.get("error"))

    def _resolved_error(self, step: Step) -> Any:
        if step.error is None:
            return None
        error = resolve(step.error, self._variables)
        return {"kind": error} if isinstance(error, str) else error

    # --- Driver verbs --------------------------------------------------------------------------

    def _send(self, verb: str, arguments: Any) -> Pending:
        fields = self._fields(verb, arguments or {})
        if verb == "connect":
            self._clients.append(fields["client"])
        if verb == "cancel":
            fields["target"] = self._started[fields["target"]].id
        self._sent = {"op": verb, **fields}
        return self._driver.send(verb, fields)

    def _fields(self, verb: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        schema = driver_verbs()[verb]
        fields: dict[str, Any] = {}
        for name in schema["required"]:
            if name in DEFAULTS and name not in arguments:
                fields[name] = resolve(DEFAULTS[name], self._variables)
        if verb in _WAIT_MS:
            fields["wait_ms"] = _WAIT_MS[verb]
        given = resolve(arguments, self._variables)
        if verb == "with_span":
            op = given["then"]["op"]
            inner = {name: value for name, value in given["then"].items() if name != "op"}
            given["then"] = {"op": op, **self._fields(op, inner)}
        if verb == "enqueue_many":
            for message in given["messages"]:
                message.setdefault("queue", self._variables["queue"])
        fields |= given
        for name in ("client", "consumer", "worker"):
            if name in schema["properties"]:
                fields[name] += self._suffix
        return fields

    def _consume_first(self, given: Mapping[str, Any]) -> Any:
        """Opens a consumer and asks it for a message: an SDK may report an error at either."""
        consumed = self._reply(self._send("consume", given))
        if "error" in consumed:
            return consumed
        names = ("consumer",) if "consumer" in given else ()
        return self._reply(self._send("next", {name: given[name] for name in names}))

    def _reply(self, pending: Pending) -> Any:
        wait_s = (self._sent or {}).get("wait_ms", 0) / 1000
        reply = pending.wait(REPLY_TIMEOUT_S + wait_s)
        if "unsupported" in reply:
            raise _Mismatch(f"the driver does not support it: {reply['unsupported']}")
        if "crashed" in reply:
            raise _Mismatch(f"the driver crashed: {reply['crashed']}")
        return reply

    def _await(self, name: str) -> Any:
        return self._reply(self._started[name])

    def _end_driver(self, how: str) -> Any:
        self._clients.clear()
        ends: Mapping[str, Callable[[float], Any]] = {
            "eof": self._driver.end_input,
            "terminate": self._driver.terminate,
            "exited": self._driver.wait,
        }
        return ends[how](_EXIT_TIMEOUT_S)

    # --- Runner verbs --------------------------------------------------------------------------

    def _broker(self, action: str) -> None:
        assert self._stage.broker is not None and self._case.mode == "exclusive", self._case.id
        getattr(self._stage.broker, action)()

    def _proxy(self, given: dict[str, Any]) -> None:
        assert self._stage.proxy is not None, self._case.id
        self._stage.proxy.apply(given.pop("toxic"), given.pop("direction", None), **given)

    def _proxy_stats(self, given: Any) -> dict[str, int]:
        assert self._stage.proxy is not None, self._case.id
        return self._stage.proxy.stats()

    def _wire(self, given: Mapping[str, Any]) -> dict[str, Any]:
        assert self._stage.wiretap is not None, self._case.id
        calls = self._stage.wiretap.calls(given.get("method"))
        return {
            "count": len(calls),
            "concurrent_max": self._stage.wiretap.concurrent_max(given.get("method", "")),
            "methods": [call["method"] for call in calls],
            "connections": len({call["peer"] for call in calls}),
            "calls": calls,
        }

    def _with_queue(self, verb: str, given: dict[str, Any]) -> dict[str, Any]:
        if verb in _ADMIN_VERBS_WITH_QUEUE:
            given.setdefault("queue", self._variables["queue"])
        return given


# Their outcome is a driver's reply.
_REPLY_VERBS = ("await", "consume_first")
_ADMIN_VERBS_WITH_QUEUE = frozenset(
    f"admin.{verb}"
    for verb in (
        *("enqueue", "consume", "receive", "ack", "nack"),
        *("get_stats", "delete_queue", "purge", "pause", "resume", "peek"),
    )
)
