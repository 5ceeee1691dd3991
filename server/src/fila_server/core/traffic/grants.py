# SPDX-License-Identifier: AGPL-3.0-only
"""Settling what is left of a whole grant: ack, nack, extension, by the token of its frame.

A frame's messages are under its grant, or under those of extensions, which keep the token. What
such a settlement does to a message is what settling that message alone would do.

A large grant takes several turns. Meanwhile its leases do not run out: whoever settled in time is
not told otherwise because the broker was busy.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from fila.v1.messages_pb2 import FAILURE_CAUSE_NACK
from fila_server.core.clock import NS_PER_MS, NS_PER_S
from fila_server.core.commands import SettleGrants
from fila_server.core.names import shown
from fila_server.core.schedule.message import Grant, Message
from fila_server.core.schedule.queue import by_id
from fila_server.core.traffic import failure, settlement
from fila_server.core.traffic.delivery import store_lease
from fila_server.core.turn import SLICE, Turn
from fila_server.core.wire.answers import Settled
from fila_server.core.wire.records import message_key
from fila_server.errors import FilaError, InvalidArgument, LeaseExpired
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila.v1.service_pb2 import GrantNack, GrantSettlement
    from fila_server.core.schedule.queue import Queue
    from fila_server.core.state import State

# Far longer than the turns that settle one grant take.
_HOLD_NS = 60 * NS_PER_S

# Yields units and returns how many messages were settled.
Work = Generator[int, None, int]


class _Scope:
    """The messages that one item is about."""

    __slots__ = ("count", "excepted", "grants", "queue", "size", "token")

    def __init__(
        self, queue: Queue, token: str, grants: list[Grant], excepted: frozenset[str], count: int
    ) -> None:
        self.queue = queue
        self.token = token
        self.grants = grants
        self.excepted = excepted
        self.count = count  # of the messages, when it began
        self.size = sum([len(grant.messages) for grant in grants])  # to be looked at

    def among(self, messages: list[Message]) -> list[Message]:
        """Return those of a grant's messages that are to be settled and have not been.

        A message that an extension took over meanwhile is still one of them.
        """
        token, excepted = self.token, self.excepted
        return [
            message
            for message in messages
            if message.grant is not None
            and message.grant.token == token
            and (not excepted or message.id not in excepted)
        ]

    def parts(self) -> Iterator[tuple[Grant, list[Message], int]]:
        """Yield each grant's messages, as many at a time as a slice of a turn has room for, and how
        many there are from there on.
        """
        for grant in self.grants:
            messages = grant.messages
            size = len(messages)
            for start in range(0, size, SLICE):
                yield grant, messages[start : start + SLICE], size - start


class _Pace:
    """Units that were done and not told yet. What fits into a slice is done without a pause."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = 0

    def has_room(self, units: int) -> bool:
        return not self.done or self.done + units <= SLICE

    def told(self) -> int:
        done, self.done = self.done, 0
        return done


def settle(state: State, command: SettleGrants, turn: Turn) -> Generator[int, None, None]:
    """Settle grants; answer with one result per item."""
    results: list[Settled | FilaError] = []
    moved: list[Message] = []  # to a dead-letter queue: the answer has to be durable
    pace = _Pace()
    for item in command.items:
        units = 1 + len(item.except_message_ids)
        if not pace.has_room(units):
            yield pace.told()
        pace.done += units
        try:
            scope = _scope(state, item)
            if not pace.has_room(min(scope.size, SLICE)):
                yield pace.told() + units  # which it takes to look again, at what is left then
                scope = _scope(state, item)
            results.append((yield from _settle(state, scope, item, pace, moved, turn)))
        except FilaError as error:
            results.append(error)
    turn.units += pace.done
    answers = turn.effects.durable_answers if moved else turn.effects.answers
    answers.append((command.ticket, results))


def _scope(state: State, item: GrantSettlement) -> _Scope:
    """Look up what an item is about. Raises what it is refused for."""
    queue = state.queue(item.queue)
    token = item.lease_token
    if not token:
        raise InvalidArgument("lease_token must not be empty: it names the grant")
    grants = [grant for grant in state.places.held_under(token) if grant.queue is queue]
    if not grants:
        raise LeaseExpired(f'no message is left of the grant "{shown(token)}"')
    excepted = frozenset(item.except_message_ids)
    count = sum([grant.left for grant in grants])
    for message_id in excepted:
        message = by_id(queue.leases, message_id)
        if message is not None and message.grant is not None and message.grant.token == token:
            count -= 1
    expected = item.expected_messages
    if expected and expected != count:
        raise LeaseExpired(
            f'{count} messages are left of the grant "{shown(token)}", not {expected} as expected'
        )
    return _Scope(queue, token, grants, excepted, count)


