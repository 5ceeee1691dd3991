# SPDX-License-Identifier: AGPL-3.0-only
"""The rules that hold several files together."""

import pytest

from tools.checks import manifests
from tools.checks.tree import Problem, Tree

SERVER = '[project]\nversion = "1.2.3"\ndependencies = ["fila-client==1.2.3", "grpcio>=1"]\n'
COMMAND = "python3 -m venv .venv && .venv/bin/nox"


def found(files: dict[str, str]) -> list[Problem]:
    return list(manifests.check(Tree.of_texts(files)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("sdks/python/pyproject.toml", '[project]\nversion = "{}"\n'),
        ("sdks/js/package.json", '{{"version": "{}"}}'),
        ("sdks/rust/Cargo.toml", '[package]\nversion = "{}"\n'),
        ("sdks/ruby/lib/fila/version.rb", 'module Fila\n  VERSION = "{}"\nend\n'),
        ("sdks/java/pom.xml", "<artifactId>fila-client</artifactId>\n<version>{}</version>"),
        ("sdks/python/src/fila/__init__.py", '__version__ = "{}"\n'),
    ],
)
def test_every_manifest_states_the_same_version(path: str, text: str) -> None:
    assert not found({"server/pyproject.toml": SERVER, path: text.format("1.2.3")})
    problems = found({"server/pyproject.toml": SERVER, path: text.format("1.2.4")})
    assert {problem.rule for problem in problems} == {"versions"}


def test_a_pin_on_our_own_package_counts() -> None:
    text = SERVER.replace("client==1.2.3", "client==1.2.2")
    assert [problem.rule for problem in found({"server/pyproject.toml": text})] == ["versions"]


def test_a_manifest_of_settings_has_no_version() -> None:
    assert not found({"pyproject.toml": "[tool.ruff]\n", "server/pyproject.toml": SERVER})


def test_ci_runs_the_command_of_the_readme() -> None:
    readme = f"# Fila\n\n```sh\n{COMMAND}\n```\n"
    assert not found({"README.md": readme, ".ci/run": f"set -e\n{COMMAND}\n"})
    assert [problem.path for problem in found({"README.md": readme, ".ci/run": "nox\n"})] == [
        ".ci/run"
    ]
    assert [problem.path for problem in found({"README.md": "# Fila\n", ".ci/run": COMMAND})] == [
        "README.md"
    ]
