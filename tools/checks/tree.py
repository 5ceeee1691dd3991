# SPDX-License-Identifier: AGPL-3.0-only
"""The files that the rules look at, and what a rule answers.

A Tree holds what git would commit: tracked files and untracked ones that no .gitignore names.
Rules never touch the disk themselves, so that tests can hand them a tree made of strings.
"""

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

GENERATED_MARKS = ("DO NOT EDIT", "@generated")
GENERATED_HEAD_LINES = 8


@dataclass(frozen=True, order=True, slots=True)
class Problem:
    """One breach of one rule, and what to do about it."""

    path: str
    line: int
    rule: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.advice}"


class Tree:
    """Paths, with forward slashes and relative to the root, and the bytes behind them."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = dict(sorted(files.items()))
        self._texts: dict[str, str | None] = {}

    @classmethod
    def of_checkout(cls, root: Path) -> "Tree":
        """Read the checkout at `root`. Raises CalledProcessError where git knows no repository."""
        listing = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=root,
            check=True,
            capture_output=True,
        ).stdout.decode()
        names = [name for name in listing.split("\0") if name]
        return cls({name: (root / name).read_bytes() for name in names if (root / name).is_file()})

    @classmethod
    def of_texts(cls, texts: Mapping[str, str]) -> "Tree":
        return cls({path: text.encode() for path, text in texts.items()})

    def __contains__(self, path: str) -> bool:
        return path in self._files

    def paths(self, *suffixes: str) -> list[str]:
        """Return all paths, or those that end in one of the suffixes."""
        return [path for path in self._files if not suffixes or path.endswith(suffixes)]

    def has_folder(self, path: str) -> bool:
        return any(name.startswith(path + "/") for name in self._files)

    def size(self, path: str) -> int:
        return len(self._files[path])

    def text(self, path: str) -> str | None:
        """Return the file's text, or None where it is not text."""
        if path not in self._texts:
            content = self._files[path]
            try:
                self._texts[path] = None if b"\0" in content else content.decode()
            except UnicodeDecodeError:
                self._texts[path] = None
        return self._texts[path]

    def lines(self, path: str) -> list[str]:
        return (self.text(path) or "").splitlines()

    def is_generated(self, path: str) -> bool:
        head = self.lines(path)[:GENERATED_HEAD_LINES]
        return "_pb2" in path or any(mark in line for line in head for mark in GENERATED_MARKS)

    def written(self, *suffixes: str) -> Iterator[tuple[str, str]]:
        """Yield path and text of every text file that a person wrote."""
        for path in self.paths(*suffixes):
            text = self.text(path)
            if text is not None and not self.is_generated(path):
                yield path, text
