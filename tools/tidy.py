# SPDX-License-Identifier: AGPL-3.0-only
"""Hold the tree to its house style: `python -m tools.tidy`, or `nox -s tidy`.

Prints one line per problem, `path:line: rule: what to do`, and exits 1 if there are any. A line
that has a reason to break a rule says `tidy: allow <rule>`.
"""

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tools import llms
from tools.checks import (
    attributes,
    glossary,
    imports,
    manifests,
    markdown,
    packages,
    python,
    sdks,
    text,
)
from tools.checks.tree import Problem, Tree

CHECKS: tuple[Callable[[Tree], Iterable[Problem]], ...] = (
    text.check,
    attributes.check,
    python.check,
    imports.check,
    markdown.check,
    glossary.check,
    manifests.check,
    packages.check,
    sdks.check,
    llms.check,
)


def problems(tree: Tree) -> list[Problem]:
    """Return what breaks a rule and is not excused on its own line, in the order of the files."""
    found = (problem for check in CHECKS for problem in check(tree))
    return sorted(problem for problem in found if not is_allowed(tree, problem))


def is_allowed(tree: Tree, problem: Problem) -> bool:
    lines = tree.lines(problem.path) if problem.path in tree else []
    line = lines[problem.line - 1] if problem.line <= len(lines) else ""
    return f"tidy: allow {problem.rule}" in line


def main() -> int:
    parser = argparse.ArgumentParser(prog="tidy", description="Hold the tree to its house style.")
    parser.add_argument("paths", nargs="*", help="report only problems under these paths")
    wanted = tuple(parser.parse_args().paths)
    tree = Tree.of_checkout(Path(__file__).parent.parent)
    found = [problem for problem in problems(tree) if problem.path.startswith(wanted or "")]
    for problem in found:
        print(problem)
    print(f"tidy: {len(tree.paths())} files, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
