# SPDX-License-Identifier: AGPL-3.0-only
"""Compiles queues' scripts for the core."""

from __future__ import annotations

from fila_server.config import Config
from fila_server.core.queue import Hooks, Queue
from fila_server.core.state import HookFactory


def compile_hooks(config: Config) -> HookFactory:
    """Return what turns a queue's scripts into hooks, with the broker's defaults for limits."""

    def compile_queue(queue: Queue, settings: dict[str, str]) -> Hooks | None:
        return None

    return compile_queue
