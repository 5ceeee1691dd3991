# SPDX-License-Identifier: AGPL-3.0-only
"""The rules together, the excuses for them, and which files they see."""

import subprocess
from pathlib import Path

from tools import llms, tidy
from tools.checks.tree import Tree

LONG = "x = '" + "x" * 100 + "'"


def test_a_line_can_excuse_itself_from_one_rule() -> None:
    assert tidy.problems(Tree.of_texts({"a.toml": LONG}))
    assert not tidy.problems(Tree.of_texts({"a.toml": LONG + "  # tidy: allow line-length"}))
    assert tidy.problems(Tree.of_texts({"a.toml": LONG + "  # tidy: allow machine-path"}))


def test_problems_come_in_the_order_of_the_files() -> None:
    texts = {"b.toml": LONG, "a.toml": f"x = 1\n{LONG}\n{LONG}\n"}
    problems = tidy.problems(Tree.of_texts(texts))
    assert [(problem.path, problem.line) for problem in problems] == [
        ("a.toml", 2),
        ("a.toml", 3),
        ("b.toml", 1),
    ]


def test_a_checkout_is_what_git_would_commit(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    for name in (".gitignore", "tracked.py", "new.py", "ignored.py", "gone.py"):
        (tmp_path / name).write_text("ignored.py\n")
    names = ["tracked.py", "gone.py"]
    subprocess.run(["git", "add", *names], cwd=tmp_path, check=True)
    (tmp_path / "gone.py").unlink()
    assert Tree.of_checkout(tmp_path).paths() == [".gitignore", "new.py", "tracked.py"]


def test_the_map_for_language_models_follows_the_index() -> None:
    index = "# Docs\n\n## Concepts\n\n- [Fairness](concepts/fairness.md): who is next\n\n## Empty\n"
    made = llms.render(index)
    assert made.endswith("\n## Concepts\n\n- [Fairness](docs/concepts/fairness.md): who is next\n")
    fresh = Tree.of_texts({"docs/README.md": index, "llms.txt": made})
    assert not list(llms.check(fresh))
    stale = Tree.of_texts({"docs/README.md": index + "\n- [B](b.md)\n", "llms.txt": made})
    assert [problem.rule for problem in llms.check(stale)] == ["llms-fresh"]
