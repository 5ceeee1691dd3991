# SPDX-License-Identifier: AGPL-3.0-only
"""`fila-server`: arguments, start-up, signals, exit codes.

Exit 0 after a clean shutdown, 1 when the broker could not start or its store failed, 2 for wrong
usage. A failure is one line on stderr. SIGHUP reads certificates and the log level again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from fila_server import __version__
from fila_server.config import Config, ConfigError, TelemetryConfig
from fila_server.core.migration import from_1
from fila_server.core.schedule import ring
from fila_server.errors import FilaError, StorageFailed
from fila_server.log import configure_logging, set_level
from fila_server.runtime.descriptors import raise_limit
from fila_server.runtime.engine import Engine
from fila_server.runtime.hooks import compile_hooks
from fila_server.runtime.memory import settle_allocator
from fila_server.runtime.metrics import Metrics
from fila_server.runtime.readings import Readings
from fila_server.sources import load
from fila_server.storage.rocks import RocksStorage
from fila_server.transport.address import ListenError
from fila_server.transport.server import Server, chosen
from fila_server.transport.tls import read_certificates

if TYPE_CHECKING:
    from fila_server.http.app import HttpServer
    from fila_server.telemetry.tracing import Tracing

log = logging.getLogger("fila_server")

Warn = Callable[[str], None]
ReadConfig = Callable[[Warn], Config]

# Which of the two makings of the core this is; see decision 0005.
CORE = "in Python" if ring.__file__.endswith(".py") else "compiled"
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
@click.option(
    "--stop-at-eof",
    is_flag=True,
    help="Stop when standard input ends: for a test's broker, which must not outlive the test.",
)
@click.version_option(
    __version__, message=f"fila-server %(version)s, core {CORE}, transport {chosen('auto')}"
)
def command(
    config_file: str | None,
    listen: str | None,
    data_dir: str | None,
    accept_data_loss: bool,
    stop_at_eof: bool,
) -> None:
    """Run a Fila broker.

    Every setting can also come from the environment, as FILA_<SECTION>__<KEY>; FILA_DATA_DIR and
    FILA_BOOTSTRAP_APIKEY are short for two of them.

    \b
    Examples:
      fila-server
      fila-server --listen 127.0.0.1:0 --data-dir /var/lib/fila
      FILA_STORAGE__SYNC=interval fila-server --config fila.toml
    """
    os.umask(0o077)  # what the broker writes is nobody else's business
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload

    def read_config(warn: Warn) -> Config:
        config = load(config_file, os.environ, warn)
        server = replace(
            config.server,
            listen_addr=listen or config.server.listen_addr,
            data_dir=data_dir or config.server.data_dir,
        )
        return replace(config, server=server)

    try:
        warnings: list[str] = []  # until the log is set up as the settings say
        config = read_config(warnings.append)
        configure_logging(config.server.log_level, config.server.log_format)
        settle_allocator()
        raise_limit()
        for warning in warnings:
            log.warning(warning)
        failure = asyncio.run(run(config, accept_data_loss, stop_at_eof, read_config))
    except (ConfigError, FilaError, ListenError) as error:
        click.echo(f"fila-server: {error}", err=True)
        sys.exit(1)
    if failure is not None:
        click.echo(f"fila-server: {failure.message}; restart to recover from disk", err=True)
        # At once: threads may still be at work in a disk that hangs, and an interpreter that is
        # taken down around them crashes.
        os._exit(1)


async def run(
    config: Config, accept_data_loss: bool, stop_at_eof: bool, read_config: ReadConfig
) -> StorageFailed | None:
    """Run a broker until it is told to stop, or its store fails, which is returned."""
    # What is wrong with these is reported before the store is touched.
    read_certificates(config.tls)
    chosen(config.server.transport)
    storage = RocksStorage.open(
        config.server.data_dir,
        block_cache_bytes=config.storage.block_cache_bytes,
        write_buffer_bytes=config.storage.write_buffer_bytes,
        accept_data_loss=accept_data_loss,
        steps={1: from_1},
    )
    engine = Engine(config, storage, compile_hooks(config.lua, config.limits), secrets.randbits(26))
    tracing = start_tracing(config.telemetry)
    try:
        await serve(config, engine, read_config, tracing, stop_at_eof)
    finally:
        engine.stop()
        if tracing is not None:
            tracing.close()
    if engine.failure is None:
        log.info("stopped")
    return engine.failure


def start_tracing(telemetry: TelemetryConfig) -> Tracing | None:
    """Return what makes spans, if they have somewhere to go."""
    if not telemetry.otlp_endpoint or not telemetry.traces:
        return None
    from fila_server.telemetry.tracing import start  # OpenTelemetry is not loaded for nothing

    log.info("sending spans to %s", telemetry.otlp_endpoint)
    return start(telemetry)


async def serve(
    config: Config,
    engine: Engine,
    read_config: ReadConfig,
    tracing: Tracing | None,
    stop_at_eof: bool,
) -> None:
    """Recover, listen, and answer until told to stop, or a failure. Raises ListenError."""
    recovered = engine.start()
    settle_garbage_collector()
    server = Server(config, engine, tracing)
    metrics = Metrics(config.telemetry, Readings(engine, server.readings))
    address = await server.start()
    metrics.start()
    http, http_address = await open_http(config, engine, metrics)
    engine.status.http_addr = http_address
    log.info(
        "recovered %d queues, %d messages, %d of them leased",
        recovered.queues,
        recovered.messages,
        recovered.leases,
    )
    warn_of_short_key(config)
    for listening in filter(None, (address, http_address)):
        warn_of_exposure(config, listening)
    told = _told_to_stop(stop_at_eof)  # before anybody knows that the broker is there
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, lambda: reload(server, http, read_config))
    ready = {"address": address, "pid": os.getpid(), "transport": server.transport}
    if http_address:
        ready["http_address"] = http_address
    click.echo("FILA READY " + json.dumps(ready))
    await _until_told(told, engine)
    server.not_serving()
    engine.close_consumers()
    await metrics.stop()
    await server.stop(config.server.shutdown_grace_ms / 1000)
    if http is not None:
        await http.stop()


async def open_http(
    config: Config, engine: Engine, metrics: Metrics
) -> tuple[HttpServer | None, str]:
    """Open the port for probes, metrics and the dashboard, and return it with its address; None
    and an empty text where it is off. Raises ListenError.
    """
    if not config.http.listen_addr:
        return None, ""
    from fila_server.http.app import HttpServer  # a broker without the port does not pay for it

    http = HttpServer(config, engine, metrics.scrape)
    try:
        return http, await http.start()
    except OSError as error:
        why = (error.strerror or "it is not an address of this machine").lower()
        raise ListenError(
            f"cannot listen on {config.http.listen_addr}: {why}; choose another http.listen_addr"
        ) from error


def reload(server: Server, http: HttpServer | None, read_config: ReadConfig) -> None:
    """Take over certificates and the log level from the configuration as it is now."""
    try:
        config = read_config(log.warning)
        server.reload_certificates(config.tls)
        if http is not None:
            http.reload_certificates(config.tls)
    except ConfigError as error:
        log.error("nothing was reloaded: %s", error)
        return
    set_level(config.server.log_level)
    log.info(
        "reloaded certificates, and the log level %s; other settings need a restart",
        config.server.log_level,
    )


def warn_of_short_key(config: Config) -> None:
    """Say that a key which may do everything could be guessed."""
    key = config.auth.bootstrap_apikey
    if key and len(key) < _SHORT_KEY:
        log.warning(
            "auth.bootstrap_apikey has only %d characters and may do everything: choose one that"
            " nobody can guess",
            len(key),
        )


def warn_of_exposure(config: Config, address: str) -> None:
    """Say loudly what a stranger could do who reaches the address."""
    key = config.auth.bootstrap_apikey
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


def _told_to_stop(stop_at_eof: bool) -> asyncio.Event:
    """Return what SIGINT and SIGTERM set from now on, and the end of standard input if asked."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    if stop_at_eof:
        # A thread, for a loop cannot wait for a file; a daemon, for it may never come back.
        threading.Thread(target=_await_eof, args=(loop, told), daemon=True).start()
    return told


def _await_eof(loop: asyncio.AbstractEventLoop, told: asyncio.Event) -> None:
    """Set `told` when standard input has ended, or there is none."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: a signal was first
        loop.call_soon_threadsafe(told.set)


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
