# SPDX-License-Identifier: AGPL-3.0-only
"""A process that writes to a store, to be killed or to have its disk fail.

Group n puts record n into two columns, deletes old records from one of them, and puts n itself into
STATE; the first one also writes to a column that is quiet ever after. So a reader can tell which
groups are there, and whether one of them is torn.

Lines on standard output say what has happened: `opened n`, `written n`, `synced n`, `done`,
`write failed TEXT`. One child only judges stores: `holds n`, `lost`, `refused TEXT`.
"""

import os
import random
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread, Timer

from fila_server.errors import StorageFailed
from fila_server.storage import tuning
from fila_server.storage.api import Column, Storage, Until, Write
from fila_server.storage.memory import MemoryStorage
from fila_server.storage.rocks import RocksStorage

WINDOW = 200
MANY = 100_000


def key(n: int) -> bytes:
    return n.to_bytes(8, "big")


def group(n: int, size: int) -> list[Write]:
    """The writes of group n, with a value of up to `size` bytes."""
    rng = random.Random(n)
    value = key(n) + rng.randbytes(rng.randrange(size + 1))
    writes: list[Write] = [
        (Column.MESSAGES, key(n), value),
        (Column.LEASES, key(n), value[:16]),
        (Column.STATE, b"last", key(n)),
    ]
    if n == 1:
        writes.append((Column.QUEUES, b"quiet", b"once"))
    if n % 7 == 0:
        writes.append((Column.LEASES, key(0), Until(key(max(0, n - WINDOW)))))
    elif n > WINDOW:
        writes.append((Column.LEASES, key(n - WINDOW), None))
    return writes


def last(store: Storage) -> int:
    """The last group in the store."""
    (stored,) = store.get_many(Column.STATE, [b"last"])
    return int.from_bytes(stored, "big") if stored else 0


def holds(store: Storage, size: int) -> int:
    """The last group in the store, once it is certain that it holds all groups up to it, whole."""
    count = last(store)
    model = MemoryStorage()
    for n in range(1, count + 1):
        model.write(group(n, size))
    for column in Column:
        found, expected = (list(s.scan(column, b"", b"\xff" * 9)) for s in (store, model))
        assert found == expected, column
    return count


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())  # At once: the process may be killed at any moment.


def run(path: str, size: int, sync_every: int, count: int = MANY) -> None:
    """Write groups after the last one stored until there are `count`, then wait to be killed."""
    store = RocksStorage.open(path, write_buffer_bytes=65536)
    say(f"opened {last(store)}")
    for n in range(last(store) + 1, count + 1):
        store.write(group(n, size))
        say(f"written {n}")
        if n % sync_every == 0:
            store.sync()
            say(f"synced {n}")
    say("done")
    time.sleep(60)


def roll(path: str, size: int, sync_every: int) -> None:
    """Do the same with manifests that are replaced as soon as they have grown a little."""
    tuning.MANIFEST_BYTES = 4096
    run(path, size, sync_every)


def look(path: str, size: int, manifest_bytes: int) -> None:
    """Sync some groups, then look at the manifest while another thread makes it grow."""
    tuning.MANIFEST_BYTES = manifest_bytes
    store = RocksStorage.open(path)
    for n in range(1, 11):
        store.write(group(n, size))
    store.sync()
    say("synced 10")
    sys.stdin.readline()

    def grow() -> None:
        while True:
            store.reclaim()

    Thread(target=grow, daemon=True).start()
    while True:
        store.settle()
        time.sleep(0.001)


def judge(size: int) -> None:
    """Say of each line of standard input, a directory and perhaps `accept`, what an open finds."""
    for line in sys.stdin:
        path, *accept = line.split()
        try:
            store = RocksStorage.open(path, accept_data_loss=bool(accept))
        except StorageFailed as error:
            say(f"refused {error}")
            continue
        try:
            verdict = f"holds {holds(store, size)}"
        except (AssertionError, StorageFailed):
            verdict = "lost"
        store.close()
        say(verdict)  # Only now the directory is the test's again.


def edge(path: str) -> None:
    """Stop when a table holds the last record of the busy column that was synced."""
    store = RocksStorage.open(path, write_buffer_bytes=65536)
    store.write([(Column.QUEUES, b"quiet", b"once")])
    n = 0
    while not list(Path(path).glob("*.sst")):
        store.sync()
        n += 1
        store.write([(Column.MESSAGES, key(n), bytes(10_000))])
        time.sleep(0.05)  # for the table to appear
    say("done")
    time.sleep(60)


