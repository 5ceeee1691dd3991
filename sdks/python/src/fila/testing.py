# SPDX-License-Identifier: AGPL-3.0-only
"""A real broker for tests: a process of its own that starts empty, and is gone afterwards.

    with fila.testing.broker() as broker:
        client = fila.Client(broker.address)

It takes `fila-server`, which is not part of this package: `pip install fila-server`. A start takes
about a second, so use one for all tests and a queue for each. The broker ends with the process that
started it, however that ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import IO, Self

__all__ = ["Broker", "broker"]

_READY = "FILA READY "
_SERVER = "FILA_SERVER"
# A busy machine takes long to start Python.
_START_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 20.0
# Of what it said, in the error that it did not start.
_LINES_SHOWN = 20


def broker(config: str = "") -> Broker:
    """A broker that starts with the `with` block, or `async with`, and ends with it.

    `config` is more of its configuration file, as TOML.
    """
    return Broker(config)


class Broker:
    """One broker: where it is, and its process.

    `start` raises FileNotFoundError if there is no `fila-server`, and RuntimeError, with what it
    said, if it does not start.
    """

    def __init__(self, config: str = "") -> None:
        self._config = config
        self._folder: Path | None = None
        self._process: subprocess.Popen[str] | None = None
        self._said: deque[str] = deque(maxlen=_LINES_SHOWN)
        self._ready = threading.Event()
        self._readers: list[threading.Thread] = []
        self._address = ""

    @property
    def address(self) -> str:
        """Where it listens, as `host:port`; empty until it runs."""
        return self._address

    def start(self) -> None:
        """Returns when it is ready for calls."""
        if self._process is not None:
            raise RuntimeError("the broker runs already")
        server = _server()
        self._folder = Path(mkdtemp(prefix="fila-testing-"))
        try:
            self._process = self._run(server, self._folder)
            self._wait()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends it and removes its data. Harmless twice."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.terminate()
            try:
                process.wait(_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdin.close()
            for reader in self._readers:
                reader.join()
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        self._address = ""

    def _run(self, server: str, folder: Path) -> subprocess.Popen[str]:
        config = folder / "fila.toml"
        config.write_text(self._config, encoding="utf-8")
        command = [server, "--config", str(config), "--data-dir", str(folder / "data")]
        # It holds no other end of the pipe, so it ends when this process does.
        command += ["--listen", "127.0.0.1:0", "--stop-at-eof"]
        # Settings for a broker that this machine has of its own are not for this one.
        environment = {name: value for name, value in os.environ.items() if name[:5] != "FILA_"}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=folder
        )
        self._ready.clear()
        self._said.clear()
        self._readers = [
            threading.Thread(target=self._read, args=(output,), daemon=True)
            for output in (process.stdout, process.stderr)
        ]
        for reader in self._readers:
            reader.start()
        return process

    def _read(self, output: IO[str]) -> None:
        """Reads on until the end: a broker whose pipe is full would stand still."""
        with output:
            for line in output:
                if line.startswith(_READY):
                    self._address = str(json.loads(line.removeprefix(_READY))["address"])
                    self._ready.set()
                else:
                    self._said.append(line)
        self._ready.set()  # or it never will be

    def _wait(self) -> None:
        is_told = self._ready.wait(_START_SECONDS_MAX)
        if not self._address:
            assert self._process is not None
            why = "ended" if is_told else f"was not ready within {_START_SECONDS_MAX:g} s"
            self._process.kill()
            for reader in self._readers:
                reader.join()
            raise RuntimeError(f"fila-server {why}: {''.join(self._said).strip() or 'no word'}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)


def _server() -> str:
    """The program: what FILA_SERVER names, what lies beside this Python, or what PATH has."""
    named = os.environ.get(_SERVER)
    beside = os.path.dirname(sys.executable)
    found = (
        shutil.which(named)
        if named
        else shutil.which("fila-server", path=beside) or shutil.which("fila-server")
    )
    if found is None:
        where = f'"{named}", which {_SERVER} names, is not there' if named else "not on PATH"
        raise FileNotFoundError(
            f"no fila-server: {where}; install one with `pip install fila-server`, "
            f"or name one in {_SERVER}"
        )
    return found
