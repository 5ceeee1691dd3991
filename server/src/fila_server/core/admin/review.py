# SPDX-License-Identifier: AGPL-3.0-only
"""Looking over all queues every few seconds, so that whoever asks about all of them at once (a
list, a scrape, a dashboard) need not: how old the oldest waiting message of each is, how many are
throttled, and which keys are busy enough to be counted by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fila_server.core.admin.tally import Tally, enqueued_ns
from fila_server.core.clock import NS_PER_S

if TYPE_CHECKING:
    from fila_server.core.schedule.usage import Counted, Owner, U, Usages
    from fila_server.core.state import State

REVIEW_NS = 5 * NS_PER_S
# Keys that are looked at in the time that one lane takes.
_LOOKS = 8


def review(state: State) -> Iterator[int]:
    """Look over all queues and limiters, yielding for each lane."""
    usages = state.usages
    for queue in list(state.queues.values()):
        tally = Tally()
        weight = 0
        for key in list(queue.keys.values()):
            usages.look(queue, key)
            weight += key.weight if key.in_ring else 0
            for lane in list(key.lanes.values()):
                tally.add(lane, state.turn.now.mono_ns)
                yield 1
        yield from _look(usages, queue, list(queue.resting.values()))  # nothing of theirs waits
        queue.active_weight = weight
        queue.throttled = tally.throttled
        queue.oldest_ns = enqueued_ns(queue, tally.oldest, state.turn)
        yield 1
    yield from usages.review()
    throttles = state.throttles
    yield from _look(throttles.counted, throttles, list(throttles.limiters.values()))
    yield from throttles.counted.review()


def _look(usages: Usages[U], owner: Owner[U], keys: Sequence[Counted[U]]) -> Iterator[int]:
    for at, key in enumerate(keys):
        usages.look(owner, key)
        if at % _LOOKS == 0:
            yield 1
