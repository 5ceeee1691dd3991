# SPDX-License-Identifier: AGPL-3.0-only
"""A broker of its own for the demo: a child process on a free port, in a directory that goes away.

The child sees no configuration but its own: neither a `fila.toml` nearby nor `FILA_*` variables.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click

from fila_server.cli import failures

_READY_PREFIX = "FILA READY "
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0


@contextmanager
def own_broker() -> Iterator[str]:
    """Starts a broker, yields its address, and leaves neither process nor files behind."""
    with tempfile.TemporaryDirectory(prefix="fila-demo-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        (home / "fila.toml").touch()
        with (home / "broker.log").open("w+b") as log:
            process = _start(home, log)
            try:
                yield _address(process, log)
            finally:
                _stop(process)


def _start(home: Path, log: IO[bytes]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "fila_server.main", "--config", str(home / "fila.toml")]
    command += ["--listen", "127.0.0.1:0", "--data-dir", str(home / "data")]
    environment = {name: value for name, value in os.environ.items() if name[:5] != "FILA_"}
    return subprocess.Popen(
        command,
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        # Ctrl-C is for the demo, which stops the broker when it has drawn its conclusions.
        process_group=0,
    )


def _address(process: "subprocess.Popen[str]", log: IO[bytes]) -> str:
    """Waits for the ready line; when none comes the error names the broker's last words."""
    assert process.stdout is not None
    # A child that says nothing for too long is stopped, which ends the loop below.
    watchdog = threading.Timer(_START_TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            if line.startswith(_READY_PREFIX):
                return str(json.loads(line.removeprefix(_READY_PREFIX))["address"])
    finally:
        watchdog.cancel()
    log.seek(0)
    words = log.read().decode(errors="replace").strip().splitlines()
    raise click.ClickException(failures.broker_did_not_start(words[-1] if words else ""))


def _stop(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
