# SPDX-License-Identifier: AGPL-3.0-only
"""How the broker is doing, as far as queues go: what there is of everything, and what is wrong.

What is wrong is said with what to do about it. docs/guides/runbook.md has a section for each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from fila.v1 import admin_pb2 as pb
from fila_server.core.admin.stats import age_ms
from fila_server.core.names import counted
from fila_server.core.schedule.queue import DEAD_LETTER_SUFFIX
from fila_server.limits import MAX_TROUBLES

if TYPE_CHECKING:
    from fila_server.core.schedule.queue import Queue
    from fila_server.core.state import State
    from fila_server.core.turn import Turn

_Make = Callable[["pb.Severity", str, str, str], pb.Trouble]

# A message that waited so long waits longer than most people mean it to.
_OLD_MS = 5 * 60_000
# Leases that run out, as a share of deliveries, before anybody should care.
_EXPIRED_SHARE = 0.05
_EXPIRED_LEAST = 10


def get_status(
    state: State, request: pb.GetStatusRequest, turn: Turn
) -> Generator[int, None, pb.GetStatusResponse]:
    response = pb.GetStatusResponse(
        role="single",
        consumers=len(state.consumers),
        queues=len(state.queues),
        hot_bytes=state.places.hot_bytes,
    )
    troubles: list[pb.Trouble] = []
    for queue in list(state.queues.values()):
        response.messages += queue.total
        if queue.dead_letter_of:
            response.dead_letters += queue.total
        elif len(troubles) < MAX_TROUBLES:
            troubles.extend(_of_queue(state, queue, turn))
        yield 1
    troubles.sort(key=lambda trouble: -trouble.severity)
    response.troubles.extend(troubles[:MAX_TROUBLES])
    return response


def _of_queue(state: State, queue: Queue, turn: Turn) -> Iterator[pb.Trouble]:
    """Yield what is wrong with a queue."""
    name = queue.name

    def trouble(severity: pb.Severity, kind: str, what: str, remedy: str) -> pb.Trouble:
        return pb.Trouble(severity=severity, kind=kind, queue=name, what=what, remedy=remedy)

    if queue.hooks is not None and queue.hooks.stats().circuit_open:
        yield trouble(
            pb.SEVERITY_CRITICAL,
            "hooks_failing",
            f'a hook of "{name}" fails and is left alone: {queue.hooks.stats().last_error}',
            f"repair it (fila hook test), then fila queue update {name}",
        )
    if queue.max_messages and queue.total >= queue.max_messages:
        yield trouble(
            pb.SEVERITY_CRITICAL,
            "full",
            f'"{name}" holds {counted(queue.total, "message")}, its maximum, and refuses more',
            "let consumers catch up, or raise max_messages",
        )
    yield from _waiting(queue, turn, trouble)
    letters = state.queues.get(name + DEAD_LETTER_SUFFIX)
    if letters is not None and letters.total:
        yield trouble(
            pb.SEVERITY_WARNING,
            "dead_letters",
            f'"{name}" has {counted(letters.total, "dead letter")}',
            f"see why (fila peek {letters.name}), repair that, then fila redrive {letters.name}",
        )
    counters = queue.counters
    if counters.expired > max(_EXPIRED_LEAST, _EXPIRED_SHARE * counters.delivered):
        yield trouble(
            pb.SEVERITY_WARNING,
            "leases_expire",
            f'{counters.expired:,} of {counted(counters.delivered, "lease")} of "{name}" ran out',
            "lease fewer at a time, extend leases, or raise visibility_timeout_ms",
        )


def _waiting(queue: Queue, turn: Turn, trouble: _Make) -> Iterator[pb.Trouble]:
    """Yield why a queue's messages wait longer than they should."""
    if not queue.pending:
        return
    name = queue.name
    verb = "waits" if queue.pending == 1 else "wait"
    waits = f'{counted(queue.pending, "message")} of "{name}" {verb}'
    is_served = queue.consumers or queue.pace.per_second(turn.now.mono_ns) > 0
    if queue.paused:
        yield trouble(
            pb.SEVERITY_NOTICE,
            "paused",
            f"{waits}: it is paused",
            f"fila queue resume {name}",
        )
    elif not is_served:
        yield trouble(
            pb.SEVERITY_WARNING,
            "no_consumers",
            f"{waits}, and nobody consumes",
            "start a consumer",
        )
    elif age_ms(queue.oldest_ns, turn) > _OLD_MS:
        minutes = age_ms(queue.oldest_ns, turn) // 60_000
        if queue.throttled * 2 > queue.pending:
            yield trouble(
                pb.SEVERITY_NOTICE,
                "throttled",
                f"{waits}, {queue.throttled:,} of them for a limit; the first for {minutes:,} min",
                f"see which (fila stats {name}); raise it if the provider allows more",
            )
        else:
            yield trouble(
                pb.SEVERITY_WARNING,
                "backlog",
                f"{waits}, the first for {minutes:,} min",
                f"add consumers; fila stats {name} shows whose messages they are",
            )
