# SPDX-License-Identifier: AGPL-3.0-only
"""The machine: open files, file size, memory and the clock. Reads them and changes nothing."""

import resource
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from fila_server.config import Config
from fila_server.doctor.finding import CRITICAL, OK, WARNING, Finding
from fila_server.limits import MIB
from fila_server.runtime.descriptors import share

# The interpreter, gRPC and RocksDB with nothing in them.
_BASE_BYTES = 160 * MIB
# What RocksDB may fill before writers have to wait: three buffers in each of two busy columns.
_BUFFERS = 6
# Fila's first release, and a time by which wall times no longer fit.
_YEARS = range(2026, 2200)
# Wall and monotonic time drift apart by parts per million; more than this in a blink is a step.
_BLINK_S = 0.05
_STEP_S = 1.0


def limits(config: Config) -> Iterator[Finding]:
    """What the system lets a process have."""
    # The broker raises the soft limit to the hard one by itself.
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = config.limits.max_connections
    if files == resource.RLIM_INFINITY or share(files, wanted) >= wanted:
        count = "any number of" if files == resource.RLIM_INFINITY else f"{files:,}"
        yield Finding("open_files", OK, f"{count} open files are allowed")
    else:
        yield Finding(
            "open_files",
            WARNING,
            f"{files:,} open files are allowed, which leaves room for {share(files, wanted):,} "
            f"connections, not limits.max_connections ({wanted:,})",
            "raise the hard limit (ulimit -Hn, LimitNOFILE in a systemd unit, --ulimit nofile in "
            "a container), or lower limits.max_connections",
        )
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    if largest != resource.RLIM_INFINITY:
        yield Finding(
            "file_size",
            WARNING,
            f"files may not grow beyond {largest // MIB:,} MiB, and the store stops at that",
            "lift the limit: ulimit -f unlimited, or LimitFSIZE=infinity in a systemd unit",
        )


def memory(config: Config) -> Finding:
    """Whether what the settings allow fits into what the machine, or its container, has."""
    needed = (
        _BASE_BYTES
        + config.scheduler.hot_bytes
        + config.scheduler.inbox_bytes
        + config.storage.block_cache_bytes
        + _BUFFERS * config.storage.write_buffer_bytes
    )
    there = _memory_bytes()
    if there is None:
        return Finding("memory", OK, f"the settings allow up to {needed // MIB:,} MiB")
    if needed <= there:
        text = f"{there // MIB:,} MiB, and the settings allow up to {needed // MIB:,} MiB"
        return Finding("memory", OK, text)
    return Finding(
        "memory",
        WARNING,
        f"{there // MIB:,} MiB, but the settings allow up to {needed // MIB:,} MiB: a backlog may "
        f"get the broker killed",
        "lower scheduler.hot_bytes, scheduler.inbox_bytes or storage.write_buffer_bytes, or give "
        "it more memory",
    )


def _memory_bytes() -> int | None:
    """What is there for this process: the machine's, or less in a container."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(it.split()[1]) * 1024 for it in lines if it.startswith("MemTotal:")]
    except OSError:
        pass
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            found.append(int(text))
    return min(found, default=None)


def clock(newest: float | None) -> Iterator[Finding]:
    """Whether the wall clock can be believed; `newest` is when the store was last written."""
    year = datetime.now(UTC).year
    if year not in _YEARS:
        yield Finding(
            "clock",
            CRITICAL,
            f"the clock says it is the year {year}",
            "set it (timedatectl set-ntp true, or chronyd): times to live, delays and API keys "
            "follow it",
        )
        return
    wall, steady = time.time(), time.monotonic()
    time.sleep(_BLINK_S)
    step = (time.time() - wall) - (time.monotonic() - steady)
    if abs(step) > _STEP_S:
        yield Finding(
            "clock",
            WARNING,
            f"the wall clock moved by {step:.1f} s while nobody looked",
            "find out what sets it; a clock should be slewed, not stepped (chronyd, systemd-"
            "timesyncd)",
        )
    elif newest is not None and newest > time.time() + _STEP_S:
        ahead = newest - time.time()
        yield Finding(
            "clock",
            WARNING,
            f"the store was last written {ahead:,.0f} s in the future: the clock was set back",
            "set the clock right; leases and limits do not follow it, delays and times to live "
            "that were stored do",
        )
    else:
        yield Finding("clock", OK, f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC")
