# SPDX-License-Identifier: AGPL-3.0-only
"""`fila-server`: arguments, start-up, signals, exit codes.

Exit 0 after a clean shutdown, 1 when the broker could not start or its store failed, 2 for wrong
usage. A failure is one line on stderr.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import secrets
import signal
import sys
from dataclasses import replace

import click

from fila_server.config import Config, ConfigError, load
from fila_server.errors import FilaError, StorageFailed
from fila_server.log import configure_logging
from fila_server.rpc.server import ListenError, Server
from fila_server.rpc.tls import server_credentials
from fila_server.runtime.engine import Engine
from fila_server.runtime.hooks import compile_hooks
from fila_server.storage.rocks import RocksStorage

log = logging.getLogger("fila_server")

_LOOPBACK = ("127.", "localhost", "[::1]")
# 128 random bits, written in base64.
_SHORT_KEY = 22


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "config_file", metavar="FILE", help="TOML file (default: ./fila.toml).")
@click.option("--listen", metavar="ADDR", help="HOST:PORT to listen on; port 0 picks a free one.")
@click.option("--data-dir", metavar="DIR", help="Where messages are kept.")
@click.option(
    "--accept-data-loss",
    is_flag=True,
    help="Start although the log ends before what was confirmed as durable.",
)
@click.version_option(package_name="fila-server")
def command(
    config_file: str | None, listen: str | None, data_dir: str | None, accept_data_loss: bool
) -> None:
    """Run a Fila broker.

    Every setting can also come from the environment, as FILA_<SECTION>__<KEY>.

    \b
    Examples:
      fila-server
      fila-server --listen 127.0.0.1:0 --data-dir /var/lib/fila
      FILA_STORAGE__SYNC=interval fila-server --config fila.toml
    """
    try:
        config = load(config_file, os.environ)
        server = replace(
            config.server,
            listen_addr=listen or config.server.listen_addr,
            data_dir=data_dir or config.server.data_dir,
        )
        config = replace(config, server=server)
        configure_logging(config.server.log_level, config.server.log_format)
        asyncio.run(run(config, accept_data_loss))
    except (ConfigError, FilaError, ListenError) as error:
        click.echo(f"fila-server: {error}", err=True)
        sys.exit(1)


async def run(config: Config, accept_data_loss: bool) -> None:
    """Run a broker until a signal ends it. Raises StorageFailed if the store fails meanwhile."""
    server_credentials(config.tls)  # a bad certificate is reported before the store is touched
    storage = RocksStorage.open(
        config.server.data_dir,
        block_cache_bytes=config.storage.block_cache_bytes,
        write_buffer_bytes=config.storage.write_buffer_bytes,
        accept_data_loss=accept_data_loss,
    )
    engine = Engine(config, storage, compile_hooks(config.lua), secrets.randbits(26))
    recovered = engine.start()
    settle_garbage_collector()
    server = Server(config, engine)
    try:
        address = await server.start()
    except ListenError:
        engine.stop()
        raise
    log.info(
        "recovered %d queues, %d messages, %d of them leased",
        recovered.queues,
        recovered.messages,
        recovered.leases,
    )
    warn_of_exposure(config, address)
    told = _told_to_stop()  # before anybody knows that the broker is there
    click.echo("FILA READY " + json.dumps({"address": address, "pid": os.getpid()}))
    await _until_told(told, engine)
    await server.not_serving()
    engine.close_consumers()
    await server.stop(config.server.shutdown_grace_ms / 1000)
    engine.stop()
    if engine.failure is not None:
        raise StorageFailed(f"{engine.failure.message}; restart to recover from disk")
    log.info("stopped")


def warn_of_exposure(config: Config, address: str) -> None:
    """Say loudly what a stranger could do who reaches the address."""
    key = config.auth.bootstrap_apikey
    if key and len(key) < _SHORT_KEY:
        log.warning(
            "auth.bootstrap_apikey has only %d characters and may do everything: choose one that"
            " nobody can guess",
            len(key),
        )
    if address.startswith(_LOOPBACK):
        return
    if not key and not config.tls.ca_file:
        log.warning(
            "listening on %s with no authentication: anybody who can reach it can read and delete"
            " messages; set auth.bootstrap_apikey or tls.ca_file",
            address,
        )
    if not config.tls.cert_file:
        log.warning(
            "listening on %s without TLS: messages%s can be read on the way; set tls.cert_file and"
            " tls.key_file",
            address,
            " and API keys" if key else "",
        )


def _told_to_stop() -> asyncio.Event:
    """Return what SIGINT and SIGTERM set from now on."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    return told


async def _until_told(told: asyncio.Event, engine: Engine) -> None:
    """Wait for a signal to stop, or the store's failure."""
    waits = [asyncio.ensure_future(event.wait()) for event in (told, engine.failed)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def settle_garbage_collector() -> None:
    """Let the collector look rarely: messages make no cycles, and a backlog is long to look at."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def main() -> None:
    command()


if __name__ == "__main__":
    main()
