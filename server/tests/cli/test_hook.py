# SPDX-License-Identifier: AGPL-3.0-only
"""`fila hook test`: what a script decides, without a broker."""

from pathlib import Path

import pytest

from .conftest import Fila

POLICY = """
function on_enqueue(msg)
  local plan = fila.get("plan:" .. msg.headers.tenant)
  return { fairness_key = msg.headers.tenant, weight = plan == "gold" and 5 or nil }
end

function on_failure(msg, err, attempts)
  if msg.fairness_key == "noisy" or #msg.throttle_keys > 1 then return { action = "dlq" } end
  return { action = "retry", delay_ms = attempts * 1000 + msg.payload_size }
end
"""


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "policy.lua"
    path.write_text(POLICY)
    return str(path)


def test_what_on_enqueue_decides(offline: Fila, policy: str) -> None:
    words = ("hook", "test", policy, "--header", "tenant=acme")
    shown = offline(*words, "--config", "plan:acme=gold").ok()
    lines = [line.split() for line in shown.splitlines()]
    assert lines[0][:3] == ["on_enqueue", "decided", "in"]
    assert ["fairness", "key", "acme"] in lines and ["weight", "5"] in lines
    decision = offline(*words, "--json").json()["on_enqueue"]["decision"]
    assert decision == {
        "fairness_key": "acme",
        "weight": 1,
        "throttle_keys": [],
        "throttle_cost": 1,
    }


@pytest.mark.parametrize(
    ("options", "decision"),
    [
        ((), {"action": "retry", "delay_ms": 1000}),
        (("--attempts", "3", "--payload-size", "7"), {"action": "retry", "delay_ms": 3007}),
        (("--key", "noisy"), {"action": "dlq", "delay_ms": 0}),
        (("--throttle-key", "a"), {"action": "retry", "delay_ms": 1000}),
        (("--throttle-key", "a", "--throttle-key", "b"), {"action": "dlq", "delay_ms": 0}),
    ],
)
def test_what_on_failure_decides(
    offline: Fila, policy: str, options: tuple[str, ...], decision: dict[str, object]
) -> None:
    words = ("hook", "test", policy, "--header", "tenant=acme", "--error", "boom", "--json")
    assert offline(*words, *options).json()["on_failure"]["decision"] == decision


def test_a_failure_names_the_file_and_the_line(offline: Fila, policy: str, tmp_path: Path) -> None:
    error = offline("hook", "test", policy).error()
    assert error.startswith(f'on_enqueue in "{policy}" failed at line 3: ')
    broken = tmp_path / "broken.lua"
    broken.write_text("function on_enqueue(")
    error = offline("hook", "test", str(broken)).error()
    assert error.startswith(f'"{broken}" cannot be used as a hook at line 1: ')
