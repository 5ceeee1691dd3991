# SPDX-License-Identifier: AGPL-3.0-only
"""Compiles queues' scripts for the core, with the broker's defaults and within its limits.

This module owns how a queue's settings and the broker's meet. A queue may lower the time that its
hooks have, but never raise it above the broker's: hooks run on the one busy thread.
"""

import logging
from collections.abc import Callable, Mapping

from fila.v1.admin_pb2 import HOOK_ERROR_POLICY_REJECT, QueueConfig
from fila_server.config import LimitsConfig, LuaConfig
from fila_server.errors import InvalidArgument
from fila_server.hooks.hook import QueueHooks
from fila_server.limits import MAX_HOOK_MEMORY_BYTES, MIN_HOOK_MEMORY_BYTES

# A queue's name and settings, the runtime configuration that hooks may read, and whether to raise.
HookFactory = Callable[[str, QueueConfig, Mapping[str, str], bool], QueueHooks | None]

_log = logging.getLogger(__name__)
_DEFAULT_LIMITS = LimitsConfig()


def compile_hooks(lua: LuaConfig, limits: LimitsConfig = _DEFAULT_LIMITS) -> HookFactory:
    """Return what turns a queue's scripts into hooks.

    Where it is `strict` it raises InvalidScript for a script that cannot be loaded and
    InvalidArgument for limits that are out of range. Where it is not, at a start, such a script is
    a hook that fails, such limits are brought into range, and a log record says so.
    """

    def compile_queue(
        name: str, config: QueueConfig, settings: Mapping[str, str], strict: bool
    ) -> QueueHooks | None:
        timeout_ms = config.hook_timeout_ms or lua.default_timeout_ms
        memory_bytes = config.hook_memory_limit_bytes or lua.default_memory_limit_bytes
        if strict:
            _check(timeout_ms, memory_bytes, lua)
        if not config.on_enqueue_script and not config.on_failure_script:
            return None
        if timeout_ms > lua.max_timeout_ms:
            _log.warning(
                'hooks of queue "%s" have %d ms, as lua.max_timeout_ms says, not %d',
                name,
                lua.max_timeout_ms,
                timeout_ms,
            )
        return QueueHooks(
            name,
            on_enqueue_script=config.on_enqueue_script,
            on_failure_script=config.on_failure_script,
            timeout_ms=min(timeout_ms, lua.max_timeout_ms),
            memory_limit_bytes=min(max(memory_bytes, MIN_HOOK_MEMORY_BYTES), MAX_HOOK_MEMORY_BYTES),
            max_key_bytes=limits.max_fairness_key_bytes,
            max_throttle_keys=limits.max_throttle_keys,
            on_hook_error=(
                "reject" if config.on_hook_error == HOOK_ERROR_POLICY_REJECT else "default"
            ),
            breaker_threshold=lua.circuit_breaker_threshold,
            breaker_cooldown_ms=lua.circuit_breaker_cooldown_ms,
            config=settings,
            strict=strict,
        )

    return compile_queue


def _check(timeout_ms: int, memory_bytes: int, lua: LuaConfig) -> None:
    if timeout_ms > lua.max_timeout_ms:
        raise InvalidArgument(
            f"hook_timeout_ms {timeout_ms} is above {lua.max_timeout_ms}, which this broker's"
            " lua.max_timeout_ms allows"
        )
    if not MIN_HOOK_MEMORY_BYTES <= memory_bytes <= MAX_HOOK_MEMORY_BYTES:
        raise InvalidArgument(
            f"hook_memory_limit_bytes {memory_bytes} is not between {MIN_HOOK_MEMORY_BYTES} and"
            f" {MAX_HOOK_MEMORY_BYTES}"
        )
