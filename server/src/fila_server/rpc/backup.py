# SPDX-License-Identifier: AGPL-3.0-only
"""Backup: who may make one and where, and its progress as a stream."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

from fila.v1 import admin_pb2 as pb
from fila_server.config import Config
from fila_server.core.access import ADMIN
from fila_server.core.names import shown
from fila_server.errors import FilaError, InvalidArgument, PermissionDenied
from fila_server.rpc import audit
from fila_server.rpc.auth import CALLER, check_everywhere
from fila_server.rpc.method import Call, Handler
from fila_server.runtime.engine import Engine


def handler(config: Config, engine: Engine) -> Handler:
    """Return what serves Backup."""

    async def back_up(request: pb.BackupRequest, call: Call) -> None:
        caller = CALLER.get()
        try:
            # It holds the messages of all queues, and the digests of all keys.
            check_everywhere(ADMIN)
            directory = target(config, request.directory)
        except FilaError as error:
            audit.refused(caller, request, error)
            raise
        async with aclosing(engine.backups.make(directory)) as steps:  # tells of its failures
            async for step in steps:
                response = pb.BackupResponse(**step._asdict())
                if step.phase == "done":  # whether or not its caller hears of it
                    audit.tell(caller, request, response)
                await call.write(response.SerializeToString())

    return back_up


def target(config: Config, asked: str) -> Path:
    """Return the directory that a request means, with no link in it.

    Raises FilaError unless it is inside storage.backup_dir, as what links lead to.
    """
    if not config.storage.backup_dir:
        raise PermissionDenied(
            "backups through the API are off; set storage.backup_dir to a directory for them"
        )
    root = Path(config.storage.backup_dir).resolve()
    if not root.is_dir():
        raise InvalidArgument(
            f"storage.backup_dir {root} is no directory; make it, or mount its volume"
        )
    if "\0" in asked or ".." in Path(asked).parts:
        raise InvalidArgument(f'the directory "{shown(asked)}" must not contain ".." or zero bytes')
    try:
        directory = (root / asked).resolve()
    except (OSError, RuntimeError) as error:
        raise InvalidArgument(f'the directory "{shown(asked)}" cannot be used: {error}') from error
    if not directory.is_relative_to(root):
        raise InvalidArgument(
            f'the directory "{shown(asked)}" is not inside storage.backup_dir ({root})'
        )
    if directory.is_relative_to(Path(config.server.data_dir).resolve()):
        raise InvalidArgument(
            f'the directory "{shown(asked)}" is inside server.data_dir; name another'
        )
    return directory
