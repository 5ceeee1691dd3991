# SPDX-License-Identifier: AGPL-3.0-only
"""Why something waits: the reasons that hold now, how many deliveries come first, and when.

Reads the state and changes nothing. What blocks comes before what only orders: paused, then
limits, then consumers without credit, then the turn. The number of deliveries ahead is what the
scheduler would do if nothing else arrived; the time is that number at the pace seen lately, or
at the rate of the bucket that everybody waits for.
"""

from __future__ import annotations

from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from fila.v1 import admin_pb2 as pb
from fila_server.core.admin.backlog import find_pending
from fila_server.core.clock import NS_PER_S, Now
from fila_server.core.names import counted, shown
from fila_server.core.schedule.lane import FairnessKey, Lane
from fila_server.core.schedule.limiter import FOREVER, Limiter
from fila_server.core.schedule.message import Message
from fila_server.core.schedule.queue import Queue, by_id
from fila_server.core.schedule.why import blockers, has_credit
from fila_server.core.wire import records
from fila_server.core.wire.frames import failures_of
from fila_server.core.wire.records_pb2 import Retry
from fila_server.errors import InvalidArgument, MessageNotFound
from fila_server.limits import MAX_WALL_NS
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.state import State
    from fila_server.core.turn import Turn

# Keys, lanes or delayed messages that one answer looks at; the rest is taken to be like them. So
# the answer takes milliseconds with 100,000 keys too.
_LOOKED = 1000
# Limits that are named beside those that the next delivery waits for.
_HELD_TOLD = 10


class Place(NamedTuple):
    """Where in a lane the next delivery in question stands."""

    lane: Lane
    position: int


def explain(state: State, request: pb.ExplainRequest, turn: Turn) -> pb.ExplainResponse:
    queue = state.queue(request.queue)
    if request.message_id:
        response, lane = _explain_message(state, queue, request.message_id, turn)
        _add_past(response, queue, request.message_id, turn)
    elif request.fairness_key:
        response, lane = _explain_key(queue, request.fairness_key, turn)
    else:
        raise InvalidArgument("name what to explain: a fairness_key or a message_id")
    if lane is not None:
        response.unset_throttle_keys.extend(it.name for it in lane.limiters if not it.is_set)
    return response


def _add_past(response: pb.ExplainResponse, queue: Queue, message_id: str, turn: Turn) -> None:
    """Add what failed before."""
    number = records.id_number(message_id)
    if number is not None:
        past = turn.batch.get(Column.RETRIES, records.message_key(queue.number, number))
        if past is not None:
            response.failures.extend(failures_of(Retry.FromString(past).failures))


# --- One message ----------------------------------------------------------------------------------


def _explain_message(
    state: State, queue: Queue, message_id: str, turn: Turn
) -> tuple[pb.ExplainResponse, Lane | None]:
    now = turn.now
    leased = by_id(queue.leases, message_id)
    if leased is not None:
        return _leased(leased, now), leased.lane
    delayed = by_id(queue.delayed, message_id)
    if delayed is not None:
        return _delayed(delayed, now), delayed.lane
    found = find_pending(state, queue, message_id, turn)
    if found is None:
        raise MessageNotFound(f'no message "{shown(message_id)}" in queue "{queue.name}"')
    lane, order = found
    response = _waiting(queue, Place(lane, lane.before(order)), f"message {message_id}", turn)
    response.state = pb.MESSAGE_STATE_PENDING
    return response, lane


def _leased(message: Message, now: Now) -> pb.ExplainResponse:
    grant = message.grant
    assert grant is not None
    until_ns = now.wall_ns + grant.deadline_ns - now.mono_ns
    response = _answer(message.lane, pb.MESSAGE_STATE_LEASED)
    detail = f"a consumer has it; its lease ends {_when(until_ns, now)}"
    _add(response, pb.WAIT_KIND_LEASED, detail, until_ns=until_ns)
    response.summary = f"message {message.id} does not wait: {detail}"
    return response


