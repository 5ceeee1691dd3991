# SPDX-License-Identifier: AGPL-3.0-only
"""Answers cut to size, and the files of others as they came."""

from __future__ import annotations

import hashlib
import json

from fila.v1 import admin_pb2 as pb
from fila_server.http import pages, views


async def test_many_queues_are_cut_to_those_in_trouble() -> None:
    rows = [pb.QueueInfo(name=f"q{number:05}") for number in range(3000)]
    rows.append(pb.QueueInfo(name="stuck", depth=5))
    rows.append(pb.QueueInfo(name="orphans.dlq", depth=2, dead_letter_of="orphans"))
    shown, count = await views.queues(rows)
    assert (len(shown), count) == (views.QUEUES_MAX, 3002)
    assert [row["name"] for row in shown[:2]] == ["stuck", "orphans.dlq"]


def test_the_status_of_a_broker_is_json() -> None:
    status = pb.GetStatusResponse(version="1.2.3", disk_free_bytes=1 << 60, disk_low=True)
    status.started_at.FromMilliseconds(1000)
    row = pb.Trouble(severity=pb.SEVERITY_WARNING, kind="backlog", queue="q", what="w", remedy="r")
    shown = json.loads(views.encode([views.status(status), views.trouble(row)]))
    assert (shown[0]["version"], shown[0]["started_at"]) == ("1.2.3", 1000)
    assert shown[1]["severity"] == "warning"


def test_large_answers_are_cut() -> None:
    entries = [pb.ConfigEntry(key=f"k{number}", value="x" * 50_000) for number in range(2000)]
    shown = views.settings(pb.ListConfigResponse(entries=entries, total_count=2000))
    assert len(shown["entries"]) == views.SETTINGS_MAX
    assert len(views.encode(shown)) < 3_000_000
    assert shown["entries"][0]["size"] == 50_000
    message = pb.PeekedMessage()
    message.message.payload = b"x" * 1_000_000
    message.message.metadata.last_error = "e" * 100_000
    for number in range(1000):
        message.message.headers[f"h{number}"] = "v" * 10_000
    assert len(views.encode(views.peeked(pb.PeekResponse(messages=[message])))) < 50_000


def test_uplot_is_as_its_authors_built_it() -> None:
    """Version 1.6.32, after a line of our own that says so."""
    assets = pages.load()
    found = [
        hashlib.sha256(assets[f"vendor/{name}"].body.partition(b"\n")[2]).hexdigest()
        for name in ("uPlot.iife.min.js", "uPlot.min.css")
    ]
    assert found == [
        "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    ]
