# SPDX-License-Identifier: AGPL-3.0-only
"""Runtime settings as operators change them, put to work at once on what waits."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from fila.v1 import admin_pb2 as pb
from fila_server.core import settings
from fila_server.core.admin.change import Change
from fila_server.core.names import shown
from fila_server.core.schedule import ring
from fila_server.core.wire.records import CONFIG
from fila_server.errors import ConfigNotFound, InvalidArgument, Overloaded
from fila_server.limits import MAX_CHANGES
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.schedule.lane import FairnessKey
    from fila_server.core.schedule.limiter import Limiter
    from fila_server.core.schedule.queue import Queue
    from fila_server.core.settings import Setting
    from fila_server.core.state import State
    from fila_server.core.turn import Turn


def set_config(
    state: State, request: pb.SetConfigRequest, turn: Turn
) -> Generator[int, None, Change]:
    """Set one entry, or several together; an empty value removes one."""
    if request.entries and (request.key or request.value):
        raise InvalidArgument("name either key and value, or entries")
    entries = [(entry.key, entry.value) for entry in request.entries]
    entries = entries or [(request.key, request.value)]
    if len(entries) > MAX_CHANGES:
        raise InvalidArgument(
            f"{len(entries)} entries in one request; up to {MAX_CHANGES} are set together, the rest"
            " in requests of their own"
        )
    for name, value in entries:
        _check(state, name, value)
    added = {name for name, value in entries if value and name not in state.settings.values}
    limit = state.config.limits.max_config_entries
    if len(state.settings.values) + len(added) > limit:
        raise Overloaded(
            f"there are {len(state.settings.values)} runtime settings, the limit is {limit}"
        )
    changes = [(name, value or None) for name, value in entries]
    return (yield from _change(state, changes, turn, pb.SetConfigResponse()))


def _check(state: State, name: str, value: str) -> None:
    limits = state.config.limits
    size = len(name.encode())
    if not 1 <= size <= limits.max_config_key_bytes:
        raise InvalidArgument(
            f'config key "{shown(name)}" has {size} bytes;'
            f" 1 to {limits.max_config_key_bytes} are allowed"
        )
    size = len(value.encode())
    if size > limits.max_config_value_bytes:
        raise InvalidArgument(
            f'the value of "{shown(name)}" has {size} bytes;'
            f" the limit is {limits.max_config_value_bytes}"
        )
    if value:
        settings.check(name, value)
    else:
        settings.parse(name)  # now, not when those before it are set


def delete_config(
    state: State, request: pb.DeleteConfigRequest, turn: Turn
) -> Generator[int, None, Change]:
    if request.key not in state.settings.values:
        raise ConfigNotFound(f'no configuration entry "{shown(request.key)}"')
    return (yield from _change(state, [(request.key, None)], turn, pb.DeleteConfigResponse()))


def _change(
    state: State, changes: list[tuple[str, str | None]], turn: Turn, response: Any
) -> Generator[int, None, Change]:
    """Store what was checked and put it to work."""
    parsed: list[Setting] = []
    before: dict[str, str | None] = {}
    for name, value in changes:
        before.setdefault(name, state.settings.values.get(name))
        setting = state.settings.put(name, value)
        if setting is not None:
            parsed.append(setting)
        if value is None:
            turn.batch.delete(Column.STATE, CONFIG + name.encode())
        else:
            turn.batch.put(Column.STATE, CONFIG + name.encode(), value.encode())
    for setting in parsed:
        if setting.field == "weight":
            yield from _reweigh(state, setting)
        else:
            yield from _relimit(state, setting, turn)
    for queue in list(state.queues.values()):
        if queue.hooks is not None:
            for name, _ in changes:  # as it is now: a later change may have overtaken this one
                queue.hooks.set_config(name, state.settings.values.get(name))
            yield len(changes)
    return Change(response, before, dict(changes))


def _relimit(state: State, setting: Setting, turn: Turn) -> Generator[int, None, None]:
    """Bring the limiters that a setting matches in line with the settings as they are."""
    limiters = state.throttles.limiters
    prefix = setting.prefix
    if prefix is None:
        limiter = limiters.get(setting.key)
        if limiter is not None:
            if not limiter.is_paused:  # whoever sets a limit anew knows better than a consumer did
                limiter.resume()
                state.places.lines.freed(limiter)
                state.throttles.touched[limiter] = None
            refresh(state, limiter, turn)
        return
    for name in list(limiters):
        limiter = limiters.get(name)  # as it is now: it may have been forgotten, and made anew
        if limiter is not None and name.startswith(prefix):
            refresh(state, limiter, turn)
        yield 1


def refresh(state: State, limiter: Limiter, turn: Turn) -> None:
    """Put the settings of one throttle key to work."""
    now_ns = turn.now.mono_ns
    if limiter.configure(*state.settings.throttle(limiter.name), now_ns):
        state.throttles.touched[limiter] = None
        state.places.lines.freed(limiter)
        state.throttles.rest(limiter)


def _reweigh(state: State, setting: Setting) -> Generator[int, None, None]:
    """Bring the fairness keys that a setting matches in line with the settings as they are."""
    queue = state.queues.get(setting.queue)
    if queue is None:
        return
    prefix = setting.prefix
    if prefix is None:
        key = queue.keys.get(setting.key)
        if key is not None:
            _refresh_weight(state, queue, key)
        return
    for key in list(queue.keys.values()):
        if key.name.startswith(prefix):
            _refresh_weight(state, queue, key)
        yield 1


def _refresh_weight(state: State, queue: Queue, key: FairnessKey) -> None:
    weight = state.places.set_weight(queue, key.name) or key.asked_weight or 1
    ring.reweigh(key, weight)


def get_config(state: State, request: pb.GetConfigRequest, turn: Turn) -> pb.GetConfigResponse:
    value = state.settings.values.get(request.key)
    if value is None:
        raise ConfigNotFound(f'no configuration entry "{shown(request.key)}"')
    return pb.GetConfigResponse(value=value)


def list_config(
    state: State, request: pb.ListConfigRequest, turn: Turn
) -> Generator[int, None, pb.ListConfigResponse]:
    values = state.settings.values
    response = pb.ListConfigResponse()
    for name in sorted(name for name in values if name.startswith(request.prefix)):
        if name in values:
            response.entries.add(key=name, value=values[name])
        yield 1
    response.total_count = len(response.entries)
    return response
