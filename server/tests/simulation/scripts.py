# SPDX-License-Identifier: AGPL-3.0-only
"""Hooks that the simulation can predict: a script's text is the name of what it does.

route    the message's headers name its keys and weight; without a header, the default
refuse   fails, and the enqueue with it
patient  a failed message comes back after 40 ms per attempt, and is dead after three
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fila.v1 import admin_pb2 as pb
from fila_server.errors import HookFailed

ROUTE, REFUSE, PATIENT = "route", "refuse", "patient"


class Routed(NamedTuple):
    """What `route` answers."""

    fairness_key: str
    weight: int
    throttle_keys: tuple[str, ...]
    throttle_cost: int


class Fate(NamedTuple):
    """What `patient` answers."""

    action: str
    delay_ms: int


class Report(NamedTuple):
    """These hooks never fail by surprise."""

    calls: int = 0
    failures: int = 0
    bypassed: int = 0
    circuit_open: bool = False
    last_error: str = ""


def routed(headers: Mapping[str, str]) -> Routed:
    keys = tuple(sorted(filter(None, headers.get("keys", "").split(","))))
    return Routed(headers.get("tenant", "default"), int(headers.get("weight", "1")), keys, 1)


def fate(attempts: int) -> Fate:
    return Fate("dlq", 0) if attempts >= 3 else Fate("retry", 40 * attempts)


class Scripts:
    """The hooks of one queue."""

    spent_ns = 0

    def __init__(self, config: pb.QueueConfig) -> None:
        self._refuses = config.on_enqueue_script == REFUSE
        self.has_on_enqueue = bool(config.on_enqueue_script)
        self.has_on_failure = bool(config.on_failure_script)

    def on_enqueue(self, headers: Mapping[str, str], payload_size: int, now_ns: int) -> Routed:
        if self._refuses:
            raise HookFailed("the hook refuses everything")
        return routed(headers)

    def on_failure(
        self, headers: Mapping[str, str], message_id: str, attempts: int, *_: Any
    ) -> Fate:
        return fate(attempts)

    def set_config(self, key: str, value: str | None) -> None:
        pass

    def stats(self) -> Report:
        return Report()


def compile_scripts(
    queue: str, config: pb.QueueConfig, settings: Mapping[str, str], strict: bool
) -> Scripts | None:
    """The HookFactory of every simulated broker."""
    has_any = config.on_enqueue_script or config.on_failure_script
    return Scripts(config) if has_any else None
