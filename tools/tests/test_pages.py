# SPDX-License-Identifier: AGPL-3.0-only
"""What the pages promise works: every runnable example, against a real broker."""

import pytest

from tools import docs
from tools.broker import broker
from tools.checks.tree import Tree

PAGES = {path: docs.blocks(text) for path, text in Tree.of_checkout(docs.ROOT).written(".md")}


@pytest.mark.parametrize("page", [path for path, blocks in PAGES.items() if blocks])
def test_the_examples_of_a_page_run(page: str) -> None:
    with broker() as address:
        for block in PAGES[page]:
            problem = docs.run(block, address)
            assert problem is None, f"{page}:{block.line}: {problem}"
