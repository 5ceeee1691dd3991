# SPDX-License-Identifier: AGPL-3.0-only
"""Brokers for examples and pages: a process on a free loopback port that starts empty, and ends."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

READY = "FILA READY "
START_SECONDS_MAX = 60
_STOP_SECONDS_MAX = 20


@contextmanager
def broker(settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a broker with `FILA_*` settings and nothing else, and yield its address."""
    with tempfile.TemporaryDirectory(prefix="fila-", ignore_cleanup_errors=True) as folder:
        config = Path(folder) / "fila.toml"
        config.touch()
        command = [sys.executable, "-m", "fila_server.main", "--listen", "127.0.0.1:0"]
        command += ["--data-dir", str(Path(folder) / "data"), "--config", str(config)]
        environment = {name: value for name, value in os.environ.items() if name[:5] != "FILA_"}
        environment |= {"FILA_SERVER__LOG_LEVEL": "error", **(settings or {})}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            yield _ready_address(process)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _ready_address(process: "subprocess.Popen[str]") -> str:
    """Return the address in the broker's ready line. Raises RuntimeError if none comes in time."""
    assert process.stdout is not None
    watchdog = threading.Timer(START_SECONDS_MAX, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            if line.startswith(READY):
                return str(json.loads(line.removeprefix(READY))["address"])
    finally:
        watchdog.cancel()
    raise RuntimeError("the broker did not become ready")
