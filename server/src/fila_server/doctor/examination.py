# SPDX-License-Identifier: AGPL-3.0-only
"""All checks in order: what stops a start first, what hurts later after it.

Reads the same configuration as `fila-server` with the same arguments would. A configuration that
cannot be read ends the examination early: the rest would be about settings that nobody has.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from fila_server.config import Config, ConfigError
from fila_server.doctor import certificates, copies, directory, machine, network
from fila_server.doctor.finding import CRITICAL, OK, WARNING, Finding
from fila_server.sources import DEFAULT_PATHS, load


def examine(
    config_file: str | None,
    environment: Mapping[str, str],
    listen: str | None = None,
    data_dir: str | None = None,
) -> Iterator[Finding]:
    """Yield what a start would find, without starting, locking or changing anything."""
    warnings: list[str] = []
    try:
        config = load(config_file, environment, warnings.append)
        config = _with_arguments(config, listen, data_dir)
    except ConfigError as error:
        yield Finding("config", CRITICAL, str(error), "correct it; the rest was not looked at")
        yield from machine.clock(None)
        return
    yield Finding("config", OK, _source(config_file))
    for warning in warnings:
        yield Finding("config", WARNING, warning, "remove it")
    path = Path(config.server.data_dir)
    yield from directory.directory(config)
    yield from network.addresses(config, directory.holder(path))
    yield from network.exposure(config)
    yield from certificates.certificates(config)
    yield from copies.backups(config)
    yield from network.collector(config)
    yield from machine.limits(config)
    yield machine.memory(config)
    yield from machine.clock(directory.newest(path))


def _with_arguments(config: Config, listen: str | None, data_dir: str | None) -> Config:
    server = replace(
        config.server,
        listen_addr=listen or config.server.listen_addr,
        data_dir=data_dir or config.server.data_dir,
    )
    return replace(config, server=server)


def _source(config_file: str | None) -> str:
    found = config_file or next((str(path) for path in DEFAULT_PATHS if path.exists()), None)
    return f"{found} and the environment are in order" if found else "defaults and the environment"
