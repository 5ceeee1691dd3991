# SPDX-License-Identifier: AGPL-3.0-only
"""The rule for .gitattributes: code hosts fold what was generated, so it names all of that."""

import re
from collections.abc import Iterator

from tools.checks.tree import Problem, Tree

ATTRIBUTES = ".gitattributes"
GENERATED = "linguist-generated=true"


def check(tree: Tree) -> Iterator[Problem]:
    lines = tree.lines(ATTRIBUTES) if ATTRIBUTES in tree else []
    patterns = [matcher(words[0]) for line in lines if GENERATED in (words := line.split())]
    for path in tree.paths():
        if tree.is_generated(path) and not any(pattern.fullmatch(path) for pattern in patterns):
            yield Problem(path, 1, "attributes", f"say {GENERATED} of it in {ATTRIBUTES}")


def matcher(pattern: str) -> re.Pattern[str]:
    """Return what matches the paths that git matches with a pattern of stars and slashes."""
    anywhere = "" if "/" in pattern else "(?:.*/)?"
    text = re.escape(pattern.removeprefix("/"))
    return re.compile(anywhere + text.replace(r"\*\*", ".*").replace(r"\*", "[^/]*"))
