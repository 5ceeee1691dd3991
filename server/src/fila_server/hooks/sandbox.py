# SPDX-License-Identifier: AGPL-3.0-only
"""Calls the hooks of one script and replaces its Lua state when the script has spoiled it.

This module owns what may go into a call and when a state is thrown away. It must not know breakers,
policies or what answers mean. `state.py` says what has to hold for a call to be safe.
"""

from collections.abc import Iterable, Mapping

from fila_server.errors import InvalidArgument, InvalidScript
from fila_server.hooks.state import (
    HOOKS,
    RESERVE_BYTES,
    STRING_OVERHEAD_BYTES,
    Answer,
    LuaError,
    LuaState,
    Script,
    ScriptFailed,
)
from fila_server.limits import (
    MAX_HOOK_MEMORY_BYTES,
    MAX_HOOK_TIMEOUT_MS,
    MAX_SCRIPT_BYTES,
    MIB,
    MIN_HOOK_MEMORY_BYTES,
)

ON_ENQUEUE, ON_FAILURE = range(len(HOOKS))

# Names, values and overhead of the headers of one message. The server lets in 64 KiB by default and
# 1 MiB at most, so this only guards the process.
HEADERS_BYTES_MAX = 4 * 1024 * 1024
# More than this does not fit the reserve with certainty and gets room of its own.
ARGUMENTS_BYTES_MAX = RESERVE_BYTES // 2
# What a script sees of a nack's text; the server keeps as much by default.
NACK_BYTES_MAX = 4096
# Header counts that get an entry point of their own.
ENTRY_HEADERS_MAX = 16

# A script with none of these words cannot reach `fila`, so it needs no mirror of the configuration.
_WAYS_TO_FILA = ("fila", "_G", "_ENV")


