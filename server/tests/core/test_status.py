# SPDX-License-Identifier: AGPL-3.0-only
"""What is wrong with queues, as `GetStatus` words it."""

import re

from fila.v1 import admin_pb2 as pb
from fila_server.core.names import counted
from server.tests.core.harness import Harness


def test_one_of_something_is_not_many() -> None:
    h = Harness()
    h.create("one", max_messages=1, max_attempts=1)
    h.enqueue("one")
    (letter,) = h.receive("one")
    h.nack("one", letter.id)
    h.enqueue("one")
    h.create("two", max_messages=2)
    h.enqueue_many("two", 2)
    told = [it.what for it in h.admin(pb.GetStatusRequest()).troubles]
    assert sorted(told) == [
        '"one" has 1 dead letter',
        '"one" holds 1 message, its maximum, and refuses more',
        '"two" holds 2 messages, its maximum, and refuses more',
        '1 message of "one" waits, and nobody consumes',
        '2 messages of "two" wait, and nobody consumes',
    ]
    assert not any(re.search(r"\b1 \w+s\b", text) for text in told)


def test_large_numbers_have_commas() -> None:
    assert counted(0, "key") == "0 keys"
    assert counted(1, "key") == "1 key"
    assert counted(20_000, "key") == "20,000 keys"
