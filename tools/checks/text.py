# SPDX-License-Identifier: AGPL-3.0-only
"""Rules for every file, whatever its language: sizes, unfinished work, names of one machine."""

import re
from collections.abc import Iterator

from tools.checks.tree import Problem, Tree

# What fits on half a screen, on one screen of a diff, and in one sitting.
LINE_COLUMNS_MAX = 100
MODULE_LINES_MAX = 500
# TigerBeetle's limit: a clone stays small for ever only if nothing big gets in once.
BLOB_BYTES_MAX = 256 * 1024

CODE_SUFFIXES = (
    *(".go", ".java", ".js", ".lua", ".proto", ".py", ".pyi", ".rb", ".rs", ".sh", ".ts"),
    *(".toml", ".yaml", ".yml", ".ci/run"),
)

# The brackets keep the patterns of this module from matching themselves.
UNFINISHED = re.compile(r"\b(FIX[M]E|TO[D]O|XX[X])\b")
MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:(?:work|root)(?![\w-])|(?:home|Users|tmp)/\w+)")

# Spelled in parts for the same reason.
REGISTRY_HOSTS = (
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("crates", "io"),
    ("npmjs", "org"),
    ("npmjs", "com"),
    ("proxy", "golang", "org"),
    ("sum", "golang", "org"),
    ("repo1", "maven", "org"),
    ("repo", "maven", "apache", "org"),
    ("rubygems", "org"),
    ("deb", "debian", "org"),
)
REGISTRY_HOST = re.compile(
    r"(?<![\w-])("
    + "|".join(re.escape(".".join(parts)) for parts in REGISTRY_HOSTS)
    + r")(?![\w-])"
)


def check(tree: Tree) -> Iterator[Problem]:
    yield from blob_sizes(tree)
    yield from code_sizes(tree)
    yield from words(tree)


def blob_sizes(tree: Tree) -> Iterator[Problem]:
    for path in tree.paths():
        if tree.size(path) > BLOB_BYTES_MAX:
            kib = BLOB_BYTES_MAX // 1024
            yield Problem(path, 1, "blob-size", f"{tree.size(path)} bytes; keep it under {kib} KiB")


def code_sizes(tree: Tree) -> Iterator[Problem]:
    for path, text in tree.written(*CODE_SUFFIXES):
        lines = text.splitlines()
        # Which messages share a .proto file is part of the contract, so it cannot be split.
        if len(lines) > MODULE_LINES_MAX and not path.endswith(".proto"):
            advice = f"{len(lines)} lines; split it, a module has at most {MODULE_LINES_MAX}"
            yield Problem(path, 1, "module-lines", advice)
        for number, line in enumerate(lines, start=1):
            # Ruff measures Python.
            if len(line) > LINE_COLUMNS_MAX and "://" not in line and not path.endswith(".py"):
                advice = f"{len(line)} columns; wrap it at {LINE_COLUMNS_MAX}"
                yield Problem(path, number, "line-length", advice)


def words(tree: Tree) -> Iterator[Problem]:
    for path in tree.paths():
        for number, line in enumerate(tree.lines(path), start=1):
            if found := UNFINISHED.search(line):
                advice = f"finish what {found[0]} marks, or describe it in an issue"
                yield Problem(path, number, "unfinished", advice)
            if found := MACHINE_PATH.search(line):
                advice = f"{found[0]} exists on one machine; use a relative path or a temporary one"
                yield Problem(path, number, "machine-path", advice)
            if found := REGISTRY_HOST.search(line):
                advice = f"do not name {found[0]}; the package manager knows its registry"
                yield Problem(path, number, "registry-host", advice)
