# SPDX-License-Identifier: AGPL-3.0-only
"""Rules for one Python module at a time: its header and the length of its functions.

What ruff can check (unused names, print, import order) is left to ruff.
"""

import ast
from collections.abc import Iterator

from tools.checks.tree import Problem, Tree

# One screen: TigerBeetle's limit.
FUNCTION_LINES_MAX = 70
SPDX_LINE = "# SPDX-License-Identifier: AGPL-3.0-only"


def check(tree: Tree) -> Iterator[Problem]:
    for path, text in tree.written(".py"):
        if not text.strip():
            continue  # an empty __init__.py has nothing to license or to explain
        try:
            module = ast.parse(text)
        except SyntaxError as error:
            yield Problem(path, error.lineno or 1, "syntax", f"{error.msg}; Python cannot parse it")
            continue
        yield from header(path, text, module)
        yield from function_lines(path, module)


def header(path: str, text: str, module: ast.Module) -> Iterator[Problem]:
    lines = text.splitlines()
    number = 2 if lines[0].startswith("#!") else 1
    if len(lines) < number or lines[number - 1] != SPDX_LINE:
        yield Problem(path, number, "spdx", f"make this line `{SPDX_LINE}`")
    if module.body and ast.get_docstring(module) is None:
        advice = "open with a docstring: what this module owns, and what it must not know"
        yield Problem(path, number, "module-docstring", advice)


def function_lines(path: str, module: ast.Module) -> Iterator[Problem]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count > FUNCTION_LINES_MAX:
                advice = (
                    f"{node.name} has {count} lines; split it, a function has at most "
                    f"{FUNCTION_LINES_MAX}"
                )
                yield Problem(path, node.lineno, "function-lines", advice)
