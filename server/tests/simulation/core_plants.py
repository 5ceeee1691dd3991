# SPDX-License-Identifier: AGPL-3.0-only
"""Bugs inside the core, each at a named place. Many of them were real once."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any
from unittest.mock import patch

from fila.v1 import admin_pb2 as pb
from fila_server.core import broker, recovery
from fila_server.core.admin import backlog, settings, tally
from fila_server.core.clock import NS_PER_MS, Now
from fila_server.core.commands import CloseConsumer, FrameTaken
from fila_server.core.schedule import line, ring
from fila_server.core.schedule.consumer import Consumer
from fila_server.core.schedule.deadlines import Deadlines
from fila_server.core.schedule.fifo import Fifo
from fila_server.core.schedule.lane import Lane
from fila_server.core.schedule.limiter import FOREVER, Limiter
from fila_server.core.schedule.line import Lines
from fila_server.core.schedule.places import Places
from fila_server.core.traffic import failure, grants, letters, settlement
from fila_server.core.wire.records_pb2 import Retry
from server.tests.simulation.planting import plant, replaced

# --- Lines and limits -----------------------------------------------------------------------------


@plant
def a_bucket_with_many_tokens_serves_all_tenants_alike() -> Iterator[None]:
    """Whoever waits is woken as far as there is room, a tenant of little weight like any other."""
    look = Lines.look

    def eager(self: Lines, queue: Any, now_ns: int, limit: int) -> None:
        with replaced(line, "_step", lambda lane: FOREVER):  # nobody is beyond the horizon
            look(self, queue, now_ns, limit)

    with replaced(Lines, "look", eager):
        yield


@plant
def a_lane_that_parks_elsewhere_wakes_nobody() -> Iterator[None]:
    """It leaves a due line with a free token, no timer and a waiting consumer, for ever."""

    def settle(self: Lines, left: Any) -> None:
        if not left.waiting and not left.awake and left.limiter.lines.get(left.queue) is left:
            del left.limiter.lines[left.queue]
            left.queue.due_lines.pop(left, None)

    with replaced(Lines, "_settle", settle):
        yield


@plant
def a_queue_that_stepped_back_is_not_asked_again() -> Iterator[None]:
    """Two queues at one limiter: one leaves the token to the other, which may not want it."""
    admit = Lines.admit

    def modest(self: Lines, lane: Lane, now_ns: int) -> bool:
        is_admitted = admit(self, lane, now_ns)
        for stepped_back in self.deferred:
            stepped_back.queue.due_lines.pop(stepped_back, None)
        self.deferred.clear()
        return is_admitted

    with replaced(Lines, "admit", modest):
        yield


@plant
def a_lane_woken_elsewhere_jumps_the_line() -> Iterator[None]:
    """A tenant with an account and a provider takes all of one with the provider alone."""
    tag = line._tag

    def pushy(lane: Lane, at: int, clock: int) -> int:
        return 0 if len(lane.limiters) > 1 else tag(lane, at, clock)

    with replaced(line, "_tag", pushy):
        yield


@plant
def a_lane_that_comes_from_another_line_begins_again() -> Iterator[None]:
    """Whoever waits here and there in turn is behind all that have been served, for ever."""
    park = Lines._park

    def forgetful(self: Lines, lane: Lane, limiter: Limiter) -> Any:
        if lane.goes_on and lane.yielded:
            self._begin(lane)
        return park(self, lane, limiter)

    with replaced(Lines, "_park", forgetful):
        yield


@plant
def shares_of_a_bucket_ignore_weights() -> Iterator[None]:
    with replaced(line, "_step", lambda lane: lane.cost * line._UNIT):
        yield


@plant
def given_back_tokens_had_arrived_again() -> Iterator[None]:
    """After a disconnect the bucket lets a burst through that it has had already."""

    def give_back(self: Limiter, count: int, cost: int, taken_ns: int, now_ns: int) -> None:
        self.passed_count -= count
        if self.interval_ps:
            self.full_ps -= count * self.price_ps(cost)

    with replaced(Limiter, "give_back", give_back):
        yield


@plant
def given_back_tokens_wake_nobody() -> Iterator[None]:
    close_consumer = settlement.close_consumer

    def quiet(*arguments: Any) -> Iterator[int]:
        with replaced(Lines, "freed", lambda self, limiter: None):
            yield sum(close_consumer(*arguments))

    with patch.dict(broker._TRAFFIC, {CloseConsumer: quiet}):
        yield


@plant
def a_timer_is_never_brought_forward() -> Iterator[None]:
    """The head of a line that is cancelled leaves the time that it waited for to the next."""

    def watch(self: Lines, limiter: Limiter, until_ns: int) -> None:
        if until_ns != FOREVER and limiter not in self.throttles.timers:
            self.throttles.timers.set(limiter, until_ns)

    with replaced(Lines, "_watch", watch):
        yield


@plant
def a_counter_goes_negative() -> Iterator[None]:
    """Reading stats meets a number that the contract cannot hold."""
    give_back = Limiter.give_back

    def twice(self: Limiter, count: int, *arguments: Any) -> None:
        give_back(self, count, *arguments)
        self.passed_count -= count

    with replaced(Limiter, "give_back", twice):
        yield


@plant
def one_more_than_the_concurrency_limit() -> Iterator[None]:
    blocked_until = Limiter.blocked_until

    def lax(self: Limiter, cost: int, now_ns: int) -> int:
        self.in_flight -= 1
        until_ns = blocked_until(self, cost, now_ns)
        self.in_flight += 1
        return until_ns

    with replaced(Limiter, "blocked_until", lax):
        yield


@plant
def a_burst_holds_one_more() -> Iterator[None]:
    configure = Limiter.configure

    def roomy(self: Limiter, rate: float, burst: float, *arguments: Any) -> bool:
        return configure(self, rate, burst + 1 if rate else burst, *arguments)

    with replaced(Limiter, "configure", roomy):
        yield


@plant
def backpressure_is_ignored() -> Iterator[None]:
    with replaced(Limiter, "pause", lambda self, until_ns, pause_ms, now_ns, **_: None):
        yield


@plant
def backpressure_lasts_longer_than_allowed() -> Iterator[None]:
    pause = Limiter.pause

    def long(self: Limiter, until_ns: int, pause_ms: int, now_ns: int, **by: bool) -> None:
        pause(self, until_ns + pause_ms * NS_PER_MS, 2 * pause_ms, now_ns, **by)

    with replaced(Limiter, "pause", long):
        yield


@plant
def settings_do_not_reach_those_who_wait() -> Iterator[None]:
    with replaced(settings, "refresh", lambda state, limiter, turn: None):
        yield


@plant
def a_paused_key_takes_part_in_the_round() -> Iterator[None]:
    drop = ring.drop
    with replaced(ring, "drop", lambda key: None if key.ready else drop(key)):
        yield


# --- Turns and lanes ------------------------------------------------------------------------------


@plant
def the_newest_of_a_lane_comes_first() -> Iterator[None]:
    def newest(self: Fifo, lane: Lane, count: int, picked: list[Any]) -> None:
        if self.size < 3 or count > 1:
            take(self, lane, count, picked)
            return
        found = self.discard(max(order for order, _ in self), lane)
        picked.append((lane, found) if isinstance(found, int) else found)

    take = Fifo.take
    with replaced(Fifo, "take", newest):
        yield


@plant
def what_is_given_back_goes_behind_the_backlog() -> Iterator[None]:
    """Messages that a worker gives back unseen lose their place."""

    def return_to_lane(self: Places, message: Any, now_ns: int) -> None:
        lane = message.lane = self.lane_again(message.lane, now_ns)
        message.order += 1 << 40
        self.insert(lane, message.order, message)

    with replaced(Places, "return_to_lane", return_to_lane):
        yield


@plant
def credit_is_forgotten() -> Iterator[None]:
    sent = Consumer.sent

    def lavish(self: Consumer, count: int) -> None:
        self.credit += count
        sent(self, count)

    with replaced(Consumer, "sent", lavish):
        yield


@plant
def a_taken_frame_makes_no_room() -> Iterator[None]:
    with patch.dict(broker._BRIEF, {FrameTaken: lambda state, command, turn: None}):
        yield


@plant
def a_frame_to_one_who_left_counts_an_attempt() -> Iterator[None]:
    close_consumer = settlement.close_consumer

    def deaf(state: Any, command: CloseConsumer, turn: Any) -> Iterator[int]:
        if command.consumer in state.consumers:
            yield from close_consumer(state, command, turn)

    with patch.dict(broker._TRAFFIC, {CloseConsumer: deaf}):
        yield


# --- Grants ---------------------------------------------------------------------------------------


@plant
def a_frame_that_is_acked_whole_gives_no_credit_back() -> Iterator[None]:
    unlease_all = Places.unlease_all

    def mean(self: Places, grant: Any, messages: Any) -> None:
        consumer, grant.consumer = grant.consumer, None
        unlease_all(self, grant, messages)
        grant.consumer = consumer

    with replaced(Places, "unlease_all", mean):
        yield


@plant
def a_token_forgets_extensions() -> Iterator[None]:
    """What was extended alone is not settled with the rest of its frame."""
    with replaced(Places, "note_renewal", lambda self, grant: None):
        yield


@plant
def a_prolonged_grant_is_not_stored() -> Iterator[None]:
    """After a restart its leases end when they would have ended before."""
    with replaced(grants, "store_lease", lambda grant, turn: None):
        yield


@plant
def an_expected_count_is_not_looked_at() -> Iterator[None]:
    scope = grants._scope

    def credulous(state: Any, item: Any) -> Any:
        trusting = type(item).FromString(item.SerializeToString())
        trusting.expected_messages = 0
        return scope(state, trusting)

    with replaced(grants, "_scope", credulous):
        yield


# --- Time and failures ----------------------------------------------------------------------------


@plant
def a_clock_behind_makes_things_last() -> Iterator[None]:
    """After a start with the clock behind, delays, lives and pauses last for years."""

    def left_ns(until_wall_ns: int, meant_ns: int, now: Now) -> int:
        return max(0, until_wall_ns - now.wall_ns)

    with replaced(recovery, "_left_ns", left_ns):
        yield


@plant
def leases_end_too_early() -> Iterator[None]:
    lease = Places.lease

    def hasty(self: Places, grant: Any) -> None:
        grant.deadline_ns -= 5 * NS_PER_MS
        lease(self, grant)

    with replaced(Places, "lease", hasty):
        yield


@plant
def delays_end_too_early() -> Iterator[None]:
    delay = Places.delay

    def hasty(self: Places, message: Any, due_ns: int, due_at_ns: int) -> None:
        delay(self, message, due_ns, due_at_ns - 5 * NS_PER_MS)

    with replaced(Places, "delay", hasty):
        yield


@plant
def one_deadline_in_four_is_lost() -> Iterator[None]:
    pick = Deadlines.set

    def lossy(self: Deadlines[Any], thing: Any, at_ns: int) -> None:
        if at_ns % 4:
            pick(self, thing, at_ns)

    with replaced(Deadlines, "set", lossy):
        yield


@plant
def a_failed_message_outlives_its_time() -> Iterator[None]:
    with replaced(failure, "has_outlived", lambda state, message, turn: False):
        yield


@plant
def one_attempt_more_than_allowed() -> Iterator[None]:
    fail = failure.fail

    def patient(state: Any, message: Any, *arguments: Any) -> Any:
        config = message.lane.key.queue.config
        config.max_attempts += bool(config.max_attempts)
        try:
            return fail(state, message, *arguments)
        finally:
            config.max_attempts -= bool(config.max_attempts)

    with replaced(failure, "fail", patient):
        yield


@plant
def a_restart_fills_every_bucket() -> Iterator[None]:
    """A crash loop gives a burst away each time."""
    with replaced(recovery, "_buckets", lambda state, turn: None):
        yield


# --- Operators ------------------------------------------------------------------------------------


def _endless(state: Any, request: pb.PurgeRequest, turn: Any) -> Generator[int, None, Any]:
    """Purge whatever a queue of that name holds, for as long as it holds something."""
    purged = 0
    state.queue(request.queue)
    while True:
        queue = state.queues.get(request.queue)
        keys = list(queue.keys.values()) if queue is not None else []
        lanes = [
            lane
            for key in keys
            if request.fairness_key in ("", key.name)
            for lane in key.lanes.values()
        ]
        if not lanes:
            return pb.PurgeResponse(purged=purged)
        backlog._drop(state, queue, state.places.pop(lanes[0]), turn)
        purged += 1
        yield 1


@plant
def a_purge_eats_what_comes_later() -> Iterator[None]:
    """Also in a queue that was deleted and made again meanwhile."""
    with patch.dict(broker._CHANGES, {pb.PurgeRequest: _endless}):
        yield


@plant
def a_redrive_keeps_the_attempts() -> Iterator[None]:
    def again(**fields: Any) -> Retry:
        return Retry(attempt_count=2, **fields)

    with replaced(letters, "Retry", again):
        yield


@plant
def stats_call_throttled_what_explain_does_not() -> Iterator[None]:
    def blockers(lane: Lane, now_ns: int) -> list[Limiter]:
        return list(lane.limiters) if lane.is_parked else []

    with replaced(tally, "blockers", blockers):
        yield


@plant
def a_peek_lets_something_happen() -> Iterator[None]:
    peek = broker._READS[pb.PeekRequest]

    def clumsy(state: Any, request: Any, turn: Any) -> Any:
        for queue in state.queues.values():
            queue.paused = False
            state.places.dirty[queue] = None
        return peek(state, request, turn)

    with patch.dict(broker._READS, {pb.PeekRequest: clumsy}):
        yield


@plant
def what_ends_in_a_crowd_is_delivered() -> Iterator[None]:
    """More lives end at once than a turn has room for, and a consumer is given the rest."""
    with replaced(Lane, "has_ended", lambda self, now_ns: False):
        yield


@plant
def a_frame_that_is_cut_keeps_its_tokens() -> Iterator[None]:
    """What does not fit goes back to its lane, and its limiters think that it is leased."""

    def unpick(self: Places, queue: Any, messages: list[Any], now_ns: int) -> None:
        for message in reversed(messages):
            self.return_to_lane(message, now_ns)

    with replaced(Places, "unpick", unpick):
        yield


@plant
def a_line_that_a_turn_had_no_units_for_is_forgotten() -> Iterator[None]:
    """Its lanes were to move to another limiter, and some have not."""
    look = Lines.look

    def hasty(self: Lines, queue: Any, now_ns: int, limit: int) -> None:
        look(self, queue, now_ns, limit)
        if self.units >= limit:
            queue.due_lines.clear()

    with replaced(Lines, "look", hasty):
        yield
