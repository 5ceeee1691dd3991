# SPDX-License-Identifier: AGPL-3.0-only
"""The rules that hold the SDKs to one shape notice what is missing."""

from tools.checks import sdks
from tools.checks.tree import Tree

PAGE = "# Fila for X\n\n" + "".join(f"## {heading}\n\ntext\n\n" for heading in sdks.HEADINGS)


def rules(texts: dict[str, str]) -> list[str]:
    return [problem.rule for problem in sdks.check(Tree.of_texts(texts))]


def whole(suffix: str) -> dict[str, str]:
    return {f"sdks/x/examples/{name}{suffix}": "" for name in sdks.EXAMPLES}


def test_an_sdk_with_the_page_and_the_examples_passes() -> None:
    for suffix in (".py", ".rb", "/main.go"):
        assert rules({"sdks/x/README.md": PAGE, **whole(suffix)}) == []


def test_a_missing_page_heading_or_example_is_named() -> None:
    assert rules(whole(".py")) == ["sdk-readme"]
    assert rules({"sdks/x/README.md": PAGE.replace("Tracing", "Spans"), **whole(".py")}) == [
        "sdk-readme"
    ]
    assert rules({"sdks/x/README.md": PAGE}) == ["sdk-examples"] * 5
