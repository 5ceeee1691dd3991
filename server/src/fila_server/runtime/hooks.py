# SPDX-License-Identifier: AGPL-3.0-only
"""Compiles queues' scripts for the core, with the broker's defaults for their limits."""

from __future__ import annotations

from fila.v1.admin_pb2 import HOOK_ERROR_POLICY_REJECT
from fila_server.config import LuaConfig
from fila_server.core.queue import Hooks, Queue
from fila_server.core.state import HookFactory
from fila_server.hooks.hook import QueueHooks


def compile_hooks(defaults: LuaConfig) -> HookFactory:
    """Return what turns a queue's scripts into hooks. It raises InvalidScript."""

    def compile_queue(queue: Queue, config: dict[str, str]) -> Hooks | None:
        settings = queue.config
        if not settings.on_enqueue_script and not settings.on_failure_script:
            return None
        rejects = settings.on_hook_error == HOOK_ERROR_POLICY_REJECT
        return QueueHooks(
            queue.name,
            on_enqueue_script=settings.on_enqueue_script,
            on_failure_script=settings.on_failure_script,
            timeout_ms=settings.hook_timeout_ms or defaults.default_timeout_ms,
            memory_limit_bytes=settings.hook_memory_limit_bytes
            or defaults.default_memory_limit_bytes,
            on_hook_error="reject" if rejects else "default",
            breaker_threshold=defaults.circuit_breaker_threshold,
            breaker_cooldown_ms=defaults.circuit_breaker_cooldown_ms,
            config=config,
        )

    return compile_queue
