# SPDX-License-Identifier: AGPL-3.0-only
"""An SDK of long ago against the broker of today: what worked goes on working.

old/ has the Python SDK 0.1.0 as it was at commit c7b33e5, the first whose contract has the field
numbers of now (`git archive c7b33e5 sdks/python`, then `python -m build --wheel`), and the driver
of its time (541af8f). Strangers' drivers are not rewritten with ours, so the protocol only grows.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fila_conformance.layout import CONFORMANCE, ROOT

pytestmark = pytest.mark.timeout(1200)
_TIMEOUT_S = 1000
OLD = CONFORMANCE / "old"

# Cases of what it could not do yet: it keeps no leases, repeats no settlement, and knows no
# `dead_letter` and no `extend_leases`.
NOT_YET = frozenset(
    {
        "attempts/hopeless-message-is-a-dead-letter-at-once",
        "leases/broker-without-grants-extends-message-by-message",
        "leases/extension-is-tried-again",
        "leases/frames-are-extended-by-their-tokens",
        "leases/leases-outlive-their-stream",
        "leases/lost-frame-is-not-handed-out",
        "leases/nothing-is-handed-out-after-its-lease",
        "leases/slow-reader-gets-no-message-twice",
        "leases/what-expired-is-not-handed-out",
        "reconnect/ack-whose-answer-was-lost-succeeds",
        "reconnect/frame-whose-answer-was-lost-is-acked",
        "reconnect/nack-whose-answer-was-lost-succeeds",
        "reconnect/settlements-outlast-a-restart",
        "retries/repeat-that-finds-nothing-succeeded-before",
        "retries/repeated-ack-whose-lease-ended-fails",
        "retries/settlement-with-its-token-is-sent-again",
        "retries/settling-again-ends-with-the-deadline",
    }
)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the old SDK."""
    folder = tmp_path_factory.mktemp("old")
    (wheel,) = OLD.glob("fila_client-*.whl")
    constraints = str(ROOT / "tools" / "constraints.txt")
    found = folder / "bin" / "python"
    for command in (
        (sys.executable, "-m", "venv", str(folder)),
        (
            *(str(found), "-m", "pip", "install", "-q", "--disable-pip-version-check"),
            *("-c", constraints, str(wheel), "opentelemetry-sdk"),
        ),
    ):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return found


@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_an_old_sdk_does_what_it_did(python: Path, tmp_path: Path, flavour: str) -> None:
    report = tmp_path / "report.json"
    driver = f"{python} {OLD / 'driver.py'} {flavour}"
    arguments = ("--driver", driver, "--level", "recommended", "--json", str(report))
    done = subprocess.run(
        [sys.executable, "-m", "fila_conformance.command", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CONFORMANCE)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    (subject,) = json.loads(report.read_text())["subjects"].values()
    outcomes = {name: case["verdict"] for name, case in subject["cases"].items()}
    assert {name for name, verdict in outcomes.items() if verdict == "fail"} <= NOT_YET
    assert set(outcomes.values()) <= {"pass", "fail", "not-applicable"}, done.stdout