def _delayed(message: Message, now: Now) -> pb.ExplainResponse:
    assert message.extra is not None
    due_ns = now.wall_ns + message.extra.due_at_ns - now.mono_ns
    response = _answer(message.lane, pb.MESSAGE_STATE_DELAYED)
    detail = f"delayed until {_when(due_ns, now)}"
    _add(response, pb.WAIT_KIND_DELAYED, detail, until_ns=due_ns)
    _expect(response, due_ns)
    response.summary = f"message {message.id} is {detail}"
    return response


def _answer(lane: Lane, state: pb.MessageState) -> pb.ExplainResponse:
    name = lane.key.name
    key = lane.key.queue.keys.get(name)
    return pb.ExplainResponse(
        fairness_key=name, pending_count=key.pending if key is not None else 0, state=state
    )


# --- One fairness key -----------------------------------------------------------------------------


def _explain_key(queue: Queue, name: str, turn: Turn) -> tuple[pb.ExplainResponse, Lane | None]:
    now = turn.now
    key = queue.keys.get(name)
    if key is not None:
        lane = _first_lane(key, turn)
        response = _waiting(queue, Place(lane, 0), f'key "{shown(name)}"', turn)
        _add_held(response, key, lane, turn)
        return response, lane
    response = pb.ExplainResponse(fairness_key=name)
    looked = list(islice(queue.delayed.values(), _LOOKED))
    turn.units += len(looked)
    times = [it.details().due_at_ns for it in looked if it.lane.key.name == name]
    if not times:
        response.summary = f'nothing of key "{shown(name)}" waits in queue "{queue.name}"'
        return response, None
    due_ns = now.wall_ns + min(times) - now.mono_ns
    detail = f"delayed until {_when(due_ns, now)}"
    _add(response, pb.WAIT_KIND_DELAYED, detail, until_ns=due_ns, count=len(times))
    _expect(response, due_ns)
    response.summary = f'the next message of key "{shown(name)}" is {detail}'
    return response, None


def _first_lane(key: FairnessKey, turn: Turn) -> Lane:
    """Return the lane that the key's next delivery comes from: a free one, else the soonest."""
    now_ns = turn.now.mono_ns
    lanes = list(islice(key.ready or key.lanes.values(), _LOOKED))
    turn.units += len(lanes)
    return min(
        lanes,
        key=lambda lane: max(
            (it.blocked_until(lane.cost, now_ns) for it in lane.limiters), default=0
        ),
    )


def _add_held(response: pb.ExplainResponse, key: FairnessKey, first: Lane, turn: Turn) -> None:
    """Add the limits that hold other messages of a key back than those that are next."""
    now = turn.now
    told = {reason.throttle_key for reason in response.reasons}
    lanes = [lane for lane in islice(key.lanes.values(), _LOOKED) if lane is not first]
    turn.units += len(lanes)
    held: dict[Limiter, int] = {}
    waiting_at: dict[Limiter, Lane] = {}
    for lane in lanes:
        for limiter in blockers(lane, now.mono_ns):
            if limiter.name not in told:
                held[limiter] = held.get(limiter, 0) + len(lane)
                waiting_at.setdefault(limiter, lane)
    for limiter in nlargest(_HELD_TOLD, held, key=held.__getitem__):
        _add_limit(response, limiter, waiting_at[limiter], now, f"for {held[limiter]} others: ")


# --- What holds a pending message back ------------------------------------------------------------


