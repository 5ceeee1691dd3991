# SPDX-License-Identifier: AGPL-3.0-only
"""Brokers as child processes: free ports, waiting until one answers, processor time, and an end.

A broker may be several processes; the time of all of them counts, that of children which have
ended as well. Nothing here is ended by name, only by the id of what was started here.
"""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS_MAX = 90  # RabbitMQ takes ten on two idle cores
STOP_SECONDS_MAX = 20
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """A line of /proc/PID/stat: who, whose child, and the ticks of its children that have ended."""

    pid: int
    parent: int
    ended_ticks: int


def parse_stat(line: str) -> Process:
    """Read a line of /proc/PID/stat; the name in it may hold spaces and parentheses."""
    head, _, tail = line.rpartition(")")
    words = tail.split()
    return Process(int(head.split()[0]), int(words[1]), int(words[13]) + int(words[14]))


def tree(processes: Sequence[Process], roots: Sequence[int]) -> list[Process]:
    """These processes and all that descend from them, each once."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    waiting = [process for process in processes if process.pid in roots]
    found: dict[int, Process] = {}
    while waiting:
        process = waiting.pop()
        if process.pid not in found:
            found[process.pid] = process
            waiting += children.get(process.pid, [])
    return list(found.values())


def cpu_s(roots: Sequence[int]) -> float:
    """The processor time so far of these processes and their descendants."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append(parse_stat((entry / "stat").read_text()))
            except (FileNotFoundError, ProcessLookupError):
                pass  # it ended between the listing and the look
    return sum(
        _own_s(process.pid) + process.ended_ticks / TICKS_PER_SECOND
        for process in tree(found, roots)
    )


def _own_s(pid: int) -> float:
    """By the clock that Linux keeps for a process: nanoseconds, where /proc has ticks of 10 ms."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0  # it has ended


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def child(
    command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with its output in a file, in this environment unless another is given; it is
    told to end, and after a while made to.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            env=environment,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the program is ready. Raises RuntimeError, with its last words, if it is not."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        if ready():
            return
        time.sleep(0.05)
    words = log.read_text(errors="replace")[-2000:]
    raise RuntimeError(f"{process.args!r} did not become ready; its last words:\n{words}")


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
