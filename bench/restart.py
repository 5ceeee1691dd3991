# SPDX-License-Identifier: AGPL-3.0-only
"""How long a restart takes with a backlog on disk, and how much memory the broker needs then."""

import argparse
import tempfile
from pathlib import Path

import fila
from bench.broker import broker
from bench.report import Report

BATCH = 1000


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=1_000_000, help="in the backlog (1000000)")
    parser.add_argument("--size", type=int, default=256, help="payload bytes (256)")


def run(chosen: argparse.Namespace) -> None:
    report = Report(f"restart with {chosen.messages:,} x {chosen.size} B stored", chosen.json)
    with tempfile.TemporaryDirectory(prefix="fila-bench-") as folder:
        data_dir = str(Path(folder) / "data")
        report.progress("filling")
        with broker(data_dir) as measured:
            empty_s = measured.start_s
            _fill(measured.address, chosen.messages, chosen.size)
        report.progress("starting again")
        with broker(data_dir) as measured, fila.Client(measured.address) as client:
            depth = client.stats("backlog").depth
            memory_mib = _resident_mib(measured.pid)
        assert depth == chosen.messages, f"{depth} messages came back"
    report.add("start with an empty store", f"{empty_s:.1f} s", empty_s=empty_s)
    report.add("start with the backlog", f"{measured.start_s:.1f} s", "seconds", s=measured.start_s)
    report.add("memory after it", f"{memory_mib:,.0f} MiB", "payloads on disk", mib=memory_mib)
    report.show()


def _fill(address: str, count: int, size: int) -> None:
    payload = b"x" * size
    batch = [
        fila.EnqueueMessage("backlog", None, payload, fairness_key=f"tenant-{n % 100}")
        for n in range(BATCH)
    ]
    with fila.Client(address, timeout=60) as client:
        client.create_queue("backlog")
        for _ in range(count // BATCH):
            client.enqueue_many(batch)


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20
