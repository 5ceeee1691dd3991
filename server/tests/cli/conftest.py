# SPDX-License-Identifier: AGPL-3.0-only
"""The CLI on a real broker: most tests run the command in this process, some as a person does.

A process of its own costs a second, many under load, so it is for what only a process shows:
signals, pipes, terminals, and that the command is there at all.
"""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner

from fila_server.cli.app import run
from server.tests.broker_process import BrokerProcess

# As the console script does.
COMMAND = [sys.executable, "-c", "from fila_server.cli.start import main; main()"]
STEERING = ("FILA_", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_")
_numbers = itertools.count(1)


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment without anything that steers fila, click or rich."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(STEERING)}
    return {**kept, **extra}


@pytest.fixture(autouse=True)
def unsteered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What renders in this process sees no width or colour of whoever runs the tests."""
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)


@dataclass(frozen=True)
class Answer:
    """What one run of the command gave back."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode(errors="replace")

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    def json_lines(self) -> list[Any]:
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    def ok(self) -> str:
        assert self.code == 0, self.err
        return self.out

    def error(self, code: int = 1) -> str:
        """The one line of a failure."""
        assert self.code == code, (self.code, self.out, self.err)
        assert self.out == ""
        assert self.err.startswith("error: ")
        assert self.err.count("\n") == 1 and self.err.endswith("\n"), self.err
        return self.err[len("error: ") : -1]

    def json_error(self, code: int = 1) -> dict[str, Any]:
        """The one document of a failure under --json."""
        assert self.code == code, (self.code, self.out, self.err)
        assert self.err.count("\n") == 1, self.err
        document = json.loads(self.err)
        assert list(document) == ["error"]
        assert list(document["error"]) == ["code", "reason", "message", "hint"]
        error: dict[str, Any] = document["error"]
        return error


@dataclass(frozen=True)
class Fila:
    """Runs `fila` against one address."""

    address: str

    def __call__(self, *arguments: str, stdin: str | bytes = b"", **environment: str) -> Answer:
        """Run the command in this process, with streams and an environment of its own."""
        gone = {name: None for name in os.environ if name.startswith(STEERING)}
        usual = {"FILA_ADDR": self.address, "GRPC_VERBOSITY": "NONE"}
        # A loaded machine may take any time for a call.
        patient = ("--timeout", "60", *arguments) if arguments else ()
        with CliRunner().isolation(stdin, {**gone, **usual, **environment}) as (out, err, _):
            code = run(list(patient))
            sys.stdout.flush()
            sys.stderr.flush()
            return Answer(code, out.getvalue(), err.getvalue().decode())

    def process(self, *arguments: str, stdin: bytes = b"", **environment: str) -> Answer:
        """Run the command as a person does, in a process of its own."""
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            env=self.environment(**environment),
            timeout=60,
        )
        return Answer(done.returncode, done.stdout, done.stderr.decode())

    def start(self, *arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
        """Start the command in a process of its own."""
        return subprocess.Popen([*COMMAND, *arguments], env=self.environment(), **options)

    def environment(self, **extra: str) -> dict[str, str]:
        return clean_environment(**{"FILA_ADDR": self.address, **extra})


@pytest.fixture(scope="session")
def fila(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fila]:
    """The command, and a broker that all tests share: each makes its own queues and keys."""
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield Fila(broker.address)
    broker.close()


@pytest.fixture
def offline() -> Fila:
    """A command whose broker does not exist; port 1 needs a privilege to be listened on."""
    return Fila("127.0.0.1:1")


@pytest.fixture
def new_name() -> Callable[[], str]:
    """A name that nothing else has."""
    return lambda: f"n{next(_numbers)}"


@pytest.fixture
def new_queue(fila: Fila, new_name: Callable[[], str]) -> Callable[..., str]:
    """Creates a queue with a fresh name."""

    def create(*options: str) -> str:
        name = new_name()
        fila("queue", "create", name, *options).ok()
        return name

    return create


@pytest.fixture
def queue(new_queue: Callable[..., str]) -> str:
    return new_queue()