def churn(path: str) -> None:
    """Delete all that was put until compaction has dropped it, then wait to be killed."""
    store = RocksStorage.open(path, write_buffer_bytes=65536)
    for n in range(0, 30_000, 1000):
        keys = [key(n + i) for i in range(1000)]
        store.write([(Column.MESSAGES, k, bytes(50)) for k in keys])
        store.write([(Column.MESSAGES, k, None) for k in keys])
        store.sync()
    while len(list(Path(path).glob("*.sst"))) > 4:
        time.sleep(0.05)
    say("done")
    time.sleep(60)


def cram(path: str, is_reserved: str) -> None:
    """Leave a log to be written out on a volume that is full to the last block."""
    store = RocksStorage.open(path)
    if is_reserved == "reserved":
        store.hold_reserve()
    for n in range(1, 101):
        store.write(group(n, 10_000))
    store.sync()
    with (Path(path) / "ballast").open("wb", buffering=0) as ballast:
        for size in (1 << 20, 1 << 12):
            try:
                while ballast.write(bytes(size)) == size:
                    pass
            except OSError:
                pass
    say("done")
    time.sleep(60)


def starve(path: str, call: str) -> None:
    """Call the store while the process cannot open files, until it can again a second later."""
    store = RocksStorage.open(path, write_buffer_bytes=65536)
    for n in range(1, 401):
        store.write(group(n, 3000))
    store.close()  # so that tables are opened when they are read
    store = RocksStorage.open(path, write_buffer_bytes=65536)
    started = store.scan(Column.MESSAGES, b"", b"\xff" * 9)
    next(started)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    Timer(1.0, resource.setrlimit, (resource.RLIMIT_NOFILE, limits)).start()
    if call == "write":
        for n in range(401, 801):
            store.write(group(n, 3000))
            if n % 10 == 0:
                store.sync()
    elif call == "get":
        values = store.get_many(Column.MESSAGES, [key(n) for n in range(1, 401)])
        say(f"got {len(values) - values.count(None)}")
    rest = [row for row, _ in started]
    assert rest[:399] == [key(n) for n in range(2, 401)], "the scan lost its place"
    say(f"holds {holds(store, 3000)}")
    store.close()


def hold(path: str) -> None:
    """Keep the store open until standard input ends."""
    try:
        store = RocksStorage.open(path)
    except StorageFailed as error:
        say(f"open failed {error}")
        return
    say(f"opened {last(store)}")
    sys.stdin.read()
    store.close()


def fail(path: str, size: int, armed: str, fault: str, call: str) -> None:
    """Sync ten groups, let the disk fail, report what every call does, then open again."""
    tuning.STALL_LIMIT_S = 1.0
    store = RocksStorage.open(path, write_buffer_bytes=65536)
    for n in range(1, 11):
        store.write(group(n, size))
    store.sync()
    Path(armed).write_text(fault)
    for n in range(11, MANY):
        if not attempt("write", partial(store.write, group(n, size))):
            break
        if call == "sync" and not attempt("sync", store.sync):
            break
    Path(armed).unlink()
    for name, then in (
        ("write", lambda: store.write(group(MANY, size))),
        ("sync", store.sync),
        ("get", lambda: last(store)),
        ("scan", lambda: store.scan(Column.STATE, b"", b"z")),
        ("space", store.space),
    ):
        attempt(name, then)
    store.close()
    store = RocksStorage.open(path)
    say(f"opened {last(store)}")
    store.write(group(last(store) + 1, size))
    store.close()


def attempt(name: str, call: Callable[[], object]) -> bool:
    try:
        call()
    except StorageFailed as error:
        say(f"{name} failed {error}")
        return False
    say(f"{name} passed")
    return True


if __name__ == "__main__":
    command, path, *rest = sys.argv[1:]
    if command == "run":
        run(path, *map(int, rest))
    elif command in ("roll", "look"):
        {"roll": roll, "look": look}[command](path, *map(int, rest))
    elif command == "judge":
        judge(int(path))
    elif command == "fail":
        fail(path, int(rest[0]), *rest[1:])
    elif command in ("cram", "starve"):
        {"cram": cram, "starve": starve}[command](path, *rest)
    else:
        {"churn": churn, "edge": edge, "hold": hold}[command](path)
