# SPDX-License-Identifier: AGPL-3.0-only
"""Which blocks of a page are run, and how. No broker is needed for that."""

from tools import docs
from tools.docs import Block

PAGE = """# A page

```python
not run
```

```python runnable
print("one")
```

prints:

```text output
one
```

- in a list:

  ```sh runnable
  true
  ```

```text output
not
```
"""


def test_only_marked_blocks_are_run_in_order() -> None:
    page = PAGE.replace("```text output\nnot\n```", "")
    assert docs.blocks(page) == [
        Block(7, "python", 'print("one")\n', "one\n"),
        Block(19, "sh", "true\n", None),
    ]


def test_a_block_reaches_the_broker_of_its_page() -> None:
    code = 'import os\nprint("127.0.0.1:5555", os.environ["FILA_ADDR"])\n'
    block = Block(1, "python", code, "127.0.0.1:9 127.0.0.1:9")
    assert docs.run(block, "127.0.0.1:9") is None
    assert docs.run(Block(1, "sh", 'test "$FILA_ADDR" = h:1', None), "h:1") is None


def test_a_failing_block_shows_what_it_said() -> None:
    problem = docs.run(Block(1, "sh", "echo before\nfalse | true\necho after\n", None), "h:1")
    assert problem == "exit code 1\nbefore\n"


def test_output_that_differs_from_the_page_is_a_failure() -> None:
    problem = docs.run(Block(1, "sh", "echo one\n", "two\n"), "h:1")
    assert problem is not None
    assert "printed\none" in problem


def test_an_unknown_language_is_a_failure() -> None:
    assert docs.run(Block(1, "perl", "", None), "h:1") == "cannot run perl; use one of python, sh"
