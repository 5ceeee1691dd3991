# SPDX-License-Identifier: AGPL-3.0-only
"""The processor time of a broker is that of its whole tree of processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.peers.processes import (
    Process,
    child,
    cpu_s,
    free_port,
    is_listening,
    parse_stat,
    tree,
    wait_until,
)

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
# Burns through a child that ends, says so, and waits to be told to go.
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {BURN!r}])
print("burnt", flush=True)
sys.stdin.read()
"""


def _stat(pid: int, parent: int, ticks: tuple[int, int, int, int], name: str = "beam") -> str:
    before = "0 " * 9
    return f"{pid} ({name}) S {parent} {before}{' '.join(map(str, ticks))} 20 0 1 0"


def test_time_of_ended_children_is_read() -> None:
    assert parse_stat(_stat(7, 1, (10, 5, 3, 2))) == Process(7, 1, 5)


def test_name_of_a_process_may_hold_anything() -> None:
    assert parse_stat(_stat(7, 1, (10, 5, 1, 0), "a) S 99 (b")) == Process(7, 1, 1)


def test_descendants_count_once_and_neighbours_do_not() -> None:
    processes = [
        *(Process(1, 0, 0), Process(10, 1, 0), Process(11, 10, 0)),
        *(Process(12, 11, 0), Process(20, 1, 0)),
    ]
    assert {process.pid for process in tree(processes, [10])} == {10, 11, 12}
    assert sorted(process.pid for process in tree(processes, [10, 11])) == [10, 11, 12]
    assert {process.pid for process in tree(processes, [12, 20])} == {12, 20}


def test_time_of_a_real_process_is_counted() -> None:
    before_s, own_s = cpu_s([os.getpid()]), time.process_time()
    while time.process_time() < own_s + 0.05:
        pass
    assert cpu_s([os.getpid()]) - before_s >= 0.05


def test_time_of_a_real_child_that_ended_is_counted() -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        spent_s = cpu_s([process.pid])
    assert spent_s >= 0.3


def test_program_that_ends_at_once_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", "raise SystemExit('no such option')"]
    with (
        child(command, log) as process,
        pytest.raises(RuntimeError, match="no such option"),
    ):
        wait_until(lambda: False, process, log)


def test_child_is_gone_after_its_block(tmp_path: Path) -> None:
    port = free_port()
    serve = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    log = tmp_path / "log"
    with child(serve, log) as process:
        wait_until(lambda: is_listening(port), process, log)
    assert process.poll() is not None
    assert not is_listening(port)
