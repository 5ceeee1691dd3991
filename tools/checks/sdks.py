# SPDX-License-Identifier: AGPL-3.0-only
"""Rules for the SDKs: the same page and the same examples in every language."""

import posixpath
from collections.abc import Iterator

from tools.checks.markdown import parse
from tools.checks.tree import Problem, Tree

HEADINGS = [
    "Install",
    "Quickstart",
    "Connect",
    "Produce",
    "Consume",
    "Errors",
    "Tracing",
    "Develop",
]
EXAMPLES = {"quickstart", "worker", "batch", "secure", "tracing"}


def check(tree: Tree) -> Iterator[Problem]:
    languages = sorted({path.split("/")[1] for path in tree.paths() if path.startswith("sdks/")})
    for language in languages:
        yield from readme(tree, language)
        yield from examples(tree, language)


def readme(tree: Tree, language: str) -> Iterator[Problem]:
    path = f"sdks/{language}/README.md"
    if path not in tree:
        yield Problem(path, 1, "sdk-readme", "write the page that every SDK has")
        return
    tokens = parse(tree.text(path) or "")
    found = [
        tokens[at + 1].content
        for at, token in enumerate(tokens)
        if token.type == "heading_open" and token.tag == "h2"
    ]
    if found != HEADINGS:
        advice = f"the headings are {', '.join(HEADINGS)}, in this order; found {', '.join(found)}"
        yield Problem(path, 1, "sdk-readme", advice)


def examples(tree: Tree, language: str) -> Iterator[Problem]:
    folder = f"sdks/{language}/examples/"
    names = {
        posixpath.splitext(path.removeprefix(folder).split("/")[0])[0].lower()
        for path in tree.paths()
        if path.startswith(folder)
    }
    for name in sorted(EXAMPLES - names):
        yield Problem(folder, 1, "sdk-examples", f"the example {name} is missing")
