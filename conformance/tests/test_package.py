# SPDX-License-Identifier: AGPL-3.0-only
"""The suite as a stranger gets it: a wheel in an environment of its own, far from the checkout."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from fila_conformance.layout import EXAMPLES, ROOT

# Environments are made over a network, brokers are started, and machines are busy.
pytestmark = pytest.mark.timeout(1200)
_TIMEOUT_S = 1000
_GUIDE = ROOT / "docs" / "guides" / "write-a-client.md"
_EXAMPLE_LINES_MAX = 300


@dataclass(frozen=True)
class Installed:
    """An environment with the suite, and a folder that holds nothing but a client."""

    bin: Path
    folder: Path

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        # The broker is found beside the command.
        environment["PATH"] = f"{self.bin}{os.pathsep}{environment.get('PATH', '')}"
        return subprocess.run(
            [str(self.bin / "fila-conformance"), *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )

    def driver(self, old: str = "", new: str = "") -> str:
        """The command of the small client's driver, with one thing in it changed."""
        text = (EXAMPLES / "small_client.py").read_text()
        assert text.count(old) == 1 or not old
        (self.folder / "client.py").write_text(text.replace(old, new) if old else text)
        return f"{self.bin / 'python'} client.py"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("stranger")
    wheels, environment = folder / "wheels", folder / "environment"
    for package in ("sdks/python", "server", "conformance"):
        _made("-m", "build", "--wheel", "--outdir", str(wheels), str(ROOT / package))
    _made("-m", "venv", str(environment))
    constraints = str(ROOT / "tools" / "constraints.txt")
    install = ("-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", constraints)
    python = str(environment / "bin" / "python")
    _made(*install, "--find-links", str(wheels), "fila-conformance", python=python)
    empty = folder / "client"
    empty.mkdir()
    return Installed(environment / "bin", empty)


def _made(*arguments: str, python: str = sys.executable) -> None:
    done = subprocess.run(
        [python, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{arguments}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def test_a_small_client_conforms_to_core(installed: Installed) -> None:
    done = installed.run("--driver", installed.driver(), "--json", "report.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"small 1 .* conforms at level core: \d+ passed, 0 failed", done.stdout)
    (subject,) = json.loads((installed.folder / "report.json").read_text())["subjects"].values()
    verdicts = {case["verdict"] for case in subject["cases"].values()}
    assert len(subject["cases"]) > 50 and verdicts <= {"pass", "not-applicable"}
    assert {case["level"] for case in subject["cases"].values()} == {"core"}


def test_a_client_with_a_defect_does_not(installed: Installed) -> None:
    driver = installed.driver("about.attempt_count,", "about.attempt_count + 1,")
    done = installed.run("--driver", driver, "--run", "attempts")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAIL client attempts/nack-with-empty-error" in done.stdout
    assert "does not conform at level core in what was run: 0 passed, 2 failed" in done.stdout


def test_an_op_that_is_missing_is_told(installed: Installed) -> None:
    driver = installed.driver()
    arguments = ("--level", "full", "--run", "admin/invalid-name", "--run", "operating")
    done = installed.run("--driver", driver, *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the driver does not support it: there is no create_queue here" in done.stdout
    assert re.search(r"not applicable, by the feature it lacks: admin \d+", done.stdout)


def test_a_driver_that_does_not_start_says_why(installed: Installed) -> None:
    (installed.folder / "client.py").write_text("raise SystemExit('no such luck')\n")
    done = installed.run("--driver", f"{installed.bin / 'python'} client.py")
    assert done.returncode == 2
    assert "no such luck" in done.stderr and "Traceback" not in done.stderr
    done = installed.run("--driver", "no-such-driver")
    assert done.returncode == 2 and "cannot start no-such-driver" in done.stderr


def test_a_broker_may_be_named(installed: Installed) -> None:
    driver = installed.driver()
    arguments = ("--driver", driver, "--run", "lifecycle/defaults-of-a-bare-message")
    done = installed.run(*arguments, "--server", str(installed.bin / "fila-server"))
    assert done.returncode == 0, done.stdout + done.stderr
    done = installed.run(*arguments, "--server", "no-such-broker")
    assert done.returncode != 0 and "no-such-broker" in done.stdout + done.stderr


def test_what_a_level_asks_for_is_listed(installed: Installed) -> None:
    core = installed.run("--list").stdout.splitlines()
    full = installed.run("--list", "--level", "full").stdout.splitlines()
    assert 0 < len(core) < len(full) and all(" (core): " in line for line in core)
    assert "# The driver protocol" in installed.run("--protocol").stdout
    usage = installed.run()
    assert usage.returncode == 2 and "--driver" in usage.stderr


def test_the_guide_shows_the_example_as_it_is() -> None:
    example = (EXAMPLES / "small_client.py").read_text()
    assert len(example.splitlines()) < _EXAMPLE_LINES_MAX
    blocks = re.findall(r"^```python\n(.*?)^```", _GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    for block in blocks:
        # What a block leaves out is marked.
        for part in block.split("...\n"):
            assert part.strip("\n") in example, part
