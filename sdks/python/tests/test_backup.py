# SPDX-License-Identifier: AGPL-3.0-only
"""A backup's progress as it arrives, its failure, and giving it up."""

import grpc
import pytest

import fila
from fila.v1 import admin_pb2

STEPS = [
    admin_pb2.BackupResponse(phase="copy", done_bytes=1, total_bytes=2),
    admin_pb2.BackupResponse(phase="done", path="/backups/1", messages=3, copied_bytes=2),
]
READ = [
    fila.BackupProgress("copy", 1, 2, "", 0, 0),
    fila.BackupProgress("done", 0, 0, "/backups/1", 3, 2),
]


@pytest.mark.asyncio
async def test_progress_is_yielded_as_it_comes_and_has_no_deadline(broker, client):
    broker.script("Backup", lambda *_: iter(STEPS))
    assert list(client.backup("daily")) == READ
    async with fila.AsyncClient(broker.target) as async_client:
        assert [step async for step in async_client.backup("daily")] == READ
    request = admin_pb2.BackupRequest(directory="daily")
    assert [seen.request for seen in broker.seen] == [request] * 2
    assert all(seen.time_remaining > 1e9 for seen in broker.seen)


@pytest.mark.asyncio
async def test_a_failure_is_raised_where_it_happened(broker, client, wire):
    refusal = wire.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "the volume is full", "DISK_FULL")

    def fails(request, context):
        yield STEPS[0]
        refusal(request, context)

    broker.script("Backup", fails)
    steps = client.backup()
    assert next(steps) == READ[0]
    with pytest.raises(fila.DiskFullError, match="the volume is full"):
        next(steps)
    async with fila.AsyncClient(broker.target) as async_client:
        with pytest.raises(fila.DiskFullError):
            [step async for step in async_client.backup()]


def test_closing_the_iterator_gives_the_backup_up(broker, client, wire):
    ended = []

    def goes_on(request, context):
        context.add_callback(lambda: ended.append(True))
        yield STEPS[0]
        wire.idle(context)

    broker.script("Backup", goes_on)
    steps = client.backup()
    next(steps)
    steps.close()
    broker.wait_for(lambda: bool(ended))
