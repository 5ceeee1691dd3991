# SPDX-License-Identifier: AGPL-3.0-only
"""The CLI as a person uses it: the real command in a process of its own, on a real broker."""

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "fila_server.cli.app"]
READY_PREFIX = "FILA READY "
START_TIMEOUT_S = 30.0
_numbers = itertools.count(1)


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment without anything that steers fila, click or rich."""
    steering = ("FILA_", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    return {**kept, **extra}


@dataclass(frozen=True)
class Answer:
    """What one run of the command gave back."""

    code: int
    out: str
    err: str
    raw: bytes

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


@dataclass(frozen=True)
class Fila:
    """Runs `fila` against one address."""

    address: str

    def __call__(self, *arguments: str, stdin: str | bytes = b"", **environment: str) -> Answer:
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            env=self.environment(**environment),
            timeout=60,
        )
        out = done.stdout.decode(errors="replace")
        return Answer(done.returncode, out, done.stderr.decode(), done.stdout)

    def environment(self, **extra: str) -> dict[str, str]:
        return clean_environment(**{"FILA_ADDR": self.address, **extra})

    def start(self, *arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([*COMMAND, *arguments], env=self.environment(), **options)


def start_broker(directory: Path) -> tuple["subprocess.Popen[str]", str]:
    """A broker on a free port, and its address."""
    config = directory / "fila.toml"
    config.touch()
    command = [sys.executable, "-m", "fila_server.main", "--config", str(config)]
    command += ["--listen", "127.0.0.1:0", "--data-dir", str(directory / "data")]
    with (directory / "broker.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=clean_environment(), stdout=subprocess.PIPE, stderr=log, text=True
        )
    watchdog = threading.Timer(START_TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(READY_PREFIX):
                return process, json.loads(line.removeprefix(READY_PREFIX))["address"]
    finally:
        watchdog.cancel()
    process.wait()
    pytest.fail(f"the broker did not start: {(directory / 'broker.log').read_text()}")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that lives as long as the module's tests."""
    process, address = start_broker(tmp_path_factory.mktemp("broker"))
    try:
        yield address
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="module")
def fila(broker: str) -> Fila:
    return Fila(broker)


@pytest.fixture
def offline() -> Fila:
    """A command whose broker does not exist; port 1 needs a privilege to be listened on."""
    return Fila("127.0.0.1:1")


@pytest.fixture
def new_queue(fila: Fila) -> Callable[..., str]:
    """Creates a queue with a fresh name."""

    def create(*options: str) -> str:
        name = f"q{next(_numbers)}"
        fila("queue", "create", name, *options).ok()
        return name

    return create


@pytest.fixture
def queue(new_queue: Callable[..., str]) -> str:
    return new_queue()
