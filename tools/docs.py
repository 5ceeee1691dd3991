# SPDX-License-Identifier: AGPL-3.0-only
"""Run the examples in the docs: `python -m tools.docs`, or `nox -s docs`.

A fenced block whose info string says `runnable` (as in ```python runnable) is run, in order, with
the other runnable blocks of its page, against a broker that is started for that page and starts
empty. Where a block says 127.0.0.1:5555 it reaches that broker; `fila` finds it by FILA_ADDR. A
`text output` block right after it is what it must print.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tools.broker import broker
from tools.checks.markdown import parse
from tools.checks.tree import Tree

ROOT = Path(__file__).parent.parent
ADDRESS = "127.0.0.1:5555"
BLOCK_SECONDS_MAX = 60
INTERPRETERS = {
    "python": [sys.executable, "-c"],
    "sh": ["bash", "-euo", "pipefail", "-c"],
}


class Block(NamedTuple):
    """A runnable example, and what it must print (None: anything)."""

    line: int
    language: str
    code: str
    output: str | None


def blocks(text: str) -> list[Block]:
    """Return the runnable blocks of a page in order."""
    found: list[Block] = []
    follows = False
    for token in parse(text):
        words = token.info.split() if token.type == "fence" else []
        line = token.map[0] + 1 if token.map else 1
        if "runnable" in words:
            found.append(Block(line, words[0], token.content, None))
        elif "output" in words and follows:
            found[-1] = found[-1]._replace(output=token.content)
        if token.type == "fence":
            follows = "runnable" in words
    return found


def run(block: Block, address: str) -> str | None:
    """Run a block and return what went wrong, or None."""
    if block.language not in INTERPRETERS:
        return f"cannot run {block.language}; use one of {', '.join(INTERPRETERS)}"
    tools = Path(sys.executable).parent
    environment = {
        **os.environ,
        "FILA_ADDR": address,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
    }
    command = [*INTERPRETERS[block.language], block.code.replace(ADDRESS, address)]
    with tempfile.TemporaryDirectory(prefix="fila-docs-") as folder:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=BLOCK_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"did not end within {BLOCK_SECONDS_MAX} s"
    if done.returncode != 0:
        return f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    if block.output is not None and done.stdout.strip() != block.output.strip():
        return f"printed\n{done.stdout}\nbut the page says\n{block.output}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="docs", description="Run the examples in the docs.")
    parser.add_argument("pages", nargs="*", help="only these pages")
    wanted = parser.parse_args().pages
    passed = failed = 0
    for path, text in Tree.of_checkout(ROOT).written(".md"):
        examples = blocks(text)
        if not examples or (wanted and path not in wanted):
            continue
        with broker() as address:
            for block in examples:
                problem = run(block, address)
                passed, failed = passed + (problem is None), failed + (problem is not None)
                print(f"{path}:{block.line}: {'ok' if problem is None else problem}")
    print(f"docs: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