def _waiting(queue: Queue, place: Place, subject: str, turn: Turn) -> pb.ExplainResponse:
    now = turn.now
    lane = place.lane
    response = _answer(lane, pb.MESSAGE_STATE_UNSPECIFIED)
    _add_pauses(response, queue, lane.key)
    for limiter in blockers(lane, now.mono_ns):
        _add_limit(response, limiter, lane, now)
    if not has_credit(queue):
        _add_no_credit(response, queue)
    is_held = bool(response.reasons)
    ahead = response.ahead = _ahead(place, turn)
    if ahead:
        noun = "delivery comes" if ahead == 1 else "deliveries come"
        _add(response, pb.WAIT_KIND_TURN, f"{ahead} {noun} first", count=ahead)
    if queue.hooks is not None and queue.hooks.stats().circuit_open:
        detail = "the queue's hook fails and is bypassed, so messages run under the default key"
        _add(response, pb.WAIT_KIND_HOOK_BYPASSED, detail)
    _estimate(response, queue, lane, is_held, now)
    details = "; ".join(reason.detail for reason in response.reasons)
    if is_held or ahead:
        response.summary = f"{subject} waits: {details}"
    else:
        response.summary = f"{subject} is next{': ' + details if details else ''}"
    return response


def _add_pauses(response: pb.ExplainResponse, queue: Queue, key: FairnessKey) -> None:
    if queue.paused:
        detail = f'queue "{queue.name}" is paused; fila queue resume {queue.name}'
        _add(response, pb.WAIT_KIND_PAUSED, detail)
    if key.is_paused:
        detail = f'key "{shown(key.name)}" is paused in queue "{queue.name}"'
        _add(response, pb.WAIT_KIND_PAUSED, detail)


def _add_limit(
    response: pb.ExplainResponse, limiter: Limiter, lane: Lane, now: Now, whom: str = ""
) -> None:
    name = shown(limiter.name)
    until_ns = limiter.blocked_until(lane.cost, now.mono_ns)
    if not until_ns and lane.line is not None:  # those before it in line are held back
        until_ns = limiter.blocked_until(lane.line.waiting.peekitem(0)[1].cost, now.mono_ns)
    wall_ns = 0 if until_ns == FOREVER else now.wall_ns + until_ns - now.mono_ns
    count = limit = 0
    if limiter.is_held:
        kind = pb.WAIT_KIND_PAUSED
        detail = f'throttle key "{name}" is paused; fila throttle resume {name}'
    elif limiter.paused_until_ns > now.mono_ns and limiter.is_paused:
        kind = pb.WAIT_KIND_PAUSED
        detail = f'throttle key "{name}" is paused until {_when(wall_ns, now)}'
    elif limiter.paused_until_ns > now.mono_ns:
        kind = pb.WAIT_KIND_BACKPRESSURE
        detail = f'throttle key "{name}" is to be left alone until {_when(wall_ns, now)}'
    elif until_ns == FOREVER:
        kind, count, limit = pb.WAIT_KIND_CONCURRENCY, limiter.in_flight, limiter.limit
        verb = "is" if count == 1 else "are"
        detail = f'{count} of {counted(limit, "message")} with throttle key "{name}" {verb} leased'
    else:
        kind, limit = pb.WAIT_KIND_THROTTLED, int(limiter.burst)
        rate = f"{limiter.rate:g} per second"
        detail = f'throttle key "{name}" ({rate}) is used up until {_when(wall_ns, now)}'
    _add(response, kind, whom + detail, limiter.name, wall_ns, count, limit)


def _add_no_credit(response: pb.ExplainResponse, queue: Queue) -> None:
    count = len(queue.consumers)
    if not count:
        detail = f'nobody consumes queue "{queue.name}"'
    elif count == 1:
        detail = "the only consumer has as many messages in flight as it asked for"
    else:
        detail = f"all {count} consumers have as many messages in flight as they asked for"
    _add(response, pb.WAIT_KIND_NO_CREDIT, detail, count=count)


def _add(
    response: pb.ExplainResponse,
    kind: pb.WaitKind,
    detail: str,
    throttle_key: str = "",
    until_ns: int = 0,
    count: int = 0,
    limit: int = 0,
) -> None:
    reason = response.reasons.add(
        kind=kind, detail=detail, throttle_key=throttle_key, count=count, limit=limit
    )
    if until_ns:
        reason.until.FromNanoseconds(min(until_ns, MAX_WALL_NS))


