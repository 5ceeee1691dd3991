# SPDX-License-Identifier: AGPL-3.0-only
"""The rules for one Python module."""

from tools.checks import python
from tools.checks.tree import Problem, Tree

HEADER = f'{python.SPDX_LINE}\n"""Owns x."""\n'


def found(text: str) -> list[Problem]:
    return list(python.check(Tree.of_texts({"a.py": text})))


def test_a_module_opens_with_licence_and_docstring() -> None:
    assert not found(HEADER)
    assert not found("#!/usr/bin/env python3\n" + HEADER)
    assert [problem.rule for problem in found("x = 1\n")] == ["spdx", "module-docstring"]
    assert [problem.rule for problem in found(python.SPDX_LINE + "\nx = 1\n")] == [
        "module-docstring"
    ]


def test_an_empty_module_needs_neither() -> None:
    assert not found("")
    assert not found(python.SPDX_LINE + "\n")


def test_a_function_has_at_most_70_lines() -> None:
    assert not found(HEADER + "def f():\n" + "    pass\n" * 69)
    [problem] = found(HEADER + "async def f():\n" + "    pass\n" * 70)
    assert str(problem).startswith("a.py:3: function-lines: f has 71 lines")


def test_a_method_is_a_function() -> None:
    text = HEADER + "class A:\n    def f(self):\n" + "        pass\n" * 70
    assert [(problem.line, problem.rule) for problem in found(text)] == [(4, "function-lines")]


def test_generated_code_is_left_alone() -> None:
    assert not list(python.check(Tree.of_texts({"a_pb2.py": "x = 1\n"})))


def test_what_python_cannot_parse_is_a_problem_not_a_crash() -> None:
    assert [problem.rule for problem in found("def f(:\n")] == ["syntax"]
