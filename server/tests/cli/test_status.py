# SPDX-License-Identifier: AGPL-3.0-only
"""`fila status` against a service that says what a test wants to see."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fila.v1 import admin_pb2

from .conftest import Answer, Fila
from .fake_broker import fake_broker

GIB = 1024**3
DISK = admin_pb2.Trouble(
    severity="SEVERITY_CRITICAL",
    kind="disk_low",
    what="the data volume has 10 MiB free",
    remedy="ack or purge messages, or give the volume more room",
)
HOSTILE = admin_pb2.Trouble(
    severity="SEVERITY_WARNING", kind="backlog", queue="a\x1b[2Jb", what="[bold]old\nnews"
)


def ask(*words: str, **fields: Any) -> Answer:
    answer = admin_pb2.GetStatusResponse(
        **{
            "version": "1.2.3",
            "started_at": datetime.now(UTC) - timedelta(hours=3, minutes=4, seconds=30),
            "role": "single",
            "data_dir": "/var/lib/fila",
            "sync": "always",
            "disk_total_bytes": 40 * GIB,
            "disk_free_bytes": 3 * GIB // 2,
            "disk_floor_bytes": 64 * 1024**2,
            "log_bytes": 12 * 1024**2,
            "memory_bytes": 200 * 1024**2,
            "connections": 7,
            "max_connections": 10_000,
            "consumers": 1,
            "queues": 4,
            "messages": 1_204,
            "dead_letters": 2,
            **fields,
        }
    )
    with fake_broker({"GetStatus": lambda _: answer}) as (address, _):
        return Fila(address)("status", *words)


def test_a_broker_that_is_well_is_told_in_eight_lines_and_exit_0() -> None:
    shown = ask().ok()
    rows = dict(line.split(maxsplit=1) for line in shown.splitlines()[2:-2])
    assert rows == {
        "version": "1.2.3, up 3h 4m, role single",
        "disk": "1.5 GiB free of 40 GiB, enqueues are refused below 64 MiB",
        "store": "/var/lib/fila, sync always: tables 0 B, buffers 0 B, 0 B to merge",
        "log": "12 MiB",
        "memory": "200 MiB, of it 0 B waiting messages and 0 B waiting requests",
        "clients": "7 of 10,000 connections, 1 consumer",
        "messages": "1,204 in 4 queues, 2 dead letters",
    }
    assert shown.endswith("\nNothing is wrong.\n")


def test_something_critical_is_exit_1_with_what_to_do() -> None:
    answer = ask(disk_low=True, troubles=[DISK])
    assert answer.code == 1
    assert "ENQUEUES ARE REFUSED, 1.5 GiB free" in answer.out
    assert answer.out.endswith(
        "CRITICAL  the data volume has 10 MiB free\n"
        "  what to do: ack or purge messages, or give the volume more room\n"
    )
    assert answer.err == ""


def test_a_warning_is_exit_0_and_cannot_steer_the_terminal() -> None:
    shown = ask(troubles=[HOSTILE]).ok()
    assert 'WARNING  queue "a\\x1b[2Jb": [bold]old\\nnews\n' in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(("troubles", "code"), [([], 0), ([HOSTILE], 0), ([DISK, HOSTILE], 1)])
def test_status_in_json_has_the_same_exit_code(troubles: list[Any], code: int) -> None:
    answer = ask("--json", troubles=troubles, http_addr="127.0.0.1:8080")
    assert answer.code == code
    document = json.loads(answer.out)
    assert (document["queue_count"], document["active_consumers"]) == (4, 1)
    assert document["http_addr"] == "127.0.0.1:8080"
    assert [it["severity"] for it in document["troubles"]] == [
        {"disk_low": "critical", "backlog": "warning"}[it.kind] for it in troubles
    ]


def test_an_older_broker_is_named(fila: Fila) -> None:
    with fake_broker({}) as (address, _):
        error = Fila(address)("status").error()
    assert error == (
        f"{address} does not know this call; check that it is a Fila broker as new as this fila"
    )
