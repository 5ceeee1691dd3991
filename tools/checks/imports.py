# SPDX-License-Identifier: AGPL-3.0-only
"""Which module may import which.

    limits <- errors, config <- core <- hooks, storage <- runtime <- rpc <- transport, http <- main
    cli -> fila (the SDK), doctor
    within core: wire <- schedule <- traffic <- admin <- broker and its kin

Nothing points back, so that the core can be tested, simulated and replayed without a clock, a disk
or a network. Imports under TYPE_CHECKING count too, except where TYPES_ONLY says otherwise.
"""

import ast
import sys
from collections.abc import Iterator
from typing import NamedTuple

from tools.checks.tree import Problem, Tree

SERVER = "server/src/"
SDK = "sdks/python/"
PACKAGE = "fila_server"

# For each room of the broker, the other rooms (or single modules of them) that it may import.
ARROW: dict[str, frozenset[str]] = {
    "limits": frozenset(),
    "errors": frozenset(),
    "log": frozenset(),
    "version": frozenset(),
    "config": frozenset({"limits", "errors", "version"}),
    # storage.api holds pure types: what a write is, not how it is made.
    "core": frozenset({"limits", "errors", "storage.api"}),
    "telemetry": frozenset({"errors", "config", "version"}),
    "hooks": frozenset({"limits", "errors", "config", "core"}),
    "storage": frozenset({"limits", "errors", "config", "core"}),
}
ARROW["runtime"] = frozenset(ARROW) - {"log"}  # everybody logs, only main says where to
ARROW["sources"] = frozenset({"config"})
ARROW["rpc"] = ARROW["runtime"] | {"runtime"}
ARROW["transport"] = ARROW["http"] = ARROW["rpc"] | {"rpc"}
ARROW["main"] = ARROW["http"] | {"transport", "http", "log", "sources"}
ARROW["__main__"] = frozenset({"main"})
# Looks at what a start would find, with the code that a start would run; it starts nothing.
ARROW["doctor"] = frozenset(
    {"limits", "config", "sources", "storage", "runtime.descriptors", "transport.tls"}
)
# `fila hook test`, `fila doctor`, `fila verify` and `fila restore` work without a broker, so they
# bring the part that they need.
ARROW["cli"] = frozenset(
    {"limits", "errors", "config", "hooks", "version", "doctor", "storage.backups"}
)

# Rooms within the core, and which parts of the core each may import beside itself. None: all but
# those above it.
CORE_ROOMS: dict[str, frozenset[str] | None] = {
    "wire": frozenset({"names"}),
    "schedule": frozenset({"clock", "wire"}),
    "traffic": None,
    "admin": None,
}
CORE_TOP = frozenset({"broker", "chores", "recovery", "check", "migration"})

# What a room may import under TYPE_CHECKING only: the core is handed its settings, and must not
# bring in the module that reads them from disk.
TYPES_ONLY: dict[str, frozenset[str]] = {"core": frozenset({"config"})}
TYPES_GUARDS = ("TYPE_CHECKING", "typing.TYPE_CHECKING")

# Beyond itself and the standard library; a room that is not named here may import anything that
# the manifest declares.
OUTSIDE: dict[str, frozenset[str]] = {
    # Messages of protobuf are values with an encoding: no I/O, clock or randomness. gRPC is not.
    "core": frozenset({"fila.v1", "google.protobuf", "sortedcontainers"}),
    "cli": frozenset({"fila", "click", "rich"}),
}

# The parts of the standard library that have no I/O, clock or randomness of their own.
PURE = frozenset(
    """__future__ abc array base64 binascii bisect collections contextlib copy dataclasses datetime
    decimal enum fractions functools hashlib heapq itertools json math numbers operator re string
    struct textwrap types typing unicodedata zlib""".split()
)
WALL_CLOCK = frozenset({"now", "utcnow", "today"})


class Import(NamedTuple):
    """A module, or a name inside one, as seen from `line`."""

    target: str
    line: int
    is_type_only: bool


