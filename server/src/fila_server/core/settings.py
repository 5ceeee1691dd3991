# SPDX-License-Identifier: AGPL-3.0-only
"""Runtime configuration that acts on the scheduler: what a key means, and what changing it does.

    throttle:<key>:rate      tokens per second; throttle.<key> = "rate,burst" is the same bucket
    throttle:<key>:burst     most tokens in the bucket (default: one second's worth, at least 1)
    concurrency:<key>:limit  most leased messages with that throttle key
    weight:<queue>:<key>     the share of a fairness key; wins over what enqueues say

Where both spellings of a throttle are set, the long one wins, field by field. Any other key is
only for hooks to read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from fila_server.core import parking
from fila_server.core.clock import Now
from fila_server.core.names import shown
from fila_server.core.throttle import Limiter
from fila_server.errors import InvalidArgument

if TYPE_CHECKING:
    from fila_server.core.state import State

MAX_RATE = 1e9
_MIN_RATE = 1e-6  # a token in 12 days; slower is what delays are for
_MAX_LIMIT = 1 << 31
_MAX_WEIGHT = 1000


class Setting(NamedTuple):
    """A configuration key that acts on the scheduler, taken apart."""

    kind: str  # rate, burst, both, limit or weight
    name: str  # the throttle key, or the fairness key
    queue: str = ""


def parse_key(key: str) -> Setting | None:
    """Return what the key sets, or None for a key that only hooks read."""
    if key.startswith("throttle."):
        return Setting("both", key.removeprefix("throttle."))
    if key.startswith("throttle:"):
        name, _, field = key.removeprefix("throttle:").rpartition(":")
        if field in ("rate", "burst"):
            return Setting(field, name)
        raise InvalidArgument(f'"{shown(key)}" must end in ":rate" or ":burst"')
    if key.startswith("concurrency:"):
        name, _, field = key.removeprefix("concurrency:").rpartition(":")
        if field == "limit":
            return Setting("limit", name)
        raise InvalidArgument(f'"{shown(key)}" must end in ":limit"')
    if key.startswith("weight:"):
        queue, _, name = key.removeprefix("weight:").partition(":")
        return Setting("weight", name, queue)
    return None


def check(setting: Setting, key: str, value: str) -> None:
    """Refuse a value that the key cannot have."""
    if not setting.name:
        raise InvalidArgument(f'"{shown(key)}" names no key')
    match setting.kind:
        case "rate":
            _rate(key, value)
        case "burst":
            _burst(key, value)
        case "both":
            rate, comma, burst = value.partition(",")
            _rate(key, rate)
            if comma:
                _burst(key, burst)
        case "limit":
            _whole(key, value, _MAX_LIMIT)
        case "weight":
            _whole(key, value, _MAX_WEIGHT)


def _rate(key: str, text: str) -> float:
    return _number(key, text, "a rate from 1e-6 to 1e9 per second", _MIN_RATE, MAX_RATE)


def _burst(key: str, text: str) -> float:
    return _number(key, text, "a burst from 1 to 1e9", 1.0, MAX_RATE)


def _number(key: str, text: str, what: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise InvalidArgument(f'"{shown(key)}" needs {what}, not "{shown(text)}"')
    return value


def _whole(key: str, text: str, high: int) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(high))
    if not (is_number and 1 <= int(text) <= high):
        raise InvalidArgument(
            f'"{shown(key)}" needs a whole number from 1 to {high}, not "{shown(text)}"'
        )
    return int(text)


# --- Effects --------------------------------------------------------------------------------------


def apply(state: State, setting: Setting, now: Now) -> None:
    """Bring the scheduler in line with the configuration as it is now."""
    if setting.kind == "weight":
        _apply_weight(state, setting)
        return
    name = setting.name
    get = state.config.get
    compact = get(f"throttle.{name}", "").partition(",")
    rate = float(get(f"throttle:{name}:rate") or compact[0] or 0)
    burst = float(get(f"throttle:{name}:burst") or compact[2] or max(1, math.ceil(rate)))
    limit = int(get(f"concurrency:{name}:limit", "0"))
    limiter = state.throttles.limiters.get(name)
    if not rate and not limit:
        if limiter is not None and limiter.paused_until_ns <= now.mono_ns:
            _remove(state, limiter)
            return
        if limiter is None:
            return
    limiter = ensure(state, name)
    if (rate, burst) != (limiter.rate, limiter.burst):
        limiter.set_rate(rate, burst, now.mono_ns)
        state.throttles.touched[limiter] = None
    limiter.limit = limit
    limiter.timer_ns = 0  # the time that its lines wait for has changed
    for queue in parking.mark_due(limiter):
        state.dirty[queue] = None


def _apply_weight(state: State, setting: Setting) -> None:
    queue = state.queues.get(setting.queue)
    if queue is None:
        return
    text = state.config.get(f"weight:{queue.name}:{setting.name}")
    key = queue.keys.get(setting.name)
    if text is None:
        queue.weights.pop(setting.name, None)
    else:
        queue.weights[setting.name] = int(text)
    if key is not None:
        key.weight = queue.weights.get(setting.name, 1)
        key.deficit = min(key.deficit, key.weight * queue.quantum)


def ensure(state: State, name: str) -> Limiter:
    """Return the limiter of a throttle key, making one that counts what is already leased."""
    limiter = state.throttles.limiters.get(name)
    if limiter is None:
        limiter = state.throttles.limiters[name] = Limiter(name)
        for queue in state.queues.values():
            if not queue.dead_letter_of:
                limiter.in_flight += sum(
                    name in message.lane.throttle_keys for message in queue.leases.values()
                )
        _refresh(state, name)
    return limiter


def _remove(state: State, limiter: Limiter) -> None:
    """Lift all limits of a throttle key; whoever waits for it goes on."""
    waiting = [lane for line in limiter.lines.values() for lane in line.lanes]
    for lane in waiting:
        parking.unpark(lane)
    for queue, line in limiter.lines.items():
        queue.due_lines.pop(line, None)
        for key in queue.keys.values():
            for lane in key.ready:
                if lane.parked_on is limiter:
                    parking.leave(lane)
    del state.throttles.limiters[limiter.name]
    _refresh(state, limiter.name)
    for lane in waiting:
        parking.make_ready(lane)
        state.dirty[lane.key.queue] = None


def _refresh(state: State, name: str) -> None:
    """Let the lanes that carry the throttle key know its limiter, or that it is gone."""
    for queue in state.queues.values():
        if queue.dead_letter_of:
            continue
        for key in queue.keys.values():
            for lane in key.lanes.values():
                if name in lane.throttle_keys:
                    lane.limiters = state.throttles.limiters_of(lane.throttle_keys)
