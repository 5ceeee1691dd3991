# SPDX-License-Identifier: AGPL-3.0-only
"""How a broker is doing, in both clients, as plain values."""

from datetime import UTC, datetime

import pytest

import fila
from fila.v1 import admin_pb2

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
RAW = admin_pb2.GetStatusResponse(
    version="0.1.0",
    started_at=NOON,
    role="single",
    disk_low=True,
    messages=3,
    troubles=[
        admin_pb2.Trouble(
            severity="SEVERITY_CRITICAL",
            kind="disk_low",
            what="the disk is full",
            remedy="free some space",
        ),
        admin_pb2.Trouble(severity=99, kind="paused", queue="orders"),
    ],
)


@pytest.mark.asyncio
async def test_status_is_read_in_both_clients(broker, client):
    broker.script("GetStatus", lambda *_: RAW)
    found = client.status()
    async with fila.AsyncClient(broker.target) as async_client:
        assert await async_client.status() == found
    assert [seen.request for seen in broker.seen] == [admin_pb2.GetStatusRequest()] * 2
    assert (found.version, found.started_at, found.role) == ("0.1.0", NOON, "single")
    assert (found.disk_low, found.messages, found.dead_letters) == (True, 3, 0)
    assert found.troubles == (
        fila.Trouble(fila.Severity.CRITICAL, "disk_low", "", "the disk is full", "free some space"),
        # A newer broker may know a severity that this client does not.
        fila.Trouble(None, "paused", "orders", "", ""),
    )


def test_a_status_with_nothing_in_it_is_read(broker, client):
    broker.script("GetStatus", lambda *_: admin_pb2.GetStatusResponse())
    found = client.status()
    assert (found.started_at, found.troubles, found.http_addr) == (None, (), "")
