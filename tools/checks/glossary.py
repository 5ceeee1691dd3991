# SPDX-License-Identifier: AGPL-3.0-only
"""One word for one thing: docs/glossary.md is the list, its last column holds the banned synonyms.

Prose is checked, code is not. A sentence that needs the word (another product's name for
something) says so on its own line: <!-- tidy: allow glossary -->
"""

import re
from collections.abc import Iterator

from tools.checks.markdown import inlines, parse
from tools.checks.tree import Problem, Tree

GLOSSARY = "docs/glossary.md"
# The glossary names the banned words, and old entries of the changelog are not rewritten.
EXEMPT = frozenset({GLOSSARY, "CHANGELOG.md"})
# Phrases in which a banned word means something else.
OTHER_MEANINGS = re.compile(
    r"\b(spark|batch|cron|ci) jobs?\b|\basyncio tasks?\b|\bkafka topics?\b|\btask groups?\b",
    re.IGNORECASE,
)


def banned(text: str) -> dict[str, str]:
    """Return, for each banned word of a glossary, the word to use."""
    rows: dict[str, str] = {}
    cells: list[str] = []
    for token in parse(text):
        if token.type == "tr_open":
            cells = []
        elif token.type == "inline":
            cells.append(token.content)
        elif token.type == "tr_close" and len(cells) == 3 and cells[2] != "not":
            words = (word.strip() for word in cells[2].split(","))
            rows |= {word: cells[0].strip("*") for word in words if word}
    return rows


def check(tree: Tree) -> Iterator[Problem]:
    if GLOSSARY not in tree:
        return
    words = banned(tree.text(GLOSSARY) or "")
    if not words:
        yield Problem(GLOSSARY, 1, "glossary", "the table has three columns: word, meaning, not")
        return
    alternatives = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    pattern = re.compile(rf"\b({alternatives})s?\b", re.IGNORECASE)
    for path, text in tree.written(".md"):
        if path in EXEMPT:
            continue
        for start, tokens in inlines(text):
            prose = "".join(
                "\n" if token.type.endswith("break") else token.content * (token.type == "text")
                for token in tokens
            )
            prose = OTHER_MEANINGS.sub(lambda phrase: " " * len(phrase[0]), prose)
            for found in pattern.finditer(prose):
                line = start + prose.count("\n", 0, found.start())
                advice = f"say `{words[found[1].lower()]}`, not `{found[1]}`"
                yield Problem(path, line, "glossary", advice)
