# SPDX-License-Identifier: AGPL-3.0-only
"""All queues at a glance: rates between two looks, and which of them are in trouble. Pure.

A queue's dead-letter queue is not a row of its own but a number in its parent's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fila import QueueCounters, QueueInfo


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened per second."""

    enqueued: float
    delivered: float
    acked: float
    nacked: float
    dead_lettered: float


@dataclass(frozen=True, slots=True)
class Row:
    """One queue; `rates` is None at the first look, `troubles` has the worst first."""

    info: "QueueInfo"
    dead_letters: int
    rates: Rates | None
    troubles: tuple[str, ...]
    rank: int


def rates(before: "QueueCounters | None", after: "QueueCounters", seconds: float) -> Rates | None:
    """The rates between two looks; None without an earlier one, or when the broker restarted."""
    if before is None or seconds <= 0 or after.delivered < before.delivered:
        return None
    names = ("enqueued", "delivered", "acked", "nacked", "dead_lettered")
    return Rates(*((getattr(after, name) - getattr(before, name)) / seconds for name in names))


def rows(
    before: "Mapping[str, QueueInfo]", after: "Sequence[QueueInfo]", seconds: float
) -> list[Row]:
    """One row per queue, those in trouble first, then by how long their oldest message waits."""
    names = {info.name for info in after}
    letters = {info.dead_letter_of: _held(info) for info in after if info.dead_letter_of}
    found = []
    for info in after:
        if info.dead_letter_of in names:
            continue
        earlier = before.get(info.name)
        pace = rates(earlier.counters if earlier is not None else None, info.counters, seconds)
        dead = max(info.dead_letters, letters.get(info.name, 0))
        troubles = sorted(_troubles(info, dead, pace), reverse=True)
        words = tuple(word for _, word in troubles)
        found.append(Row(info, dead, pace, words, sum(points for points, _ in troubles)))
    found.sort(
        key=lambda it: (-it.rank, -it.info.oldest_pending_age_ms, -it.info.depth, it.info.name)
    )
    return found


def _held(info: "QueueInfo") -> int:
    return info.depth + info.delayed + info.in_flight


def _troubles(info: "QueueInfo", dead: int, pace: Rates | None) -> Iterator[tuple[int, str]]:
    is_idle = pace is None or not pace.delivered
    if info.depth and info.paused:
        yield 8, "paused"
    elif info.depth and not info.active_consumers and is_idle:
        yield 16, "nobody consumes"
    elif info.paused:
        yield 1, "paused"
    if pace is not None and pace.dead_lettered:
        yield 8, "dead letters grow"
    elif dead:
        yield 2, "dead letters"
    if pace is not None and info.depth and pace.enqueued > pace.delivered:
        yield 4, "backlog grows"
    if info.throttled:
        yield 1, "throttled"
