# SPDX-License-Identifier: AGPL-3.0-only
"""The rules for what is published notice a missing license and a link that a registry breaks."""

from tools.checks import packages
from tools.checks.markdown import HOST
from tools.checks.tree import Problem, Tree

PROJECT = '[project]\nname = "a"\n'


def found(files: dict[str, str]) -> list[Problem]:
    return list(packages.check(Tree.of_texts({"LICENSE": "AGPL\n", **files})))


def test_packages_are_the_sdks_and_the_projects_of_python() -> None:
    files = {
        "pyproject.toml": "[tool.ruff]\n",
        "bench/pyproject.toml": "[tool.ruff]\n",
        "conformance/drivers/js/package.json": "{}",
        "sdks/go/examples/go.mod": "module x\n",
        "server/edge/pyproject.toml": PROJECT,
        "server/pyproject.toml": PROJECT,
    }
    assert packages.packages(Tree.of_texts(files)) == ["sdks/go", "server", "server/edge"]


def test_every_package_has_a_copy_of_the_license() -> None:
    files = {"server/pyproject.toml": PROJECT, "server/LICENSE": "AGPL\n"}
    assert not found(files)
    for other in ({**files, "server/LICENSE": "MIT\n"}, {"server/pyproject.toml": PROJECT}):
        [problem] = found(other)
        assert (problem.path, problem.rule) == ("server/LICENSE", "license-copy")


def test_a_packages_page_has_no_relative_links() -> None:
    files = {"sdks/go/LICENSE": "AGPL\n", "sdks/go/README.md": f"[a]({HOST}) [b](#b)\n"}
    assert not found(files)
    files["sdks/go/README.md"] += "\n[c](examples/c.go)\n[d](../../docs/d.md#e)\n"
    assert [(problem.line, problem.rule) for problem in found(files)] == [
        (3, "package-link"),
        (4, "package-link"),
    ]
