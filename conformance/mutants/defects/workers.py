# SPDX-License-Identifier: AGPL-3.0-only
"""Defects of workers."""

import dataclasses
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from defects.change import replace
from fila import (
    _outcomes,
    _reader,
    errors,
    worker,
)


def _outcome(kind: type[BaseException], change: Callable[[Any, Any], Any]) -> None:
    """Changes what becomes of a handler's error of this kind."""

    def changed(original: Any) -> Any:
        def outcome_of(error: Any) -> Any:
            outcome = original(error)
            return change(outcome, error) if isinstance(error, kind) else outcome

        return outcome_of

    replace(worker, "outcome_of", changed)


def outcomes_are_kept_quiet() -> None:
    def change(original: Any) -> Any:
        return lambda self, entries, is_ack: [None] * len(entries)

    replace(worker.Worker, "_send", change)


def failures_are_acked() -> None:
    _outcome(Exception, lambda outcome, error: worker.ACKED)


def failures_without_a_text() -> None:
    _outcome(Exception, lambda outcome, error: dataclasses.replace(outcome, text=""))


def _failed(outcome: Any, error: Any) -> Any:
    return worker.Outcome("nacked", error, str(error))


def backpressure_is_a_failure() -> None:
    _outcome(worker.Backpressure, _failed)


def backpressure_without_its_key() -> None:
    def change(outcome: Any, error: Any) -> Any:
        return dataclasses.replace(outcome, throttle_key=None)

    _outcome(worker.Backpressure, change)


def dead_letter_is_a_failure() -> None:
    _outcome(worker.DeadLetter, _failed)


def _handling(ends_at: Callable[[Any], float]) -> None:
    def change(original: Any) -> Any:
        def create(self: Any, *given: Any) -> None:
            original(self, *given)
            self.ends_at = ends_at(self)

        return create

    replace(worker.Handling, "__init__", change)


def handlers_take_for_ever() -> None:
    _handling(lambda handling: math.inf)


def handlers_time_out_at_once() -> None:
    _handling(lambda handling: handling.since)


def slow_handlers_are_replaced() -> None:
    def change(original: Any) -> Any:
        def tell(self: Any, kind: str, *given: Any) -> None:
            original(self, kind, *given)
            if kind == "timed_out":
                threading.Thread(target=self._work, daemon=True).start()

        return tell

    replace(worker.Worker, "_tell", change)


def settled_twice() -> None:
    replace(_outcomes, "is_settled", lambda original: lambda message: False)


def settlement_ends_the_worker() -> None:
    def change(original: Any) -> Any:
        def settled(self: Any, handling: Any, outcome: Any, message: Any, error: Any) -> None:
            if error is not None:
                self.stop()
            original(self, handling, outcome, message, error)

        return settled

    replace(worker.Worker, "_settled", change)


def one_handler_at_a_time() -> None:
    lock = threading.Lock()

    def change(original: Any) -> Any:
        def handle(self: Any, handling: Any) -> None:
            with lock:
                original(self, handling)

        return handle

    replace(worker.Worker, "_handle", change)


def one_handler_too_many() -> None:
    def change(original: Any) -> Any:
        def watch(self: Any) -> None:
            threading.Thread(target=self._work, daemon=True).start()
            original(self)

        return watch

    replace(worker.Worker, "_watch", change)


def prefetch_of_a_thousand() -> None:
    replace(worker.Options, "in_flight", lambda original: property(lambda self: 1000))


def worker_of_the_queues_timeout() -> None:
    def change(original: Any) -> Any:
        return lambda self: original(dataclasses.replace(self, visibility_timeout_ms=None))

    replace(worker.Options, "request", change)


def batches_linger() -> None:
    def change(original: Any) -> Any:
        def is_ready(self: Any) -> bool:
            while not original(self) and not self.is_closed:
                time.sleep(0.05)
            return True

        return is_ready

    replace(_reader.Reader, "is_ready", change)


def outcome_is_the_firsts() -> None:
    def change(original: Any) -> Any:
        def split(batch: Any) -> Any:
            acks, nacks = original(batch)
            others = [entry for entry in nacks if entry[2] is not entry[0].messages[0]]
            acks += [(handling, worker.ACKED, message) for handling, _, message in others]
            return acks, [entry for entry in nacks if entry not in others]

        return split

    replace(worker, "split", change)


def handled_messages_are_not_kept() -> None:
    def change(original: Any) -> Any:
        def taken(reader: Any) -> Any:
            found = original(reader)
            if found is not None:
                found[0].handling.pop(found[1].id)
            return found

        return taken

    replace(worker, "taken", change)


def acked_before_it_is_handled() -> None:
    def change(original: Any) -> Any:
        def handle(self: Any, handling: Any) -> None:
            for each in handling.messages:
                each.ack()
            original(self, handling)

        return handle

    replace(worker.Worker, "_handle", change)


def stop_has_no_grace() -> None:
    replace(worker.Common, "_shorten", lambda original: lambda self, grace: original(self, 0))


def grace_has_no_end() -> None:
    replace(worker.Common, "_shorten", lambda original: lambda self, grace: original(self, 3600))


def cut_off_is_a_failure() -> None:
    replace(worker, "GIVEN_BACK", lambda original: worker.Outcome("nacked", text="stopped"))


def worker_swallows_its_error() -> None:
    def change(original: Any) -> Any:
        def run(self: Any, **named: Any) -> None:
            with suppress(errors.FilaError):
                original(self, **named)

        return run

    replace(worker.Worker, "run", change)


def worker_stops_late() -> None:
    def change(original: Any) -> Any:
        def run(self: Any, **named: Any) -> None:
            original(self, **named)
            time.sleep(13)

        return run

    replace(worker.Worker, "run", change)


def worker_fails_with_its_client() -> None:
    def change(original: Any) -> Any:
        def run(self: Any, **named: Any) -> None:
            original(self, **named)
            self._connection.check_open()

        return run

    replace(worker.Worker, "run", change)


def worker_fails_before_its_handlers_end() -> None:
    def change(original: Any) -> Any:
        def work(self: Any) -> None:
            original(self)
            if self._failure is not None:
                self._shorten(0)
                self._news.put("stop")

        return work

    replace(worker.Worker, "_work", change)
