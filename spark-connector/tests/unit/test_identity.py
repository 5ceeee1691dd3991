# SPDX-License-Identifier: AGPL-3.0-only
"""Idempotency keys of rows that bring none."""

import random
from datetime import UTC, datetime

from fila_spark.identity import Identity

import fila


def message(payload: str, **fields: object) -> fila.EnqueueMessage:
    return fila.EnqueueMessage("q", payload=payload.encode(), **fields)  # type: ignore[arg-type]


def keys(messages: list[fila.EnqueueMessage], run: str = "run", partition: int = 0) -> list[str]:
    identity = Identity(run, partition)
    return [identity.key(each) for each in messages]


def test_an_attempt_in_another_order_makes_the_same_keys() -> None:
    rows = [message(f"m{n % 30}", fairness_key=str(n % 3)) for n in range(100)]
    shuffled = rows.copy()
    random.Random(7).shuffle(shuffled)
    assert sorted(keys(rows)) == sorted(keys(shuffled))
    assert len(set(keys(rows))) == 100


def test_a_key_belongs_to_its_row_whatever_came_before() -> None:
    first, second = message("a"), message("b")
    assert keys([first, second]) == list(reversed(keys([second, first])))


def test_every_part_of_a_message_makes_a_difference() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    rows = [
        message("a"),
        message("b"),
        message("a", headers={"x": "1"}),
        message("a", headers={"x": "2"}),
        message("a", fairness_key="t"),
        message("a", weight=2),
        message("a", throttle_keys=("p",)),
        message("a", deliver_at=moment),
        fila.EnqueueMessage("other", payload=b"a"),
    ]
    # In a run of their own each, so that none is merely another occurrence.
    assert len({keys([row])[0] for row in rows}) == len(rows)


def test_order_of_headers_makes_none() -> None:
    one = message("a", headers={"x": "1", "y": "2"})
    other = message("a", headers={"y": "2", "x": "1"})
    assert keys([one]) == keys([other])


def test_runs_and_partitions_are_apart() -> None:
    row = [message("a")]
    assert len({*keys(row), *keys(row, run="other"), *keys(row, partition=1)}) == 3


def test_keys_fit_the_brokers_limit() -> None:
    assert all(len(key) <= 64 for key in keys([message("a")] * 1000))
