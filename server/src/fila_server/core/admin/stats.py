# SPDX-License-Identifier: AGPL-3.0-only
"""The stats of one queue. They are put together over several turns where it has many keys."""

from __future__ import annotations

from collections.abc import Generator
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING

from fila.v1 import admin_pb2 as pb
from fila_server.core.admin.tally import Tally, enqueued_ns, smallest
from fila_server.core.admin.throttles import row
from fila_server.core.clock import NS_PER_MS
from fila_server.core.schedule.lane import FairnessKey
from fila_server.core.schedule.limiter import Limiter
from fila_server.errors import QueueNotFound
from fila_server.limits import DEFAULT_STATS_KEYS

if TYPE_CHECKING:
    from fila_server.core.schedule.queue import Queue
    from fila_server.core.schedule.usage import Usage
    from fila_server.core.state import State
    from fila_server.core.turn import Turn

_MOST_KEYS = 10_000
_MOST_CONSUMERS = 100
# Places in the round that are counted; beyond, a key's is not told.
_ROUND_LOOKED = 10_000


def get_stats(
    state: State, request: pb.GetStatsRequest, turn: Turn
) -> Generator[int, None, pb.GetStatsResponse]:
    queue = state.queue(request.queue)
    tally = Tally()
    for key in list(queue.keys.values()):
        for lane in list(key.lanes.values()):
            tally.add(lane, turn.now.mono_ns)
            yield 1
    for message in list(queue.leases.values()):
        for name in message.lane.throttle_keys:
            tally.waiting_of.setdefault(name, 0)
        yield 1
    if queue.is_deleted:
        raise QueueNotFound(f'queue "{queue.name}" was deleted')
    response = _totals(queue)
    response.throttled = tally.throttled
    response.oldest_pending_age_ms = age_ms(enqueued_ns(queue, tally.oldest, turn), turn)
    wanted = min(request.max_keys or DEFAULT_STATS_KEYS, _MOST_KEYS)
    places = {key.name: at for at, key in enumerate(islice(queue.ring, _ROUND_LOOKED))}
    keys = list(queue.keys.values())
    for key in (yield from smallest(keys, wanted, lambda key: -key.pending)):
        response.per_key_stats.append(_key_stats(key, tally, places))
        yield 1
    drained = [usage for name, usage in queue.usages.items() if name not in queue.keys]
    drained.sort(key=lambda usage: -usage.delivered)
    for usage in drained[: wanted - len(response.per_key_stats)]:
        weight = state.places.set_weight(queue, usage.key) or 1
        is_paused = usage.key in queue.paused_keys
        response.per_key_stats.add(
            key=usage.key, weight=weight, paused=is_paused, traffic=traffic(usage)
        )
        yield 1
    for consumer in nlargest(_MOST_CONSUMERS, queue.consumers, key=lambda it: it.in_flight):
        response.consumers.add(
            number=consumer.number,
            in_flight=consumer.in_flight,
            credit=max(0, consumer.credit),
            max_batch=consumer.max_batch,
            key_id=consumer.key_id,
        )
    names = list(tally.waiting_of.items())
    busiest = yield from smallest(names, DEFAULT_STATS_KEYS, lambda it: (-it[1], it[0]))
    now = turn.now
    for name, waiting in busiest:
        limiter = state.throttles.limiters.get(name)
        if limiter is None:  # dead letters refer to none
            limiter = Limiter(name)
            limiter.configure(*state.settings.throttle(name), now.mono_ns)
        response.per_throttle_stats.append(row(limiter, waiting, now))
    return response


def _totals(queue: Queue) -> pb.GetStatsResponse:
    response = pb.GetStatsResponse(
        depth=queue.pending,
        in_flight=len(queue.leases),
        active_fairness_keys=len(queue.keys),
        active_consumers=len(queue.consumers),
        quantum=queue.quantum,
        delayed=len(queue.delayed),
        paused=queue.paused,
        counters=queue.counters.told(),
        config=queue.config,
        dead_letter_of=queue.dead_letter_of,
        consumer_credit=sum(max(0, consumer.credit) for consumer in queue.consumers),
        round_key=next(iter(queue.ring)).name if queue.ring else "",
    )
    for cause, histogram in queue.waits.by_cause.items():
        if count := histogram.count:
            response.waits.add(
                cause=cause,
                count=count,
                p50_ms=round(histogram.quantile(0.5)),
                p95_ms=round(histogram.quantile(0.95)),
            )
    if queue.hooks is not None:
        hooks = queue.hooks.stats()
        response.hooks.calls = hooks.calls
        response.hooks.failures = hooks.failures
        response.hooks.bypassed = hooks.bypassed
        response.hooks.circuit_open = hooks.circuit_open
        response.hooks.last_error = hooks.last_error
    return response


def _key_stats(key: FairnessKey, tally: Tally, places: dict[str, int]) -> pb.PerFairnessKeyStats:
    return pb.PerFairnessKeyStats(
        key=key.name,
        pending_count=key.pending,
        current_deficit=key.turn_left,
        weight=key.weight,
        delivered=key.delivered,
        throttled=tally.throttled_of.get(key.name, 0),
        paused=key.is_paused,
        round_position=places.get(key.name),
        traffic=traffic(key.usage) if key.usage is not key.queue.others else None,
    )


def traffic(usage: Usage) -> pb.KeyTraffic:
    """Return what happened with a key that is counted by itself."""
    return pb.KeyTraffic(
        enqueued=usage.enqueued,
        delivered=usage.delivered,
        acked=usage.acked,
        nacked=usage.nacked,
        dead_lettered=usage.dead_lettered,
        retried=usage.retried,
        wait_p50_ms=round(usage.waits.quantile(0.5)),
        wait_p95_ms=round(usage.waits.quantile(0.95)),
    )


def age_ms(since_ns: int, turn: Turn) -> int:
    """Return how long ago a time of the wall clock is; 0 for none."""
    return max(0, turn.now.wall_ns - since_ns) // NS_PER_MS if since_ns else 0
