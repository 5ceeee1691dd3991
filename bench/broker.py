# SPDX-License-Identifier: AGPL-3.0-only
"""A broker to measure: a real process on a free loopback port, which says at its end where its
time went.

Run as a module it is that process: `python -m bench.broker --data-dir DIR --sync always`.
"""

import argparse
import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

READY = "BENCH READY "
ENDED = "BENCH ENDED "
SERVING = "FILA READY "


@dataclass
class Measured:
    """A running broker's address; after it ended, also the seconds that it spent."""

    address: str
    pid: int
    start_s: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)

    def cpu_s(self) -> float:
        """The processor time that the broker has used so far."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def broker(data_dir: str | None = None, sync: str = "always") -> Iterator[Measured]:
    """Run a broker, in a directory that goes away unless one is given."""
    with tempfile.TemporaryDirectory(prefix="fila-bench-") as folder:
        command = [sys.executable, "-m", "bench.broker", "--sync", sync]
        command += ["--data-dir", data_dir or str(Path(folder) / "data")]
        began = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                line = process.stdout.readline()
                if not line.startswith(READY):
                    raise RuntimeError("the broker did not start")
                address = line.removeprefix(READY).strip()
                measured = Measured(address, process.pid, time.monotonic() - began)
                yield measured
            finally:
                process.send_signal(signal.SIGTERM)
                last = process.stdout.readline()
            if last.startswith(ENDED):
                measured.spent = json.loads(last.removeprefix(ENDED))


@contextmanager
def serving(**settings: str) -> Iterator[tuple[Measured, str]]:
    """Run a broker as users do, with its HTTP port open; yield it with that port's address."""
    with tempfile.TemporaryDirectory(prefix="fila-bench-") as folder:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FILA_")}
        kept |= {"FILA_HTTP__LISTEN_ADDR": "127.0.0.1:0", "FILA_SERVER__LOG_LEVEL": "error"}
        command = [sys.executable, "-m", "fila_server.main", "--data-dir", f"{folder}/data"]
        command += ["--listen", "127.0.0.1:0"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**kept, **settings}, cwd=folder
        ) as process:
            try:
                assert process.stdout is not None
                line = next(it for it in process.stdout if it.startswith(SERVING))
                ready = json.loads(line.removeprefix(SERVING))
                yield Measured(ready["address"], process.pid), ready["http_address"]
            finally:
                process.terminate()


async def serve(data_dir: str, sync: Literal["always", "interval", "never"]) -> None:
    from fila_server.config import Config
    from fila_server.main import CORE, settle_garbage_collector
    from fila_server.runtime.engine import Engine
    from fila_server.runtime.hooks import compile_hooks
    from fila_server.storage.rocks import RocksStorage
    from fila_server.transport.server import Server

    config = Config()
    config = replace(
        config,
        server=replace(config.server, listen_addr="127.0.0.1:0", data_dir=data_dir),
        storage=replace(config.storage, sync=sync),
    )
    engine = Engine(
        config,
        RocksStorage.open(data_dir),
        compile_hooks(config.lua, config.limits),
        secrets.randbits(26),
    )
    engine.start()
    settle_garbage_collector()
    server = Server(config, engine)
    print(READY + await server.start(), flush=True)
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    began_wall, began_cpu = time.monotonic(), time.process_time()
    await told.wait()
    timing = engine.timing
    spent = {
        "wall_s": time.monotonic() - began_wall,
        "cpu_s": time.process_time() - began_cpu,
        "core_s": timing.core_ns / 1e9,
        "storage_s": timing.storage_ns / 1e9,
        "groups": timing.groups,
        "items": timing.items,
        "is_compiled": CORE == "compiled",
    }
    engine.close_consumers()
    await server.stop(1)
    engine.stop()
    print(ENDED + json.dumps(spent), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--sync", default="always")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.data_dir, arguments.sync))


if __name__ == "__main__":
    main()
