# SPDX-License-Identifier: AGPL-3.0-only
"""Runs the cases of one subject, each to a verdict.

Most cases run one after the other on one driver; after a failure a new one is started. Beside them,
on a second driver, run those that mostly wait: slow ones all at once, and those that disturb their
broker one after the other.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from fila_conformance.admin import AdminError
from fila_conformance.broker import BrokerError
from fila_conformance.cases import Case
from fila_conformance.driver import Driver, DriverError, Launch
from fila_conformance.known import KnownFailure
from fila_conformance.outcome import Outcome, Verdict, judged
from fila_conformance.ports import has_ipv6
from fila_conformance.stage import Brokers, Stage
from fila_conformance.steps import Interpreter, StepFailure

_STDERR_LINES_SHOWN = 12
_BROKER_LINES_SHOWN = 6
_CALLS_SHOWN = 12
# What a launch may say for a driver whose hello does not.
_UNDECLARED_FEATURES = frozenset({"cancel"})

_STAGGER_S = 0.05

Progress = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class Options:
    """How to run."""

    is_strict: bool = False
    is_traced: bool = False


class SubjectRun:
    """All wanted cases on one subject."""

    def __init__(
        self,
        launch: Launch,
        brokers: Brokers,
        known: dict[str, KnownFailure],
        options: Options,
        progress: Progress,
    ) -> None:
        self._launch = launch
        self._brokers = brokers
        self._known = known
        self._options = options
        self._progress = progress
        # What the driver says of itself.
        self.described = "never started"

    def run(self, cases: Sequence[Case]) -> list[Outcome]:
        """One outcome per case, in the order of the cases."""
        outcomes: dict[str, Outcome] = {}
        lane, beside = (_Lane(self._launch, self._brokers, self._options) for _ in range(2))
        disturbing = [case for case in cases if case.mode == "exclusive"]
        groups = [[case] for case in cases if case.is_slow] + [disturbing] * bool(disturbing)
        threads = [
            # Daemons, so that Ctrl-C does not have to wait for the slowest case.
            threading.Thread(target=self._run_all, args=(beside, group, outcomes), daemon=True)
            for group in groups
        ]
        try:
            for thread in threads:
                thread.start()
                # A driver that is still warming up meets one case after the other.
                time.sleep(_STAGGER_S)
            for case in cases:
                if case.is_slow or case.mode == "exclusive":
                    continue
                if self._run(lane, case, outcomes).verdict.is_bad:
                    # What a failed case left under way must not meet the next one.
                    lane.close()
            for thread in threads:
                thread.join()
        finally:
            lane.close()
            beside.close()
        self.described = lane.described or beside.described or self.described
        return [outcomes[case.id] for case in cases]

    def _run_all(self, lane: "_Lane", cases: Sequence[Case], outcomes: dict[str, Outcome]) -> None:
        for case in cases:
            self._run(lane, case, outcomes)

    def _run(self, lane: "_Lane", case: Case, outcomes: dict[str, Outcome]) -> Outcome:
        outcome = judged(lane.run(case), self._known.get(case.id))
        outcomes[case.id] = outcome
        self._progress(outcome)
        return outcome


class _Lane:
    """A driver and the cases that it serves."""

    def __init__(self, launch: Launch, brokers: Brokers, options: Options) -> None:
        self._launch = launch
        self._brokers = brokers
        self._options = options
        self._lock = threading.Lock()
        self._driver: Driver | None = None
        self._features: frozenset[str] = frozenset()
        self.described = ""

    def close(self) -> None:
        if self._driver is not None:
            self._driver.kill()
            self._driver = None

    def run(self, case: Case) -> Outcome:
        began = time.monotonic()
        verdict, text, details = self._attempt(case)
        seconds = time.monotonic() - began
        return Outcome(self._launch.name, case, verdict, seconds, text, details)

    def _attempt(self, case: Case) -> tuple[Verdict, str, list[str]]:
        stage: Stage | None = None
        try:
            with self._lock:
                driver = self._ready_driver()
            if case.feature is not None and case.feature not in self._features:
                return Verdict.NOT_APPLICABLE, f"needs {case.feature}", []
            stage = Stage(case, self._launch.name, self._brokers)
            interpreter = Interpreter(case, stage, driver)
            try:
                interpreter.run()
            except StepFailure as failure:
                details = [*failure.lines, *self._surroundings(stage, driver)]
                return Verdict.FAIL, str(failure), details
            interpreter.close_clients()
            return Verdict.PASS, "", []
        except (DriverError, BrokerError, AdminError, grpc.RpcError, OSError) as error:
            driver_now = self._driver
            details = self._surroundings(stage, driver_now) if driver_now else []
            return Verdict.COULD_NOT_RUN, str(error), details
        finally:
            if stage is not None:
                self._clean_up(stage)

    def _clean_up(self, stage: Stage) -> None:
        try:
            stage.close()
        except (BrokerError, AdminError) as error:
            # The case has its verdict; the next one that needs the broker reports this.
            if self._driver is not None:
                self._driver.stderr.append(f"(runner) clean-up failed: {error}")

    def _ready_driver(self) -> Driver:
        if self._driver is not None and self._driver.is_alive:
            return self._driver
        self.close()
        self._driver = Driver(self._launch, is_strict=self._options.is_strict)
        hello = self._driver.hello()
        self.described = f"{hello['sdk']} {hello['sdk_version']}, {hello['language']}"
        said = frozenset(hello["features"])
        if lost := self._launch.features - _UNDECLARED_FEATURES - said:
            raise DriverError(f"the driver no longer says that it has {', '.join(sorted(lost))}")
        # IPv6 is the machine's to have.
        self._features = said | self._launch.features | ({"ipv6"} if has_ipv6() else set())
        return self._driver

    def _surroundings(self, stage: Stage | None, driver: Driver) -> list[str]:
        """What was going on around a failure."""
        lines = [f"driver stderr: {line}" for line in list(driver.stderr)[-_STDERR_LINES_SHOWN:]]
        if stage is not None and stage.wiretap is not None:
            lines += [
                f"wire: {call['method']} deadline {call['deadline_ms']} ms"
                for call in stage.wiretap.calls(None)[-_CALLS_SHOWN:]
            ]
        if stage is not None and stage.broker is not None:
            log = stage.broker.log_tail(_BROKER_LINES_SHOWN)
            lines += [f"broker log: {line}" for line in log]
        if self._options.is_traced:
            lines += list(driver.trace)
        return lines