def _expect(response: pb.ExplainResponse, wall_ns: int) -> None:
    response.estimated_at.FromNanoseconds(min(wall_ns, MAX_WALL_NS))


# --- How many come first, and when ----------------------------------------------------------------


def _ahead(place: Place, turn: Turn) -> int:
    """Return the deliveries that come before the one at this place."""
    lane = place.lane
    if lane.is_parked:
        return _ahead_in_line(place, turn)
    key = lane.key
    ring = key.queue.ring
    before = _before_in_key(place, turn)
    quantum = key.queue.quantum
    # The deliveries of the turn in progress, then whole turns.
    left = before + 1 - key.turn_left
    rounds = max(0, -(-left // (key.weight * quantum)))
    if ring and next(iter(ring)) is key and rounds == 0:
        return before
    others = 0
    looked = 0
    is_before = True  # those that stand before it in the ring have one turn more
    for other in islice(ring, _LOOKED):
        looked += 1
        if other is key:
            is_before = False
            continue
        turns = max(rounds, 1) if is_before else max(rounds - 1, 0)
        others += min(other.pending, turns * other.weight * quantum)
    turn.units += looked
    if looked < len(ring):
        others = others * len(ring) // looked
    return before + others


def _before_in_key(place: Place, turn: Turn) -> int:
    """Return the deliveries of the same key that come first: its lanes take turns, one each."""
    before = place.position
    is_before = True
    for lane in islice(place.lane.key.ready, _LOOKED):
        turn.units += 1
        if lane is place.lane:
            is_before = False
        elif not blockers(lane, turn.now.mono_ns):
            before += min(len(lane), place.position + is_before)
    return before


def _ahead_in_line(place: Place, turn: Turn) -> int:
    """Return the deliveries that the limiter lets through first: lanes share it by weight."""
    line = place.lane.line
    before = place.position
    assert line is not None
    turns = place.position // place.lane.key.weight + 1
    is_before = True
    for lane in islice(line.waiting.values(), _LOOKED):
        turn.units += 1
        if lane is place.lane:
            is_before = False
            continue
        before += min(len(lane), (turns if is_before else turns - 1) * lane.key.weight)
    return before


def _estimate(
    response: pb.ExplainResponse, queue: Queue, lane: Lane, is_held: bool, now: Now
) -> None:
    """Set when the delivery is expected, if what holds it back ends at a known time."""
    until_ns = now.wall_ns
    slowest_s = 0.0
    for reason in response.reasons:
        if reason.kind == pb.WAIT_KIND_THROTTLED:
            limiter = next(it for it in lane.limiters if it.name == reason.throttle_key)
            until_ns = max(until_ns, reason.until.ToNanoseconds())
            slowest_s = max(slowest_s, min(lane.cost, limiter.burst) / limiter.rate)
        elif reason.kind == pb.WAIT_KIND_BACKPRESSURE:
            until_ns = max(until_ns, reason.until.ToNanoseconds())
        elif reason.kind in _UNKNOWABLE:
            return
    pace = queue.pace.per_second(now.mono_ns)
    if response.ahead and not slowest_s:
        credit = sum(max(0, consumer.credit) for consumer in queue.consumers)
        if pace:
            slowest_s = 1 / pace
        elif not is_held and response.ahead >= credit:
            return  # nothing was delivered lately, so there is no pace to go by
    _expect(response, until_ns + int(response.ahead * slowest_s * NS_PER_S))


_UNKNOWABLE = frozenset((pb.WAIT_KIND_PAUSED, pb.WAIT_KIND_CONCURRENCY, pb.WAIT_KIND_NO_CREDIT))


def _when(wall_ns: int, now: Now) -> str:
    """Return a time as people read it: how far off. The exact time is in the data."""
    seconds = max(0.0, (wall_ns - now.wall_ns) / NS_PER_S)
    if seconds < 0.05:  # which would be written as 0.0
        return "a moment from now"
    if seconds < 120:
        return f"{seconds:.1f} s from now"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min from now"
    return f"{seconds / 3600:.1f} h from now"
