# SPDX-License-Identifier: AGPL-3.0-only
"""Rules for what is published: each package brings its license, and its page reads well elsewhere.

A registry shows a package's README without the tree around it, and npm and Go leave symbolic links
out of packages. So licenses are copies, and links name the code host.
"""

import tomllib
from collections.abc import Iterator

from tools.checks.markdown import HOST, links
from tools.checks.tree import Problem, Tree

LICENSE = "LICENSE"


def check(tree: Tree) -> Iterator[Problem]:
    for folder in packages(tree):
        yield from license_copy(tree, folder)
        yield from page_links(tree, f"{folder}/README.md")


def packages(tree: Tree) -> list[str]:
    """Return the folders of all packages: every SDK, and every project of Python's."""
    sdks = {"/".join(path.split("/")[:2]) for path in tree.paths() if path.startswith("sdks/")}
    projects = {
        path.rpartition("/")[0]
        for path, text in tree.written("/pyproject.toml")
        if "project" in tomllib.loads(text)
    }
    return sorted(sdks | projects)


def license_copy(tree: Tree, folder: str) -> Iterator[Problem]:
    if LICENSE not in tree:
        return
    path = f"{folder}/{LICENSE}"
    if path not in tree or tree.text(path) != tree.text(LICENSE):
        yield Problem(path, 1, "license-copy", f"a package brings its license: copy {LICENSE} here")


def page_links(tree: Tree, path: str) -> Iterator[Problem]:
    if path not in tree:
        return
    for link in links(tree.text(path) or ""):
        if "://" not in link.target and not link.target.startswith("#"):
            advice = f"{link.target} leads nowhere from a registry; link to {HOST}/blob/main/..."
            yield Problem(path, link.line, "package-link", advice)