def _settle(
    state: State,
    scope: _Scope,
    item: GrantSettlement,
    pace: _Pace,
    moved: list[Message],
    turn: Turn,
) -> Generator[int, None, Settled]:
    action = item.WhichOneof("action")
    expires_ns = 0
    if action == "ack":
        work = _ack(state, scope, pace, turn)
    elif action == "nack":
        work = _nack(state, scope, item.nack, pace, moved, turn)
    elif action == "extend":
        duration_ms = settlement.lasting_ms(scope.queue, item.extend.extend_ms)
        expires_ns = turn.now.wall_ns + duration_ms * NS_PER_MS
        work = _extend(state, scope, duration_ms, pace, turn)
    else:
        raise InvalidArgument("a settlement names one of ack, nack and extend")
    if scope.size <= SLICE and action != "nack":  # which may wait for a hook's time
        return Settled((yield from work), expires_ns)
    for grant in scope.grants:
        state.places.leases.set(grant, max(grant.deadline_ns, turn.now.mono_ns + _HOLD_NS))
    try:
        return Settled((yield from work), expires_ns)
    finally:
        for grant in scope.grants:
            if grant.left:
                state.places.leases.set(grant, grant.deadline_ns)


def _ack(state: State, scope: _Scope, pace: _Pace, turn: Turn) -> Work:
    """Remove processed messages, and a grant's record with the last of them."""
    queue = scope.queue
    total = 0
    for grant, part, ahead in scope.parts():
        if not pace.has_room(len(part)):
            yield pace.told()
            settlement.check_exists(queue)
        pace.done += len(part)
        if grant.left == ahead and not scope.excepted:  # nothing has left it but what came before
            total += _ack_under(state, grant, part, turn)
            continue
        by_grant: dict[Grant, list[Message]] = {}
        for message in scope.among(part):
            by_grant.setdefault(message.grant, []).append(message)  # type: ignore[arg-type]
        for holder, messages in by_grant.items():
            total += _ack_under(state, holder, messages, turn)
    return total


def _ack_under(state: State, grant: Grant, messages: list[Message], turn: Turn) -> int:
    """Ack messages that are under one grant."""
    state.places.unlease_all(grant, messages)
    if not grant.left:
        settlement.retire(state, grant, turn)
    write = turn.write
    column = Column.MESSAGES
    number = grant.queue.number
    for message in messages:
        write((column, message_key(number, message.number), None))
        if message.extra is not None:
            failure.forget_records(state, message, turn)
        message.lane.key.usage.acked += 1
    grant.queue.counters.acked += len(messages)
    return len(messages)


def _nack(
    state: State,
    scope: _Scope,
    nack: GrantNack,
    pace: _Pace,
    moved: list[Message],
    turn: Turn,
) -> Work:
    """Retry, dead-letter or give back messages."""
    queue = scope.queue
    is_pressure = nack.HasField("retry_after_ms")
    if is_pressure:
        settlement.check_pressure(state, nack)
        if nack.throttle_key:
            pace.done += scope.count
            all_of_it = (it for _, part, _ in scope.parts() for it in scope.among(part))
            settlement.rest_key(state, all_of_it, nack.throttle_key, nack.retry_after_ms, turn)
    total = 0
    for _, part, _ in scope.parts():
        if not pace.has_room(len(part)):
            yield pace.told()
            settlement.check_exists(queue)
        pace.done += len(part)
        thinned: dict[Grant, None] = {}
        for message in scope.among(part):
            while queue.hooks is not None and not is_pressure and not turn.has_hook_time:
                yield pace.told()
                settlement.check_exists(queue)
            grant = message.grant
            if grant is None or grant.token != scope.token:
                continue  # somebody else was faster
            units = turn.units
            if is_pressure:
                if settlement.give_back(state, message, nack.retry_after_ms, nack.error, turn):
                    settlement.thin(grant, thinned)
            else:
                settlement.release(state, message, turn)
                cause = FAILURE_CAUSE_NACK
                if failure.fail(state, message, nack.error, cause, turn, nack.dead_letter):
                    moved.append(message)
            queue.counters.nacked += 1
            message.lane.key.usage.nacked += 1
            total += 1
            if turn.units > units:  # a large one was read or moved: a few of them fill a turn
                settlement.store_thinned(thinned, turn)
                yield pace.told()
                settlement.check_exists(queue)
        settlement.store_thinned(thinned, turn)
    return total


def _extend(state: State, scope: _Scope, duration_ms: int, pace: _Pace, turn: Turn) -> Work:
    """Prolong leases. What stays whole keeps its grant, whose record says so once."""
    total = 0
    for grant in scope.grants:
        messages = grant.messages
        if not pace.has_room(len(messages)):
            yield pace.told()
            settlement.check_exists(scope.queue)
        pace.done += len(messages)
        if scope.excepted or grant.left < len(messages):
            messages = [it for it in scope.among(messages) if it.grant is grant]
        if messages and len(messages) == grant.left:
            _prolong(state, grant, duration_ms, turn)
        elif messages:
            settlement.renew(state, messages, duration_ms, turn)
        total += len(messages)
    return total


def _prolong(state: State, grant: Grant, duration_ms: int, turn: Turn) -> None:
    duration_ns = duration_ms * NS_PER_MS
    grant.deadline_ns = turn.now.mono_ns + duration_ns
    grant.expires_ns = turn.now.wall_ns + duration_ns
    grant.duration_ms = duration_ms
    grant.is_prolonged = True
    state.places.prolong(grant)
    store_lease(grant, turn)
