# SPDX-License-Identifier: AGPL-3.0-only
"""Stopping deliveries and letting them go on: of a queue, of one fairness key, or of everything
that carries a throttle key.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from fila.v1 import admin_pb2 as pb
from fila_server.core.admin.change import Change
from fila_server.core.clock import NS_PER_MS
from fila_server.core.names import counted
from fila_server.core.schedule import ring
from fila_server.core.traffic.definition import save
from fila_server.core.wire.intake import check_key
from fila_server.errors import InvalidArgument, Overloaded
from fila_server.limits import MAX_DELAY_MS

if TYPE_CHECKING:
    from fila_server.core.schedule.limiter import Limiter
    from fila_server.core.state import State
    from fila_server.core.turn import Turn


_RUNNING = "running"
_PAUSED = "paused"


def pause(state: State, request: pb.PauseRequest, turn: Turn) -> Generator[int, None, Change]:
    _check_target(request)
    if request.throttle_key:
        return _pause_throttle(state, request, turn)
    if request.duration_ms:
        raise InvalidArgument("duration_ms goes with a throttle_key only")
    queue = state.queue(request.queue)
    if not request.fairness_key:
        before = _told(queue.paused)
        queue.pause(turn.now.mono_ns)
        save(queue, turn)
        return Change(pb.PauseResponse(), before, _PAUSED)
    limits = state.config.limits
    check_key("fairness_key", request.fairness_key, limits)
    if len(queue.paused_keys) >= limits.max_paused_keys:
        raise Overloaded(
            f'queue "{queue.name}" has {counted(len(queue.paused_keys), "paused key")}, which is'
            " the limit; pause the queue instead"
        )
    before = _told(request.fairness_key in queue.paused_keys)
    queue.paused_keys.add(request.fairness_key)
    save(queue, turn)
    key = queue.keys.get(request.fairness_key)
    if key is not None:
        state.places.set_paused(key, True, turn.now.mono_ns)
        ring.drop(key)
        for lane in list(key.lanes.values()):
            if lane.line is not None and key.is_paused:
                state.places.lines.release(lane)  # its place in line is for others now
            yield 1
    return Change(pb.PauseResponse(), before, _PAUSED)


def _told(is_paused: bool) -> str:
    return _PAUSED if is_paused else _RUNNING


def _told_of(limiter: Limiter | None, now_ns: int) -> str:
    """Return whether a throttle key lets anything through, and if not, until when."""
    if limiter is None:
        return _RUNNING
    left_ns = limiter.paused_until_ns - now_ns
    if limiter.is_held or left_ns <= 0:
        return _told(limiter.is_held)
    return f"{_PAUSED} for {left_ns // NS_PER_MS} ms"


def _check_target(request: pb.PauseRequest | pb.ResumeRequest) -> None:
    if request.throttle_key and (request.queue or request.fairness_key):
        raise InvalidArgument("a throttle_key is paused in all queues; leave queue and key out")


def _pause_throttle(state: State, request: pb.PauseRequest, turn: Turn) -> Change:
    check_key("throttle_key", request.throttle_key, state.config.limits)
    if request.duration_ms > MAX_DELAY_MS:
        raise InvalidArgument(f"duration_ms {request.duration_ms} exceeds {MAX_DELAY_MS}")
    now_ns = turn.now.mono_ns
    limiter = state.throttles.limiter(request.throttle_key, now_ns)
    before = _told_of(limiter, now_ns)
    if request.duration_ms:
        until_ns = now_ns + request.duration_ms * NS_PER_MS
        limiter.resume()
        limiter.pause(until_ns, request.duration_ms, now_ns, by_operator=True)
    else:
        limiter.hold()
    state.throttles.touched[limiter] = None
    state.throttles.rest(limiter)
    state.places.lines.freed(limiter)  # the time that its lines wait for has changed
    return Change(pb.PauseResponse(), before, _told_of(limiter, now_ns))


def resume(state: State, request: pb.ResumeRequest, turn: Turn) -> Change:
    _check_target(request)
    if request.throttle_key:
        limiter = state.throttles.limiters.get(request.throttle_key)
        before = _told_of(limiter, turn.now.mono_ns)
        if limiter is not None:
            limiter.resume()
            state.throttles.touched[limiter] = None
            state.throttles.rest(limiter)
            state.places.lines.freed(limiter)
        return Change(pb.ResumeResponse(), before, _RUNNING)
    queue = state.queue(request.queue)
    if request.fairness_key:
        before = _told(request.fairness_key in queue.paused_keys)
        queue.paused_keys.discard(request.fairness_key)
        key = queue.keys.get(request.fairness_key)
        if key is not None:
            state.places.set_paused(key, False, turn.now.mono_ns)
            ring.join(key)
    else:
        before = _told(queue.paused)
        queue.resume(turn.now.mono_ns)
    state.places.dirty[queue] = None
    save(queue, turn)
    return Change(pb.ResumeResponse(), before, _RUNNING)
