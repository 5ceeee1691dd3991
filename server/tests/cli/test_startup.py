# SPDX-License-Identifier: AGPL-3.0-only
"""What a start of the command imports: no more than its answer needs. No time is measured."""

import subprocess
import sys

import pytest

from .conftest import Fila, clean_environment

# What takes long to import: the contract's runtime, the renderer, Lua, RocksDB.
SLOW = ("grpc", "google", "asyncio", "fila", "rich", "lupa", "rocksdict")
# Rooms of the SDK and of the command line that only some commands need. Most of their time goes
# into making classes: 25 of them, a millisecond each.
ROOMS = (
    *("fila.access", "fila.admin", "fila.aio", "fila.backup", "fila.config", "fila.findings"),
    *("fila.queues", "fila.stats", "fila.status"),
    *("fila_server.cli.live", "fila_server.cli.overview", "fila_server.cli.shares"),
    *("fila_server.cli.views", "fila_server.cli.watch"),
)
# What no command needs, and which packages among those that they do need would bring along.
NEVER = ("importlib.metadata", "opentelemetry", "pathlib", "shutil", "multiprocessing", "unittest")
LOADED = (
    "import sys; from fila_server.cli.app import run; code = run(sys.argv[1:]); "
    "sys.stderr.write(' '.join(sorted(sys.modules))); "
    "sys.exit(code)"
)


def loaded(*words: str, address: str = "127.0.0.1:1") -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words],
        env=clean_environment(FILA_ADDR=address),
        capture_output=True,
        timeout=60,
        text=True,
    )
    assert done.returncode in (0, 1), done.stderr  # `status` is 1 where another test made trouble
    return set(done.stderr.split())


def slow_modules(*words: str, address: str = "127.0.0.1:1") -> set[str]:
    return {name.partition(".")[0] for name in loaded(*words, address=address)} & set(SLOW)


@pytest.mark.parametrize(
    "words",
    [
        ("--version",),
        ("--help",),
        ("-h",),
        ("queue", "create", "--help"),
        ("top", "-h"),
        ("completion", "fish"),
    ],
    ids=" ".join,
)
def test_what_needs_no_broker_imports_neither_grpc_nor_a_renderer(words: tuple[str, ...]) -> None:
    assert slow_modules(*words) == set()


@pytest.mark.parametrize(
    "words",
    [
        ("enqueue", "{}", "--payload", "x"),
        ("--json", "stats", "{}"),
        ("queue", "pause", "{}"),
        ("queue", "list"),
        ("stats", "{}"),
        ("status",),
        ("throttle", "list"),
    ],
    ids=" ".join,
)
def test_an_answer_that_is_printed_once_imports_no_renderer(
    fila: Fila, queue: str, words: tuple[str, ...]
) -> None:
    found = slow_modules(*(word.format(queue) for word in words), address=fila.address)
    assert found == {"grpc", "google", "asyncio", "fila"}


@pytest.mark.parametrize(
    ("words", "rooms"),
    [
        ("enqueue {} --payload x", ""),
        ("queue pause {}", "fila.admin"),
        ("config set a 1", "fila.admin fila.config"),
        ("queue list", "fila.admin fila.queues fila_server.cli.views"),
        ("status", "fila.admin fila.status"),
        ("stats {}", "fila.admin fila.queues fila.stats fila_server.cli.views"),
        ("--json stats {}", "fila.admin fila.queues fila.stats"),
    ],
)
def test_a_command_imports_what_it_asks_for_and_no_other_room(
    fila: Fila, queue: str, words: str, rooms: str
) -> None:
    found = loaded(*words.format(queue).split(), address=fila.address)
    assert found & set(ROOMS) == set(rooms.split())
    assert not found & set(NEVER)


def test_what_libraries_load_for_others_is_not_loaded(fila: Fila, queue: str) -> None:
    program = "from fila_server.cli.start import main; main()"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program, "stats", queue],
        env=clean_environment(FILA_ADDR=fila.address),
        capture_output=True,
        timeout=60,
        text=True,
    )
    assert done.returncode == 0 and "waiting" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "grpc" in imported  # or the others would say nothing
    seldom = {"asyncio.events", "grpc.aio._channel", "google.protobuf.internal.decoder"}
    assert not imported & seldom