class Sandbox:
    """Runs the hooks that one script defines, every call within the limits.

    Raises InvalidScript if the script does not compile or fails while it is loaded, InvalidArgument
    if a limit makes no sense. Where it is not `strict`, a script that cannot be loaded fails every
    call, and each call tries to load it again: what it read from the configuration may change.
    """

    def __init__(
        self,
        source: str,
        *,
        name: str,
        queue: str = "",
        timeout_ms: int = 10,
        memory_limit_bytes: int = MIB,
        max_key_bytes: int = 256,
        max_throttle_keys: int = 16,
        config: Mapping[str, str],
        strict: bool = True,
    ) -> None:
        if not 1 <= timeout_ms <= MAX_HOOK_TIMEOUT_MS:
            raise InvalidArgument(
                f"hook timeout of {timeout_ms} ms is not in 1..{MAX_HOOK_TIMEOUT_MS}"
            )
        if not MIN_HOOK_MEMORY_BYTES <= memory_limit_bytes <= MAX_HOOK_MEMORY_BYTES:
            raise InvalidArgument(
                f"hook memory limit of {memory_limit_bytes} bytes is not in "
                f"{MIN_HOOK_MEMORY_BYTES}..{MAX_HOOK_MEMORY_BYTES}"
            )
        self._script = Script(
            _encoded(source, name),
            name,
            queue,
            timeout_ms,
            memory_limit_bytes,
            max_key_bytes,
            max_throttle_keys,
        )
        can_reach_fila = any(word in source for word in _WAYS_TO_FILA)
        self._config: dict[str, str] | None = dict(config) if can_reach_fila else None
        # None while there is no state: it could not be built, or the script has spoiled it.
        self._state: LuaState | None = None
        self.load_failure: ScriptFailed | None = None
        try:
            self._state = self._load()
        except ScriptFailed as failure:
            if strict:
                raise self._invalid(failure) from failure
            self.load_failure = failure

    def defines(self, hook: int) -> bool:
        """Return whether the script has been loaded and defines the function."""
        return self._state is not None and self._state.types[hook] == b"function"

    def require(self, hook: int) -> None:
        """Raise InvalidScript unless the script defines the function."""
        assert self._state is not None
        try:
            self._state.require(hook)
        except ScriptFailed as failure:
            raise self._invalid(failure) from failure

    def _load(self) -> LuaState:
        if len(self._script.source) > MAX_SCRIPT_BYTES:
            raise ScriptFailed(f"longer than {MAX_SCRIPT_BYTES} bytes")
        return LuaState(self._script, self._config or {})

    def _invalid(self, failure: ScriptFailed) -> InvalidScript:
        return InvalidScript(f"{self._script.name} script: {failure}")

    def call(self, hook: int, fixed: tuple[bytes | int, ...], headers: Mapping[str, str]) -> Answer:
        """Return the hook's answer: 0, then what sandbox.lua says for this hook.

        `fixed` is what the entry point takes before the headers, a few KiB at most. Raises
        ScriptFailed.
        """
        flat: list[bytes] = []
        try:
            for name, value in headers.items():
                flat.append(name.encode())
                flat.append(value.encode())
        except UnicodeEncodeError:
            raise ScriptFailed("a header is not valid UTF-8", is_scripts_fault=False) from None
        size = len(b"".join(flat))
        if hook == ON_FAILURE:
            size += len(fixed[-1])  # type: ignore[arg-type]  # the throttle keys
        count = len(headers)
        if size > ARGUMENTS_BYTES_MAX or count > ENTRY_HEADERS_MAX or self._state is None:
            return self._call_with_care(hook, fixed, flat, size)
        state = self._state
        entry = state.entries[hook].get(count) or state.entry(hook, count)
        try:
            answer = entry(*fixed, *flat)
        except LuaError as error:
            raise self._escaped(state, error) from None
        if state.used(True) > state.soft_bytes:
            self._settle(state)
        if answer[0]:
            raise state.failure(answer[1])
        return answer

    def set_config(self, key: str, value: str | None) -> None:
        """Change what `fila.get(key)` returns; None removes it. Costs the script no memory."""
        config, state = self._config, self._state
        if config is None:
            return
        old = config.pop(key, None)
        if value is not None:
            config[key] = value
        if state is None:
            return
        state.configure(key, old, value, len(config))
        if state.used(True) > state.soft_bytes and state.is_full():
            self._state = None

    def _call_with_care(
        self, hook: int, fixed: tuple[bytes | int, ...], flat: list[bytes], size: int
    ) -> Answer:
        """Do what `call` does for many or large headers, or when there is no state."""
        cost = size + len(flat) * STRING_OVERHEAD_BYTES
        if cost > HEADERS_BYTES_MAX:
            raise ScriptFailed("the headers are too large for a hook", is_scripts_fault=False)
        state = self._state
        if state is None:
            state = self._state = self._load()
        count = len(flat) // 2
        entry = state.entry(hook, count if count <= ENTRY_HEADERS_MAX else -1)
        try:
            answer = state.call_with_room(entry, (*fixed, *flat), cost)
        except LuaError as error:
            raise self._escaped(state, error) from None
        if state.used(True) > state.soft_bytes:
            self._settle(state)
        if answer[0]:
            raise state.failure(answer[1])
        return answer

    def _escaped(self, state: LuaState, error: Exception) -> ScriptFailed:
        failure = state.escaped(error)
        if state.used(True) > state.soft_bytes and state.is_full():
            self._state = None
        return failure

    def _settle(self, state: LuaState) -> None:
        """Memory is over the limit after a call: collect garbage, or give the state up."""
        if state.is_full():
            self._state = None
            raise ScriptFailed("memory limit exceeded: the script keeps too much between calls")


def failure_arguments(
    message_id: str,
    attempts: int,
    error: str,
    reason: str,
    payload_size: int,
    fairness_key: str,
    throttle_keys: Iterable[str],
) -> tuple[bytes | int, ...]:
    """Return what on_failure's entry point takes before the headers."""
    said = error.encode("utf-8", "replace")[:NACK_BYTES_MAX]
    keys = [key.encode() for key in throttle_keys]
    packed = b"".join(len(key).to_bytes(4, "little") + key for key in keys)
    return (
        message_id.encode(),
        attempts,
        said,
        reason.encode(),
        payload_size,
        fairness_key.encode(),
        packed,
    )


def _encoded(source: str, name: str) -> bytes:
    try:
        return source.encode()
    except UnicodeEncodeError:
        raise InvalidScript(f"{name} script: not valid UTF-8") from None
