# SPDX-License-Identifier: AGPL-3.0-only
"""llms.txt: the map of the docs for language models, made from docs/README.md.

The index is a list of links under headings; llms.txt is the same list with paths from the root,
under a fixed introduction. `python -m tools.llms` writes it, `nox -s tidy` checks that it is fresh.
"""

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.checks.markdown import DOCS_INDEX
from tools.checks.tree import Problem, Tree

TARGET = "llms.txt"
INTRODUCTION = """\
# Fila

> Fila is a message broker in which fair scheduling and per-key throttling are first-class: a noisy
> tenant cannot starve a quiet one, and a consumer never receives a message that some provider's
> rate limit would make it refuse.

One Python process (`fila-server`) on an embedded store, a gRPC contract (`proto/fila/v1`), a
command line (`fila`) and a Python SDK (`import fila`). Delivery is at least once.

## Start

- [README](README.md): what it is for, how to run it, what is guaranteed
- [Contributing](CONTRIBUTING.md): the commands, the rules, decision records
- [Changelog](CHANGELOG.md): what changed
"""
_ITEM = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<target>[^)#]+)\)(?P<rest>.*)$")


def render(index: str) -> str:
    """Return the text of llms.txt for the text of the docs index."""
    lines = [INTRODUCTION]
    heading = ""
    for line in index.splitlines():
        if line.startswith("## "):
            heading = line
        elif item := _ITEM.match(line):
            if heading:
                lines += [heading, ""] if lines[-1] is INTRODUCTION else ["", heading, ""]
                heading = ""
            path = posixpath.normpath(posixpath.join(posixpath.dirname(DOCS_INDEX), item["target"]))
            lines.append(f"- [{item['title']}]({path}){item['rest']}")
    return "\n".join(lines) + "\n"


def check(tree: Tree) -> Iterator[Problem]:
    if DOCS_INDEX not in tree or TARGET not in tree:
        return
    if tree.text(TARGET) != render(tree.text(DOCS_INDEX) or ""):
        advice = f"{DOCS_INDEX} has changed; run `python -m tools.llms`"
        yield Problem(TARGET, 1, "llms-fresh", advice)


def main() -> int:
    root = Path(__file__).parent.parent
    (root / TARGET).write_text(render((root / DOCS_INDEX).read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
