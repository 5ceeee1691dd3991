# SPDX-License-Identifier: AGPL-3.0-only
"""One Lua 5.4 state with one script in it, and the memory it may use.

This module owns everything that touches lupa. It must not know breakers, policies or decisions, and
it has no clock: time is measured inside Lua, on the CPU clock. Not thread-safe: one owner thread.

What lupa forces on us, and what therefore always holds:

1. No Python object enters the state, and no Lua object leaves it but our own functions. Calls pass
   bytes and numbers and return bytes and numbers. (From any Python function a script would reach
   `__globals__` and through it the host.)
2. lupa pushes arguments outside any protected call, where no memory means abort(). So every call
   starts with RESERVE_BYTES free: the allocator's limit lies that far above what a script may keep.
   A script that keeps more loses its state.
3. `fila.get` reads a Lua table that Python fills between calls. (A Python callback that returns a
   string near the memory limit deadlocks with the interpreter lock held.)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NoReturn

# `lupa.LuaRuntime` is Lua 5.5 in lupa 2.8; scripts are promised 5.4.
from lupa.lua54 import LuaError, LuaMemoryError, LuaRuntime

__all__ = ["HOOKS", "Answer", "Entry", "LuaError", "LuaState", "Script", "ScriptFailed"]

HOOKS = ("on_enqueue", "on_failure")

# Room for the arguments of a call and for what the trusted code allocates.
RESERVE_BYTES = 256 * 1024
# Beyond its bytes a Lua string costs a header, a slot on the stack, and its share of the table that
# holds it and of the table of all strings, both of which double as they grow.
STRING_OVERHEAD_BYTES = 128
# One entry point with its constants, without its parameters.
ENTRY_BYTES = 1024

# Lua runs 100 to 200 instructions per microsecond: a loop ends at about its time limit, and on a
# fast machine always at the same instruction.
STEPS_PER_MS = 100_000
# One step of the pattern matcher takes 1 to 5 ns and nothing can interrupt it.
PATTERN_STEPS_PER_MS = 100_000
PATTERN_STEPS_MAX = 1_000_000

# 0 and the hook's values, or 1 and what went wrong.
Answer = tuple[Any, ...]
Entry = Callable[..., Answer]


@cache
def _trusted_chunks() -> tuple[bytes, ...]:
    """Return our own Lua code, compiled once per process: a state takes 0.3 ms then, not 1.2 ms."""
    runtime: Any = LuaRuntime(encoding=None)
    dump = runtime.eval(b"string.dump")
    sources = (
        files("fila_server.hooks").joinpath(f"{name}.lua").read_bytes()
        for name in ("patterns", "library", "sandbox")
    )
    return tuple(dump(runtime.compile(source), True) for source in sources)


@dataclass(frozen=True, slots=True)
class Script:
    """A script and its limits. `name` is what its error messages start with."""

    source: bytes
    name: str
    queue: str
    timeout_ms: int
    memory_limit_bytes: int
    max_key_bytes: int
    max_throttle_keys: int


class ScriptFailed(Exception):
    """A script gave no answer. `text` says why, `line` where in the script, if that is known.

    The text may hold values that the script itself put into an error.
    """

    def __init__(
        self, text: str, *, line: int | None = None, is_scripts_fault: bool = True
    ) -> None:
        super().__init__(text if line is None else f"line {line}: {text}")
        self.text = text
        self.line = line
        self.is_scripts_fault = is_scripts_fault


def _deny(*_: object) -> NoReturn:
    raise AttributeError("Python objects cannot be reached from Lua")


class LuaState:
    """A fresh state in which the script has been run once. Raises ScriptFailed if that fails."""

    def __init__(self, script: Script, config: Mapping[str, str]) -> None:
        self._script = script
        runtime: Any = LuaRuntime(
            encoding=None,
            source_encoding="utf-8",
            register_eval=False,
            register_builtins=False,
            attribute_handlers=(_deny, _deny),
            max_memory=0,
        )
        patterns, library, sandbox = (
            runtime.compile(chunk, mode=b"b") for chunk in _trusted_chunks()
        )
        load, *functions = sandbox(
            patterns(),
            library,
            script.timeout_ms / 1000,
            script.timeout_ms * STEPS_PER_MS,
            min(script.timeout_ms * PATTERN_STEPS_PER_MS, PATTERN_STEPS_MAX),
            script.memory_limit_bytes // 4,
            script.max_key_bytes,
            script.max_throttle_keys,
            script.queue.encode(),
        )
        self._make_entry, self._configure, self._set_heap, self._forget, self._finish = functions
        for key, value in config.items():
            self._configure(key.encode(), value.encode())
        runtime.gccollect()
        self._runtime = runtime
        # Both are read after every call: the memory in use, and how much of it a script may keep.
        self.used: Callable[[bool], int] = runtime.get_memory_used
        self.soft_bytes = self.used(True) + script.memory_limit_bytes
        self._config_count_peak = len(config)
        self._limit()
        self.types = self._load(load)
        # By hook, then by number of headers.
        self.entries: tuple[dict[int, Entry], ...] = ({}, {})

    def _load(self, load: Entry) -> tuple[bytes, ...]:
        try:
            answer = load(self._script.source, b"=" + self._script.name.encode())
        except LuaError as error:
            raise self.escaped(error) from None
        if answer[0]:
            raise self.failure(answer[1])
        if self.is_full():
            raise ScriptFailed("memory limit exceeded")
        return answer[1:]

    def entry(self, hook: int, count: int) -> Entry:
        """Return the function that calls a hook with `count` headers; -1 takes any number.

        Raises ScriptFailed if the script does not define the hook.
        """
        entry = self.entries[hook].get(count)
        if entry is None:
            self.require(hook)
            self._runtime.set_max_memory(0)
            entry = self.entries[hook][count] = self._make_entry(HOOKS[hook].encode(), count)
            self.soft_bytes += ENTRY_BYTES + STRING_OVERHEAD_BYTES * max(count, 0)
            self._limit()
        return entry

    def require(self, hook: int) -> None:
        """Raise ScriptFailed unless the script defines the hook."""
        kind = self.types[hook].decode()
        if kind == "nil":
            raise ScriptFailed(f"no function {HOOKS[hook]} is defined")
        if kind != "function":
            raise ScriptFailed(f"{HOOKS[hook]} is a {kind}, not a function")

    def configure(self, key: str, old: str | None, new: str | None, count: int) -> None:
        """Mirror one changed entry of a configuration of `count` entries, at no cost to the script.

        The table does not shrink when entries go, so only the text of an entry is given back.
        """
        self._runtime.set_max_memory(0)
        name, value = key.encode(), None if new is None else new.encode()
        self._configure(name, value)
        if old is not None:
            self.soft_bytes -= len(name) + len(old.encode())
        if value is not None:
            self.soft_bytes += len(name) + len(value)
        if count > self._config_count_peak:
            self.soft_bytes += 2 * STRING_OVERHEAD_BYTES * (count - self._config_count_peak)
            self._config_count_peak = count
        self._limit()

    def _limit(self, extra: int = 0) -> None:
        # With much memory, single instructions can take long: time is measured from the start then.
        small_bytes = self.soft_bytes - self._script.memory_limit_bytes * 7 // 8
        self._set_heap(small_bytes + extra, self.soft_bytes + extra)
        self._runtime.set_max_memory(self.soft_bytes + extra + RESERVE_BYTES, True)

    def call_with_room(
        self, entry: Entry, arguments: tuple[bytes | int, ...], extra: int
    ) -> Answer:
        """Call an entry point whose arguments need more than the reserve."""
        self._limit(extra)
        try:
            return entry(*arguments)
        finally:
            # What is beyond the limit now is garbage, or the state is thrown away: the caller
            # settles that before the next call.
            self._limit()

    def is_full(self) -> bool:
        """Collect garbage; return whether the script keeps more than a call may start with.

        The margin keeps a script that is almost full from needing a collection after every call.
        """
        self._runtime.set_max_memory(0)  # letting go of large headers takes a little memory too
        self._forget()
        self._runtime.gccollect()
        self._limit()
        return bool(self.used(True) > self.soft_bytes - self._script.memory_limit_bytes // 8)

    def escaped(self, error: Exception) -> ScriptFailed:
        """Return what an error means that reached Python instead of being part of an answer.

        Memory ran out in the trusted code, or a limit was noticed just after the script ended.
        """
        for _ in range(2):  # the hook may strike once more inside `finish`, but not twice
            try:
                self._finish()
                break
            except LuaError:
                continue
        if isinstance(error, LuaMemoryError) or "not enough memory" in str(error):
            return ScriptFailed("memory limit exceeded")
        return ScriptFailed(str(error))

    def failure(self, raw: bytes) -> ScriptFailed:
        """Return what a hook's error text means."""
        text = raw.decode("utf-8", "replace")
        prefix, _, rest = text.partition(": ")
        name, _, line = prefix.rpartition(":")
        if name == self._script.name and line.isdecimal():
            return ScriptFailed(rest, line=int(line))
        return ScriptFailed(text)
