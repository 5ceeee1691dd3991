# SPDX-License-Identifier: AGPL-3.0-only
"""Bugs in what crosses the seam, as if the core had come up with it: answers, writes, frames, time.

These fit any core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fila_server.core.broker import Broker
from fila_server.core.clock import NS_PER_S, Now
from fila_server.core.commands import Enqueue
from fila_server.storage.api import Column
from server.tests.simulation.planting import effects_changed, plant, replaced


@plant
def answers_do_not_wait_for_the_disk() -> Iterator[None]:
    def change(commands: Sequence[Any], effects: Any) -> None:
        effects.answers += effects.durable_answers
        effects.durable_answers = []

    with effects_changed(change):
        yield


@plant
def an_answer_is_lost() -> Iterator[None]:
    def change(commands: Sequence[Any], effects: Any) -> None:
        if len(commands) > 2:
            effects.answers = effects.answers[:-1]

    with effects_changed(change):
        yield


@plant
def a_batch_is_cut_short() -> Iterator[None]:
    def change(commands: Sequence[Any], effects: Any) -> None:
        if len(effects.writes) > 6:
            del effects.writes[-1]

    with effects_changed(change):
        yield


def _without(column: Column, *, deletes: bool) -> Callable[[Sequence[Any], Any], None]:
    """Forget the deletes, or the puts, of one column."""

    def change(commands: Sequence[Any], effects: Any) -> None:
        effects.writes[:] = [
            write for write in effects.writes if write[0] != column or (write[2] is None) != deletes
        ]

    return change


@plant
def leases_are_not_stored() -> Iterator[None]:
    with effects_changed(_without(Column.LEASES, deletes=False)):
        yield


@plant
def ended_leases_stay_on_disk() -> Iterator[None]:
    with effects_changed(_without(Column.LEASES, deletes=True)):
        yield


@plant
def acked_messages_stay_on_disk() -> Iterator[None]:
    with effects_changed(_without(Column.MESSAGES, deletes=True)):
        yield


@plant
def attempts_are_not_stored() -> Iterator[None]:
    with effects_changed(_without(Column.RETRIES, deletes=False)):
        yield


@plant
def idempotency_keys_are_not_stored() -> Iterator[None]:
    with effects_changed(_without(Column.IDEMPOTENCY, deletes=False)):
        yield


@plant
def nothing_of_the_scheduler_is_stored() -> Iterator[None]:
    """Buckets, and how far numbers have been used: a restart starts over."""
    with effects_changed(_without(Column.STATE, deletes=False)):
        yield


@plant
def a_frame_goes_to_two_consumers() -> Iterator[None]:
    def change(commands: Sequence[Any], effects: Any) -> None:
        if len(effects.frames) > 1:
            consumer, grant, _ = effects.frames[1]
            effects.frames[1] = (consumer, grant, effects.frames[0][2])

    with effects_changed(change):
        yield


@plant
def a_message_of_a_batch_is_forgotten() -> Iterator[None]:
    handle = Broker.handle

    def forgetful(self: Broker, commands: Sequence[Any], now: Now, **how: Any) -> Any:
        shortened: list[tuple[Any, Any]] = []
        for command in commands:
            if isinstance(command, Enqueue) and len(command.items) > 2:
                shortened.append((command.ticket, command.items[-1]))
                command.items = command.items[:-1]
        effects = handle(self, commands, now, **how)
        for ticket, _ in shortened:
            for asked, results in effects.durable_answers:
                if asked == ticket:
                    results.append(results[-1])
        return effects

    with replaced(Broker, "handle", forgetful):
        yield


@plant
def timers_are_set_too_late() -> Iterator[None]:
    next_wake_ns = Broker.next_wake_ns
    with replaced(Broker, "next_wake_ns", lambda self: next_wake_ns(self) + NS_PER_S):
        yield


@plant
def deadlines_follow_the_wall_clock() -> Iterator[None]:
    handle = Broker.handle

    def confused(self: Broker, commands: Sequence[Any], now: Now, **how: Any) -> Any:
        return handle(self, commands, Now(now.wall_ns, now.wall_ns), **how)

    with replaced(Broker, "handle", confused):
        yield


@plant
def the_broker_never_rests() -> Iterator[None]:
    def change(commands: Sequence[Any], effects: Any) -> None:
        effects.more = True

    with effects_changed(change):
        yield
