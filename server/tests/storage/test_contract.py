# SPDX-License-Identifier: AGPL-3.0-only
"""What every store does, whatever it is made of."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from fila_server.errors import StorageFailed
from fila_server.storage.api import Column, Storage, Until, Write

END = b"\xff" * 9  # above every key of these tests
MESSAGES, STATE = Column.MESSAGES, Column.STATE

OpenStore = Callable[[], Storage]


def rows(store: Storage, column: Column = MESSAGES) -> list[tuple[bytes, bytes]]:
    return list(store.scan(column, b"", END))


def test_an_empty_store_holds_nothing(store: Storage) -> None:
    assert [rows(store, column) for column in Column] == [[]] * len(Column)
    assert store.get_many(MESSAGES, [b"a"]) == [None]


def test_what_is_put_is_read_back(store: Storage) -> None:
    store.write([(MESSAGES, b"a", b"1"), (MESSAGES, b"b", b"")])
    assert rows(store) == [(b"a", b"1"), (b"b", b"")]
    store.write([(MESSAGES, b"a", b"2")])
    assert store.get_many(MESSAGES, [b"a"]) == [b"2"]


def test_what_is_deleted_is_gone(store: Storage) -> None:
    store.write([(MESSAGES, b"a", b"1"), (MESSAGES, b"b", b"2")])
    store.write([(MESSAGES, b"a", None), (MESSAGES, b"never there", None)])
    assert rows(store) == [(b"b", b"2")]


def test_columns_are_apart(store: Storage) -> None:
    store.write([(column, b"key", column.name.encode()) for column in Column])
    for column in Column:
        assert rows(store, column) == [(b"key", column.name.encode())]
    store.write([(MESSAGES, b"", Until(END))])
    assert rows(store) == []
    assert rows(store, Column.RETRIES) != []


def test_writes_of_a_group_apply_in_order(store: Storage) -> None:
    store.write(
        [
            (MESSAGES, b"a", b"1"),
            (MESSAGES, b"a", None),
            (MESSAGES, b"b", None),
            (MESSAGES, b"b", b"2"),
            (MESSAGES, b"c", b"3"),
            (MESSAGES, b"c", Until(b"d")),
            (MESSAGES, b"e", Until(b"f")),
            (MESSAGES, b"e", b"4"),
        ]
    )
    assert rows(store) == [(b"b", b"2"), (b"e", b"4")]


def test_a_range_goes_from_its_key_up_to_its_end(store: Storage) -> None:
    store.write([(MESSAGES, bytes([n]), b"x") for n in range(6)])
    store.write([(MESSAGES, b"\x02", Until(b"\x04"))])
    assert [key[0] for key, _ in rows(store)] == [0, 1, 4, 5]


@pytest.mark.parametrize(("start", "end"), [(b"b", b"b"), (b"c", b"a"), (b"a", b"")])
def test_an_empty_range_deletes_nothing(store: Storage, start: bytes, end: bytes) -> None:
    store.write([(MESSAGES, key, b"x") for key in (b"a", b"b", b"c")])
    store.write([(MESSAGES, start, Until(end))])
    store.write([(MESSAGES, start, Until(end)), (MESSAGES, b"d", b"x")])
    assert [key for key, _ in rows(store)] == [b"a", b"b", b"c", b"d"]
    assert list(store.scan(MESSAGES, start, end)) == []


def test_an_empty_group_changes_nothing(store: Storage) -> None:
    store.write([])
    store.sync()
    assert rows(store) == []


@pytest.mark.parametrize(
    "bad",
    [
        (MESSAGES, b"b", bytearray(b"x")),
        (MESSAGES, b"b", memoryview(b"x")),
        (MESSAGES, b"b", "x"),
        (MESSAGES, bytearray(b"b"), b"x"),
        (MESSAGES, "b", None),
    ],
)
def test_a_group_with_anything_but_bytes_is_refused_whole(store: Storage, bad: Any) -> None:
    with pytest.raises(TypeError, match="only bytes can be stored"):
        store.write([(MESSAGES, b"a", b"1"), bad])
    store.write([(MESSAGES, b"c", b"1")])
    assert rows(store) == [(b"c", b"1")]


def test_keys_are_in_the_order_of_their_bytes(store: Storage) -> None:
    keys = [b"", b"\x00", b"\x00\x00", b"\x00\xff", b"a", b"a\x00", b"aa", b"b", b"\x7f", b"\x80"]
    shuffled = keys.copy()
    random.Random(1).shuffle(shuffled)
    store.write([(MESSAGES, key, b"x") for key in shuffled])
    assert [key for key, _ in rows(store)] == sorted(keys)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (b"b", b"d", [b"b", b"c"]),
        (b"bb", b"cc", [b"c"]),
        (b"a", b"a\x00", [b"a"]),
        (b"", b"a", []),
        (b"d", b"z", [b"d"]),
        (b"e", b"z", []),
        (b"c", b"b", []),
        (b"", b"", []),
    ],
)
def test_a_scan_keeps_to_its_bounds(
    store: Storage, start: bytes, end: bytes, expected: list[bytes]
) -> None:
    store.write([(MESSAGES, key, b"x") for key in (b"a", b"b", b"c", b"d")])
    assert [key for key, _ in store.scan(MESSAGES, start, end)] == expected


def test_a_scan_keeps_to_bounds_that_nobody_else_holds(store: Storage) -> None:
    """The bounds of a scan are its own: that the caller lets go of them changes nothing."""
    keys = [n.to_bytes(4, "big") for n in range(6)]
    store.write([(MESSAGES, key, b"x") for key in keys])
    for _ in range(100):
        scan = store.scan(MESSAGES, (2).to_bytes(4, "big"), (4).to_bytes(4, "big"))
        others = [(2**32 - n).to_bytes(4, "big") for n in range(1, 10)]
        assert [key for key, _ in scan] == keys[2:4], others


def test_a_scan_shows_the_store_as_it_was_when_asked(store: Storage) -> None:
    store.write([(MESSAGES, key, b"1") for key in (b"a", b"b", b"c")])
    scan = store.scan(MESSAGES, b"", END)
    store.write([(MESSAGES, b"b", None), (MESSAGES, b"c", b"2"), (MESSAGES, b"d", b"2")])
    assert list(scan) == [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]
    assert list(scan) == []


def test_many_are_read_in_the_order_asked(store: Storage) -> None:
    store.write([(MESSAGES, bytes([n]), bytes([n, n])) for n in range(200)])
    keys = [bytes([n]) for n in (7, 199, 0, 7, 250)]
    assert store.get_many(MESSAGES, keys) == [b"\x07\x07", b"\xc7\xc7", b"\0\0", b"\x07\x07", None]
    assert store.get_many(MESSAGES, tuple(keys[:1])) == [b"\x07\x07"]
    assert store.get_many(MESSAGES, []) == []


def test_large_values_are_kept_whole(store: Storage, open_store: OpenStore) -> None:
    value = random.Random(2).randbytes(4 * 1024 * 1024)
    store.write([(MESSAGES, b"large", value)])
    assert open_store().get_many(MESSAGES, [b"large"]) == [value]


def test_free_space_is_reported(store: Storage) -> None:
    assert store.space().free > 0


def test_a_closed_store_refuses_everything(store: Storage) -> None:
    store.write([(MESSAGES, b"a", b"1"), (MESSAGES, b"b", b"2")])
    scan = store.scan(MESSAGES, b"", END)
    next(scan)
    store.close()
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: store.write([]),
        store.sync,
        lambda: store.get_many(MESSAGES, []),
        lambda: store.scan(MESSAGES, b"", END),
        store.space,
        lambda: next(scan),
    ]
    for call in calls:
        with pytest.raises(StorageFailed, match="the store is closed"):
            call()


def test_a_store_opens_again_while_scans_and_errors_of_it_are_held(open_store: OpenStore) -> None:
    store = open_store()
    store.write([(MESSAGES, b"a", b"1"), (MESSAGES, b"b", b"2")])
    scan = store.scan(MESSAGES, b"", END)
    next(scan)
    with pytest.raises(TypeError) as held:
        store.write([(MESSAGES, b"a", b"3"), (MESSAGES, b"b", "text")])  # type: ignore[list-item]
    assert rows(open_store()) == [(b"a", b"1"), (b"b", b"2")]
    assert held.value is not None


@pytest.mark.parametrize("seed", range(4))
def test_a_store_equals_a_sorted_dict_through_restarts(open_store: OpenStore, seed: int) -> None:
    rng = random.Random(seed)
    store = open_store()
    model: dict[Column, dict[bytes, bytes]] = {MESSAGES: {}, STATE: {}}
    for step in range(300):
        group: list[Write] = []
        for _ in range(rng.randrange(30)):
            column = rng.choice([MESSAGES, STATE])
            key, kind = rng.randrange(500).to_bytes(2, "big"), rng.randrange(20)
            value: bytes | Until | None = rng.randbytes(rng.randrange(400))
            if kind < 8:
                value = None
            elif kind == 8:
                value = Until(rng.randrange(500).to_bytes(2, "big"))
            group.append((column, key, value))
            _apply(model[column], key, value)
        store.write(group)
        if step % 50 == 49:
            store = open_store()
        elif step % 10 == 9:
            store.sync()
        low, high = rng.randbytes(2), rng.randbytes(2)
        expected = sorted((k, v) for k, v in model[STATE].items() if low <= k < high)
        assert list(store.scan(STATE, low, high)) == expected
        asked = [rng.randrange(600).to_bytes(2, "big") for _ in range(5)]
        assert store.get_many(MESSAGES, asked) == [model[MESSAGES].get(key) for key in asked]
    for column, content in model.items():
        assert rows(store, column) == sorted(content.items())


def _apply(model: dict[bytes, bytes], key: bytes, value: bytes | Until | None) -> None:
    if isinstance(value, bytes):
        model[key] = value
    elif value is None:
        model.pop(key, None)
    else:
        for covered in [k for k in model if key <= k < value.end]:
            del model[covered]
