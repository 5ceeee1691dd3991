# SPDX-License-Identifier: AGPL-3.0-only
"""Rules for pages: one title, links that lead somewhere, no page that nothing leads to.

Also the parser's face for the other modules that read Markdown.
"""

import posixpath
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tools.checks.tree import Problem, Tree

DOCS_INDEX = "docs/README.md"
README_LINES_MAX = {"README.md": 150}
SDK_README_LINES_MAX = 250
HOST = "https://github.com/faiscadev/fila"

_SDK_README = re.compile(r"sdks/\w+/README\.md")
_ON_HOST = re.compile(re.escape(HOST) + r"/(?:blob|tree)/main(?:/|$)")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
_NOT_IN_SLUGS = re.compile(r"[^\w\- ]")


class Inline(NamedTuple):
    """The first line of a run of text, and the tokens in it."""

    line: int
    tokens: list[Token]


class Link(NamedTuple):
    """Where a link on `line` leads, as written."""

    target: str
    line: int


@lru_cache(maxsize=256)
def parse(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def inlines(text: str) -> Iterator[Inline]:
    line = 1
    for token in parse(text):
        if token.map:
            line = token.map[0] + 1
        if token.type == "inline":
            yield Inline(line, token.children or [])


def links(text: str) -> Iterator[Link]:
    for line, tokens in inlines(text):
        here = line
        for token in tokens:
            if token.type in {"softbreak", "hardbreak"}:
                here += 1
            target = token.attrGet("href") or token.attrGet("src")
            if isinstance(target, str):
                yield Link(target, here)


def slugs(text: str) -> set[str]:
    """Return the anchors that a code host gives to the headings of a page."""
    found: set[str] = set()
    tokens = parse(text)
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            title = "".join(token.content for token in inline.children or [])
            slug = _NOT_IN_SLUGS.sub("", title.lower()).replace(" ", "-")
            count = sum(other == slug or other.startswith(slug + "-") for other in found)
            found.add(slug if slug not in found else f"{slug}-{count}")
    return found


def check(tree: Tree) -> Iterator[Problem]:
    for path, text in tree.written(".md"):
        yield from lengths(path, text)
        yield from titles(path, text)
        for link in links(text):
            if advice := broken(tree, path, link.target):
                yield Problem(path, link.line, "link", advice)
    yield from orphans(tree)


def lengths(path: str, text: str) -> Iterator[Problem]:
    limit = SDK_README_LINES_MAX if _SDK_README.fullmatch(path) else README_LINES_MAX.get(path)
    count = len(text.splitlines())
    if limit and count > limit:
        advice = f"{count} lines; move detail to docs/, this page has at most {limit}"
        yield Problem(path, 1, "readme-lines", advice)


def titles(path: str, text: str) -> Iterator[Problem]:
    found = [
        token.map[0] + 1
        for token in parse(text)
        if token.type == "heading_open" and token.tag == "h1" and token.map
    ]
    if not found:
        yield Problem(path, 1, "one-h1", "give the page a title: one `# ` heading")
    for line in found[1:]:
        yield Problem(path, line, "one-h1", "a page has one title; make this heading `## `")


def broken(tree: Tree, path: str, target: str) -> str | None:
    """Return what is wrong with a link from `path`, or None. The code host shows this tree; other
    sites are not visited.
    """
    on_host = _ON_HOST.match(target)
    if on_host:
        path, target = "", target[on_host.end() :] or "."
    if _SCHEME.match(target):
        return None
    if target.startswith("/"):
        return f"{target} depends on where the tree is served; link relative to this page"
    name, _, anchor = unquote(target).partition("#")
    page = posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) if name else path
    if page == ".":
        return None
    if page not in tree:
        return None if tree.has_folder(page) else f"{target} leads nowhere; {page} does not exist"
    if anchor and page.endswith(".md") and anchor not in slugs(tree.text(page) or ""):
        return f"{page} has no heading #{anchor}"
    return None


def orphans(tree: Tree) -> Iterator[Problem]:
    """Every page of docs/ can be reached from its index by clicking."""
    if DOCS_INDEX not in tree:
        return
    reached = {DOCS_INDEX}
    waiting = [DOCS_INDEX]
    while waiting:
        page = waiting.pop()
        for link in links(tree.text(page) or ""):
            name = link.target.partition("#")[0]
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), name))
            if target.endswith(".md") and target in tree and target not in reached:
                reached.add(target)
                waiting.append(target)
    for path in tree.paths(".md"):
        if path.startswith("docs/") and path not in reached:
            yield Problem(path, 1, "docs-index", f"nothing leads here; link it from {DOCS_INDEX}")
