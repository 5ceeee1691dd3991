# SPDX-License-Identifier: AGPL-3.0-only
"""Rules that hold several files together: one version, and one command that tests the tree."""

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any, NamedTuple

from tools.checks.tree import Problem, Tree

README = "README.md"
CI = ".ci/run"

_POM_VERSION = re.compile(r"<artifactId>fila-[^<]+</artifactId>\s*<version>([^<]+)</version>")
_RUBY_VERSION = re.compile(r"\bVERSION\s*=\s*[\"']([^\"']+)[\"']")
_PYTHON_VERSION = re.compile(r"^__version__\s*=\s*[\"']([^\"']+)[\"']", re.MULTILINE)
_OWN_PIN = re.compile(r"^fila-[a-z]+==([^;\s]+)")
_TEST_COMMAND = re.compile(r"^python3 .*\bnox$", re.MULTILINE)


class Stated(NamedTuple):
    """A version that a manifest claims for something of ours."""

    path: str
    version: str


def check(tree: Tree) -> Iterator[Problem]:
    yield from one_version(tree)
    yield from one_test_command(tree)


def one_version(tree: Tree) -> Iterator[Problem]:
    stated = [entry for path, text in tree.written() for entry in versions(path, text)]
    if not stated:
        return
    first = stated[0]
    for path, version in stated[1:]:
        if version != first.version:
            advice = f"says {version}, {first.path} says {first.version}; one version everywhere"
            yield Problem(path, 1, "versions", advice)


def versions(path: str, text: str) -> Iterator[Stated]:
    """Yield every version of ours that a file states, its own and those it pins."""
    name = path.rpartition("/")[2]
    if name == "pyproject.toml":
        project: dict[str, Any] = tomllib.loads(text).get("project", {})
        found = [project["version"]] if "version" in project else []
        pins = (_OWN_PIN.match(wanted) for wanted in project.get("dependencies", []))
        found += [pin[1] for pin in pins if pin]
    elif name == "Cargo.toml":
        package = tomllib.loads(text).get("package", {}).get("version")
        found = [package] if isinstance(package, str) else []
    elif name == "package.json":
        package = json.loads(text).get("version")
        found = [package] if package else []
    elif name == "pom.xml":
        found = _POM_VERSION.findall(text)[:1]
    elif name == "version.rb":
        found = _RUBY_VERSION.findall(text)
    elif name.endswith(".py") and "/src/" in path:
        found = _PYTHON_VERSION.findall(text)
    else:
        found = []
    for version in found:
        yield Stated(path, version)


def one_test_command(tree: Tree) -> Iterator[Problem]:
    """CI runs what the README promises, letter for letter."""
    if README not in tree or CI not in tree:
        return
    found = _TEST_COMMAND.search(tree.text(README) or "")
    if not found:
        yield Problem(README, 1, "test-command", "show the one command that runs the tests")
    elif found[0] not in tree.lines(CI):
        yield Problem(CI, 1, "test-command", f"run the README's command on a line: {found[0]}")