def check(tree: Tree) -> Iterator[Problem]:
    for path, text in tree.written(".py"):
        try:
            module = ast.parse(text)
        except SyntaxError:
            continue  # tools/checks/python.py reports it
        if path.startswith(SERVER + PACKAGE + "/"):
            yield from broker_module(path, module)
        elif path.startswith(SDK):
            yield from sdk_module(path, module)


def broker_module(path: str, module: ast.Module) -> Iterator[Problem]:
    name = path.removeprefix(SERVER).removesuffix(".py").replace("/", ".")
    room = name.removesuffix(".__init__").removeprefix(PACKAGE).strip(".").split(".")[0]
    if not room:
        room = "version"  # the package itself may hold the version, and nothing that imports
    if room not in ARROW:
        yield Problem(path, 1, "import-arrow", f"give `{room}` a place in {__name__}.ARROW")
        return
    for found in imports(name, module):
        types = TYPES_ONLY.get(room, frozenset()) if found.is_type_only else frozenset()
        if advice := breach(room, found.target, ARROW[room] | types):
            yield Problem(path, found.line, "import-arrow", advice)
    if room == "core":
        yield from wall_clock(path, module)
        yield from core_rooms(path, name, module)


def breach(room: str, target: str, rooms: frozenset[str]) -> str | None:
    """Return what is wrong with `room`, which may import `rooms`, importing `target`; or None."""
    top, _, rest = target.partition(".")
    if top == PACKAGE:
        if not rest or is_within(rest, rooms | {room, "version", "__version__"}):
            return None
        others = ", ".join(sorted(rooms)) or "nothing of the broker"
        return f"{room} may not import {target}; it may import {others}"
    if top in sys.stdlib_module_names:
        if room == "core" and top not in PURE:
            return f"core is pure and may not import {top}; take what it gives as an argument"
        return None
    outside = OUTSIDE.get(room)
    if outside is not None and (not is_within(target, outside) or "_pb2_grpc" in target):
        others = ", ".join(sorted(outside))
        return f"{room} may not import {target}; it may import {others}"
    return None


def core_rooms(path: str, name: str, module: ast.Module) -> Iterator[Problem]:
    """Yield what breaks the arrow between the rooms of the core."""
    room, _, rest = name.removeprefix(f"{PACKAGE}.core.").partition(".")
    if not rest or room not in CORE_ROOMS:
        return
    allowed = CORE_ROOMS[room]
    for found in imports(name, module):
        if not found.target.startswith(f"{PACKAGE}.core."):
            continue
        part = found.target.removeprefix(f"{PACKAGE}.core.").split(".")[0]
        is_above = part in CORE_TOP or (room == "traffic" and part == "admin")
        if part != room and (is_above or (allowed is not None and part not in allowed)):
            yield Problem(
                path, found.line, "import-arrow", f"core.{room} may not import core.{part}"
            )


def is_within(target: str, modules: frozenset[str]) -> bool:
    return any(target == module or target.startswith(module + ".") for module in modules)


def sdk_module(path: str, module: ast.Module) -> Iterator[Problem]:
    name = path.removesuffix(".py").replace("/", ".")
    for target, line, _ in imports(name, module):
        if target.partition(".")[0] == PACKAGE:
            advice = "the SDK knows the broker by its contract only; start it as a process"
            yield Problem(path, line, "import-arrow", advice)


def wall_clock(path: str, module: ast.Module) -> Iterator[Problem]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if node.func.attr in WALL_CLOCK and owner.rpartition(".")[2] in {"datetime", "date"}:
                advice = f"core has no clock; take the time as an argument, not {owner}"
                yield Problem(path, node.lineno, "import-arrow", advice)


def imports(name: str, module: ast.Module) -> Iterator[Import]:
    """Yield every import in a module called `name`, relative ones made absolute."""
    type_only = {
        id(inner)
        for node in ast.walk(module)
        if isinstance(node, ast.If) and ast.unparse(node.test) in TYPES_GUARDS
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) in type_only)
        elif isinstance(node, ast.ImportFrom):
            # `__init__` counts as a name inside its package, so one level is always one part.
            base = name.split(".")[: -node.level] if node.level else []
            prefix = ".".join(base + ([node.module] if node.module else []))
            for alias in node.names:
                yield Import(f"{prefix}.{alias.name}", node.lineno, id(node) in type_only)
