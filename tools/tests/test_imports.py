# SPDX-License-Identifier: AGPL-3.0-only
"""The import arrow."""

import pytest

from tools.checks import imports
from tools.checks.tree import Problem, Tree


def found(module: str, text: str) -> list[Problem]:
    path = "server/src/" + module.replace(".", "/") + ".py"
    return list(imports.check(Tree.of_texts({path: text})))


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("fila_server.core.queue", "import heapq, struct"),
        ("fila_server.core.queue", "from collections.abc import Iterator"),
        ("fila_server.core.queue", "from fila_server.errors import QueueFull"),
        ("fila_server.core.queue", "from fila_server.limits import MAX_WEIGHT"),
        ("fila_server.core.queue", "from fila_server.storage.api import Column"),
        ("fila_server.core.queue", "from fila_server.storage import api"),
        ("fila_server.core.queue", "from . import lane"),
        ("fila_server.core.queue", "from .. import errors"),
        ("fila_server.core.__init__", "from .queue import Queue"),
        ("fila_server.core.records", "from fila.v1.messages_pb2 import Message"),
        ("fila_server.core.state", "if TYPE_CHECKING:\n    from fila_server.config import Config"),
        ("fila_server.storage.rocks", "import os, rocksdict"),
        ("fila_server.runtime.engine", "from fila_server.core import broker"),
        ("fila_server.rpc.service", "from fila_server.runtime.engine import Engine"),
        ("fila_server.transport.server", "from fila_server.rpc import service"),
        ("fila_server.main", "from fila_server.transport import server"),
        ("fila_server.cli.app", "import click, rich.table, fila, os"),
        ("fila_server.cli.hook", "from fila_server.hooks import lua"),
        ("fila_server.cli.app", "from fila_server import __version__"),
        ("fila_server.cli.values", "from fila_server.limits import MAX_RATE"),
    ],
)
def test_with_the_arrow(module: str, text: str) -> None:
    assert not found(module, text)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        *(
            ("fila_server.core.queue", f"import {name}")
            for name in """asyncio grpc threading time os random logging socket pathlib secrets uuid
            subprocess lupa rocksdict fila""".split()
        ),
        ("fila_server.core.queue", "def f():\n    import time"),
        ("fila_server.core.queue", "from os.path import join"),
        ("fila_server.core.queue", "from fila_server.storage import Storage"),
        ("fila_server.core.queue", "from fila_server.storage.rocks import Rocks"),
        ("fila_server.core.queue", "from ..runtime import engine"),
        ("fila_server.core.queue", "from fila_server.config import Config"),
        ("fila_server.core.queue", "if not TYPE_CHECKING:\n    import fila_server.config"),
        ("fila_server.core.queue", "if TYPE_CHECKING:\n    import time"),
        ("fila_server.core.records", "from fila.v1.service_pb2_grpc import FilaServiceStub"),
        ("fila_server.core.queue", "import datetime\nx = datetime.datetime.now()"),
        ("fila_server.core.queue", "from datetime import datetime\nx = datetime.utcnow()"),
        ("fila_server.core.wire.records", "from fila_server.core.schedule.lane import Lane"),
        ("fila_server.core.schedule.lane", "from fila_server.core.state import State"),
        ("fila_server.core.traffic.letters", "from fila_server.core.admin import queues"),
        ("fila_server.core.admin.stats", "from fila_server.core import broker"),
        ("fila_server.limits", "from fila_server.errors import FilaError"),
        ("fila_server.storage.rocks", "from fila_server.hooks import lua"),
        ("fila_server.storage.rocks", "from fila_server.runtime import engine"),
        ("fila_server.runtime.engine", "from fila_server.rpc import service"),
        ("fila_server.rpc.service", "from fila_server.transport import server"),
        ("fila_server.http.app", "from fila_server.transport import server"),
        ("fila_server.transport.server", "import fila_server.main"),
        ("fila_server.cli.app", "from fila_server.core import broker"),
        ("fila_server.cli.app", "import grpc"),
        ("fila_server.errors", "from fila_server import config"),
        ("fila_server.hooks.lua", "if TYPE_CHECKING:\n    from fila_server.rpc import status"),
    ],
)
def test_against_the_arrow(module: str, text: str) -> None:
    assert [problem.rule for problem in found(module, text)] == ["import-arrow"]


def test_a_new_room_needs_a_place() -> None:
    [problem] = found("fila_server.utils", "")
    assert "give `utils` a place" in problem.advice


def test_the_message_says_what_is_allowed() -> None:
    [problem] = found("fila_server.cli.app", "\nimport fila_server.core")
    assert str(problem) == (
        "server/src/fila_server/cli/app.py:2: import-arrow: cli may not import fila_server.core; "
        "it may import config, doctor, errors, hooks, limits, storage.backups, version"
    )


def test_the_sdk_does_not_know_the_broker() -> None:
    path = "sdks/python/tests/conftest.py"
    tree = Tree.of_texts({path: "import fila\nfrom fila_server.main import main\n"})
    assert [(problem.path, problem.line) for problem in imports.check(tree)] == [(path, 2)]


def test_a_clock_that_was_passed_in_may_be_asked() -> None:
    assert not found("fila_server.core.queue", "def f(clock):\n    return clock.now()")
