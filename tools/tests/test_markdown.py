# SPDX-License-Identifier: AGPL-3.0-only
"""The rules for pages and for the words in them."""

from tools.checks import glossary, markdown
from tools.checks.tree import Problem, Tree

GLOSSARY = """# Glossary

| word | meaning | not |
|---|---|---|
| **queue** | where messages wait | topic, channel |
| **lease** | a delivery | visibility lock |
"""


def pages(**texts: str) -> list[Problem]:
    return list(markdown.check(Tree.of_texts(named(texts))))


def named(texts: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "/") + ".md": text for name, text in texts.items()}


def prose(text: str) -> list[Problem]:
    return list(glossary.check(Tree.of_texts({"docs/glossary.md": GLOSSARY, "docs/a.md": text})))


def test_a_page_has_one_title() -> None:
    assert not pages(a="# One\n\n## Two\n\n```sh\n# a comment\n```\n")
    assert [problem.rule for problem in pages(a="text\n")] == ["one-h1"]
    assert [problem.line for problem in pages(a="# One\n\n# Two\n")] == [3]


def test_a_link_leads_to_a_file_or_a_folder() -> None:
    assert not pages(a="# A\n[b](b.md) [c](c/) [d](https://a.example)", b="# B", c__d="# D")
    [problem] = pages(c__a="# A\n\nfirst\nthen [b](../b.md)\n")
    assert (problem.line, problem.rule) == (4, "link")
    assert "b.md does not exist" in problem.advice


def test_a_link_to_the_tree_on_its_host_is_held_to_the_tree() -> None:
    host = markdown.HOST
    for good in ("/blob/main/c/b.md#b", "/tree/main/c", "/tree/main", ""):
        assert not pages(a=f"# A\n[b]({host}{good})", c__b="# B")
    for bad in ("blob/main/b.md", "tree/main/d", "blob/main/c/b.md#x"):
        [problem] = pages(c__a=f"# A\n\n[b]({host}/{bad})\n", c__b="# B")
        assert (problem.path, problem.line, problem.rule) == ("c/a.md", 3, "link")


def test_a_link_in_code_is_no_link() -> None:
    assert not pages(a="# A\n\n`[b](b.md)`\n")


def test_an_absolute_link_is_refused() -> None:
    assert [problem.rule for problem in pages(a="# A\n[b](/b.md)", b="# B")] == ["link"]


def test_an_anchor_is_a_heading() -> None:
    text = "# A\n\n[x](#two-of-them-b) [y](b.md#the-config-file)\n\n## Two of them: `b`\n"
    assert not pages(a=text, b="# The config file")
    assert [problem.rule for problem in pages(a="# A\n[x](#nothing)")] == ["link"]


def test_the_second_of_two_equal_headings_has_a_number() -> None:
    assert markdown.slugs("# A\n## B\n## B\n## B\n") == {"a", "b", "b-1", "b-2"}


def test_every_page_of_the_docs_can_be_reached() -> None:
    index = "# Docs\n[a](a.md)"
    assert not pages(docs__README=index, docs__a="# A\n[b](c/b.md)", docs__c__b="# B")
    [problem] = pages(docs__README=index, docs__a="# A", docs__c__b="# B")
    assert (problem.path, problem.rule) == ("docs/c/b.md", "docs-index")


def test_readmes_are_short() -> None:
    lines = "# A\n" + "x\n" * 150
    assert [problem.rule for problem in pages(README=lines)] == ["readme-lines"]
    assert not pages(sdks__go__README=lines)
    assert [problem.rule for problem in pages(sdks__go__README=lines + "x\n" * 100)] == [
        "readme-lines"
    ]


def test_a_banned_word_is_reported_on_its_line() -> None:
    [problem] = prose("# A\n\nA queue\nis no Topic.\n")
    assert str(problem) == "docs/a.md:4: glossary: say `queue`, not `Topic`"
    assert [problem.line for problem in prose("# A\n\n- one\n- visibility locks\n")] == [4]
    assert [problem.line for problem in prose("# A\n\n|a|b|\n|-|-|\n|x|a topic|\n")] == [5]


def test_code_links_and_other_meanings_may_use_banned_words() -> None:
    assert not prose("# A\n\n`topic` and [it](../topic/x) and topical\n\n```\ntopic\n```\n")
    assert not prose("# A\n\nKafka topics and asyncio tasks\n")


def test_a_glossary_without_its_table_is_a_problem() -> None:
    tree = Tree.of_texts({"docs/glossary.md": "# Glossary\n"})
    assert [problem.rule for problem in glossary.check(tree)] == ["glossary"]
