# SPDX-License-Identifier: AGPL-3.0-only
"""A real broker in a process of its own: start it, kill it, start it again on the same data.

It knows the ready line and the exit code, nothing of what the broker is asked to do.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

READY_PREFIX = "FILA READY "
# A start takes a second; a loaded machine may need many.
START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0
COMMAND = (sys.executable, "-m", "fila_server.main")


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without anything that steers fila, plus what the test wants."""
    ours = ("FILA_", "OTEL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, **(extra or {})}


def free_port() -> int:
    """A port that nothing uses and that no outgoing connection is given.

    A client that tries to reconnect to a port of the ephemeral range can end up connected to
    itself, and the broker could not listen there again.
    """
    for _ in range(1000):
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


class BrokerProcess:
    """One broker. Its data, configuration and log live in `directory` and outlive the process."""

    def __init__(
        self,
        directory: Path,
        *,
        config: str = "",
        environment: Mapping[str, str] | None = None,
        port: int = 0,
    ) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.log_file = directory / "stderr.txt"
        self.config_file = directory / "fila.toml"
        self.config_file.write_text(config)
        self.environment = environment
        self.port = port
        self.address = ""
        self.http_address = ""
        self.process: subprocess.Popen[str] | None = None

    def start(
        self,
        command: Sequence[str] = COMMAND,
        environment: Mapping[str, str] | None = None,
        stdin: int | None = None,
    ) -> None:
        """Start the broker and wait until it listens."""
        assert self.process is None
        arguments = ["--config", str(self.config_file), "--data-dir", str(self.data)]
        arguments += ["--listen", f"127.0.0.1:{self.port}"]
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                [*command, *arguments],
                env=clean_environment({**(self.environment or {}), **(environment or {})}),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.process = process
        watchdog = threading.Timer(START_LIMIT_S, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(READY_PREFIX):
                    ready = json.loads(line.removeprefix(READY_PREFIX))
                    self.address = ready["address"]
                    self.http_address = ready.get("http_address", "")
                    return
        finally:
            watchdog.cancel()
        code = self.wait()
        raise AssertionError(f"the broker did not start: exit {code}\n{self.log()}")

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def wait(self) -> int:
        """Wait for the end of the process and return its exit code."""
        assert self.process is not None
        process, self.process = self.process, None
        try:
            code = process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()
        return code

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def terminate(self) -> int:
        """Stop it as an operator does, and return its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Stop it as a crash does."""
        self.signal(signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        """End a process that is still there."""
        if self.process is not None:
            self.kill()


def run_to_end(
    *arguments: str, environment: Mapping[str, str] | None = None, cwd: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run `fila-server` with arguments that should make it end by itself."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env=clean_environment(environment),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
    )
