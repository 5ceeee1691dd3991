# SPDX-License-Identifier: AGPL-3.0-only
"""Fila as users run it, from the environment that this measurement runs in."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.peer import Client, Peer, Running
from bench.peers.processes import child, wait_until

READY = "FILA READY "


class Fila(Peer):
    name = "fila"
    title = "Fila"
    guarantee = (
        '`storage.sync = "always"`: fsync before the confirm, shared by what came meanwhile. '
        "Acks are confirmed. No replica."
    )
    install = "nothing; it is this tree"
    python_client = "our SDK, enqueue_many, consume and ack_many"
    go_client = "our SDK, EnqueueMany, Consume and AckMany"

    def missing(self) -> str | None:
        return None

    @contextmanager
    def start(self, folder: Path) -> Iterator[Running]:
        settings = folder / "fila.toml"
        settings.touch()
        server = [sys.executable, "-m", "fila_server.main"]
        command = [*server, "--listen", "127.0.0.1:0", "--data-dir", str(folder / "data")]
        command += ["--config", str(settings)]
        said = subprocess.run([*server, "--version"], capture_output=True, text=True, check=True)
        log = folder / "fila.log"
        # Whatever the shell says of another broker is not meant for this one.
        plain = {name: value for name, value in os.environ.items() if name[:5] != "FILA_"}
        with child(command, log, {**plain, "FILA_SERVER__LOG_LEVEL": "error"}) as process:
            wait_until(lambda: _address(log) is not None, process, log)
            yield Running(_address(log) or "", [process.pid], said.stdout.strip())

    def client(self, address: str) -> Client:
        from bench.peers.fila_client import FilaClient

        return FilaClient(address)


def _address(log: Path) -> str | None:
    for line in log.read_text().splitlines(keepends=True):
        if line.startswith(READY) and line.endswith("\n"):
            return str(json.loads(line.removeprefix(READY))["address"])
    return None
