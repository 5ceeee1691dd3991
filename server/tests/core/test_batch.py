# SPDX-License-Identifier: AGPL-3.0-only
"""A batch reads as the store will read once it is written, and means the same when decoded."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from fila_server.core.batch import Batch, decode
from fila_server.storage.api import Column, Until, Write
from fila_server.storage.memory import MemoryStorage

COLUMNS = (Column.MESSAGES, Column.IDEMPOTENCY)
columns = st.sampled_from(COLUMNS)
keys = st.binary(max_size=2).map(lambda raw: bytes(byte & 3 for byte in raw))
writes = st.one_of(
    st.tuples(columns, keys, st.binary(max_size=3)),
    st.tuples(columns, keys, st.none()),
    st.tuples(columns, keys, st.builds(Until, keys)),
)
Rows = dict[tuple[Column, bytes], bytes]


def write(batch: Batch, column: Column, key: bytes, value: bytes | Until | None) -> None:
    if isinstance(value, bytes):
        batch.put(column, key, value)
    elif value is None:
        batch.delete(column, key)
    else:
        batch.delete_range(column, key, value.end)


def model(rows: Rows, writes: list[Write]) -> Rows:
    rows = dict(rows)
    for column, key, value in writes:
        if isinstance(value, bytes):
            rows[column, key] = value
        elif value is None:
            rows.pop((column, key), None)
        else:
            for where, known in list(rows):
                if where == column and key <= known < value.end:
                    del rows[where, known]
    return rows


@given(
    st.dictionaries(st.tuples(columns, keys), st.binary(max_size=3), max_size=12),
    st.lists(st.one_of(writes, st.none()), max_size=20),  # None: look at everything now
    keys,
    keys,
)
def test_a_turn_reads_its_own_writes(
    stored: Rows, program: list[Write | None], start: bytes, end: bytes
) -> None:
    storage = MemoryStorage()
    storage.write([(column, key, value) for (column, key), value in stored.items()])
    batch = Batch(storage)
    done: list[Write] = []
    for step in [*program, None]:
        if step is not None:
            write(batch, *step)
            done.append(step)
            continue
        rows = model(stored, done)
        wanted = sorted({key for _, key in rows} | {key for _, key in stored} | {b"", start, end})
        for column in COLUMNS:
            found = batch.get_many(column, wanted)
            assert found == [rows.get((column, key)) for key in wanted]
            assert [batch.get(column, key) for key in wanted] == found
            mine = sorted((key, value) for (where, key), value in rows.items() if where == column)
            assert list(batch.scan(column, b"", b"\xff")) == mine
            window = [(key, value) for key, value in mine if start <= key < end]
            assert list(batch.scan(column, start, end)) == window
    assert batch.writes == done
    storage.write(batch.writes)
    rows = model(stored, done)
    for column in COLUMNS:
        mine = sorted((key, value) for (where, key), value in rows.items() if where == column)
        assert list(storage.scan(column, b"", b"\xff")) == mine


@given(
    st.lists(
        st.tuples(
            st.sampled_from(Column),
            st.binary(max_size=300),
            st.one_of(st.none(), st.binary(max_size=300), st.builds(Until, st.binary(max_size=9))),
        ),
        max_size=20,
    )
)
def test_an_encoded_batch_stands_for_itself(program: list[Write]) -> None:
    batch = Batch(MemoryStorage())
    for step in program:
        write(batch, *step)
    decoded = decode(batch.encode())
    assert decoded == batch.writes
    assert [type(value) for _, _, value in decoded] == [type(value) for _, _, value in program]
    assert all(type(column) is Column for column, _, _ in decoded)


def test_what_is_written_during_a_scan_is_not_part_of_it() -> None:
    storage = MemoryStorage()
    storage.write([(Column.STATE, bytes((n,)), b"old") for n in range(4)])
    batch = Batch(storage)
    batch.put(Column.STATE, b"\x05", b"new")
    seen = []
    for key, _ in batch.scan(Column.STATE, b"", b"\xff"):
        seen.append(key[0])
        batch.put(Column.STATE, bytes((key[0] + 10,)), b"later")
        batch.delete(Column.STATE, b"\x03")
    assert seen == [0, 1, 2, 3, 5]
    assert batch.get(Column.STATE, b"\x03") is None
