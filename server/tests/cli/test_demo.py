# SPDX-License-Identifier: AGPL-3.0-only
"""`fila demo`: the real thing for a few seconds, and its arithmetic without a broker."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from fila_server.cli.demo.load import tenants
from fila_server.cli.demo.score import Record, Tenant, Waits, percentiles
from fila_server.cli.shares import entitlements

from .conftest import COMMAND, Answer, clean_environment


def run_demo(temp: Path, *arguments: str) -> Answer:
    done = subprocess.run(
        [*COMMAND, "demo", *arguments],
        env=clean_environment(TMPDIR=str(temp)),
        capture_output=True,
        timeout=90,
    )
    return Answer(done.returncode, done.stdout, done.stderr.decode())


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answer, Path]:
    temp = tmp_path_factory.mktemp("demo")
    return run_demo(temp, "--seconds", "5", "--tenants", "5", "--json"), temp


def test_demo_measures_fair_shares(measured: tuple[Answer, Path]) -> None:
    document = measured[0].json()
    assert 4.0 < document["seconds"] < 8.0
    assert document["delivered"] > 500
    assert [row["tenant"] for row in document["tenants"]] == [
        "noisy",
        "premium",
        "quiet-1",
        "quiet-2",
        "quiet-3",
    ]
    assert sum(row["delivered"] for row in document["tenants"]) == document["delivered"]
    assert document["largest_share_error"] < 0.05
    waited, fifo = document["quiet_wait"], document["quiet_wait_if_fifo_computed"]
    assert waited["p50_ms"] < fifo["p50_ms"] / 2


def test_demo_leaves_nothing_behind(measured: tuple[Answer, Path]) -> None:
    assert measured[0].code == 0
    assert measured[0].err == ""
    assert list(measured[1].iterdir()) == []


def test_demo_in_a_pipe_prints_a_line_a_second_and_a_summary(tmp_path: Path) -> None:
    text = run_demo(tmp_path, "--seconds", "3").ok()
    lines = text.splitlines()
    assert lines[0].startswith("Starting a broker; 6 tenants share one queue for 3 s")
    assert [line[:5] for line in lines[1:4]] == ["  1 s", "  2 s", "  3 s"]
    assert "\x1b" not in text
    assert "TENANT" in text
    assert any(line.startswith("Quiet tenants waited ") for line in lines)
    assert "computed from the same arrivals and deliveries" in text
    assert '"premium" (weight 3) got ' in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_demo_says_what_it_saw_and_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        [*COMMAND, "demo", "--seconds", "60"],
        env=clean_environment(TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    for _ in range(3):  # it has begun, and two seconds of it are over
        process.stdout.readline()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 1
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, b"")
    assert b"\nTENANT " in out and b"\nQuiet tenants waited " in out
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(children[0]), 0)


@pytest.mark.parametrize(
    ("total", "wanted", "weights", "expected"),
    [
        (100, [200, 200], [1, 1], [50, 50]),
        (100, [200, 200], [1, 3], [25, 75]),
        (100, [200, 10], [1, 1], [90, 10]),
        (100, [200, 200, 10], [1, 3, 1], [22.5, 67.5, 10]),
        (100, [30, 30], [1, 3], [30, 30]),
        (0, [5, 5], [1, 1], [0, 0]),
        (10, [0, 0], [1, 1], [0, 0]),
    ],
)
def test_entitlements(
    total: int, wanted: list[int], weights: list[int], expected: list[float]
) -> None:
    assert entitlements(total, wanted, weights) == pytest.approx(expected)


def test_percentiles() -> None:
    assert percentiles([]) is None
    assert percentiles([3.0]) == Waits(3.0, 3.0)
    assert percentiles([float(n) for n in range(101)]) == Waits(50.0, 95.0)


def test_fifo_waits_follow_from_arrivals_and_deliveries() -> None:
    record = Record([Tenant("noisy", 1, 100, False), Tenant("quiet", 1, 1, True)])
    # Four noisy messages and then a quiet one arrive at once; one delivery a second.
    for tenant in (0, 0, 0, 0, 1):
        record.arrive(tenant, 0.0)
    # The quiet one overtook: second instead of fifth. Only three were delivered.
    for second, place in enumerate((0, 4, 1), start=1):
        record.deliver(place, float(second))
    assert record.quiet_waits() == Waits(2.0, 2.0)
    # Its FIFO place is the fifth delivery: two beyond the third, at one a second.
    assert record.quiet_fifo_waits() == Waits(5.0, 5.0)
    assert (record.backlog, record.quiet_backlog) == (2, 0)


def test_a_redelivery_counts_once() -> None:
    record = Record([Tenant("t", 1, 1, True)])
    place = record.arrive(0, 0.0)
    record.deliver(place, 1.0)
    record.deliver(place, 9.0)
    (score,) = record.scores()
    assert (score.delivered, score.share, score.waits) == (1, 1.0, Waits(1.0, 1.0))


def test_the_tenants_of_the_demo() -> None:
    assert [tenant.name for tenant in tenants(4)] == ["noisy", "premium", "quiet-1", "quiet-2"]
    noisy, premium, *quiet = tenants(4)
    assert noisy.per_second == 50 * quiet[0].per_second
    assert premium.weight == 3
