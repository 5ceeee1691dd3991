# SPDX-License-Identifier: AGPL-3.0-only
"""Backups: the stream of a broker's progress, as plain values."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import grpc

from fila._answers import plain
from fila._connection import AsyncConnection, Connection
from fila.admin import METHOD
from fila.v1 import admin_pb2

_METHOD = METHOD + "Backup"


@dataclass(frozen=True, slots=True)
class BackupProgress:
    """How far a backup is. `phase` is checkpoint, copy, verify or done; then the rest is known."""

    phase: str
    done_bytes: int
    total_bytes: int
    path: str
    messages: int
    copied_bytes: int


def follow(connection: Connection, directory: str) -> Iterator[BackupProgress]:
    """Makes a backup and yields its progress; closing the iterator gives the backup up."""
    request = admin_pb2.BackupRequest(directory=directory).SerializeToString()
    stream = connection.stream(_METHOD, request, admin_pb2.BackupResponse, False)
    try:
        for step in stream:
            yield plain(BackupProgress, step)
    except grpc.RpcError as error:
        failure = connection.failure(error)
        raise failure from failure.__cause__
    finally:
        stream.cancel()


async def follow_async(
    connection: AsyncConnection, directory: str
) -> AsyncIterator[BackupProgress]:
    """As `follow`."""
    request = admin_pb2.BackupRequest(directory=directory).SerializeToString()
    stream = await connection.stream(_METHOD, request, admin_pb2.BackupResponse, False)
    try:
        async for step in stream:
            yield plain(BackupProgress, step)
    except grpc.RpcError as error:
        failure = connection.failure(error)
        raise failure from failure.__cause__
    finally:
        stream.cancel()
