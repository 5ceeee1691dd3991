# SPDX-License-Identifier: AGPL-3.0-only
"""Files of the store that were flipped, cut or lost: the broker has everything that was confirmed,
or refuses and names what is wrong, at the start or when it comes to the damage. It never loses in
silence.
"""

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import fila
from fila import Client, EnqueueMessage
from server.tests.storage.record_headers import KIND, LENGTH, headers
from server.tests.torture.figures import Figures, Scale
from server.tests.torture.victim import Refused, Victim, folder

QUEUE = "precious"
# Small, so that there are many tables and some logs.
CONFIG = "[storage]\nwrite_buffer_bytes = 65536\n"
BATCHES, BATCH = 30, 50


class Damage(NamedTuple):
    """What is done to one of the files that a pattern names."""

    pattern: str
    inflict: Callable[[Path, random.Random], None]


def flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content) or 1)])


def blank(path: Path, rng: random.Random) -> None:
    """What a lost write leaves: zeroes where a page was."""
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content) or 1) // 4096 * 4096
    content[at : at + 4096] = bytes(len(content[at : at + 4096]))
    path.write_bytes(content)


def scribble(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(path.stat().st_size))


def lose(path: Path, rng: random.Random) -> None:
    path.unlink()


def cut_between(path: Path, rng: random.Random) -> None:
    """Cut between two records, where the rest looks like a file that was never longer."""
    content = path.read_bytes()
    path.write_bytes(content[: rng.choice(headers(content) or [0])])


def flip_length(path: Path, rng: random.Random) -> None:
    _flip_header(path, rng, LENGTH)


def flip_kind(path: Path, rng: random.Random) -> None:
    """Make a record one of a recycled log, on which RocksDB never returns."""
    _flip_header(path, rng, KIND, bit=2)


def _flip_header(path: Path, rng: random.Random, offset: int, bit: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    if places := headers(content):
        content[rng.choice(places) + offset] ^= 1 << (rng.randrange(8) if bit is None else bit)
    path.write_bytes(content)


def swap(path: Path, rng: random.Random) -> None:
    """Put the first log or table of the directory in the place of another."""
    path.write_bytes(min(path.parent.glob(f"*{path.suffix}")).read_bytes())


# The files of a store, and those of the broker beside them.
TABLES_AND_LOGS = ("*.log", "*.sst", "MANIFEST-*")
OF_RECORDS = ("*.log", "MANIFEST-*")
SMALL_FILES = ("CURRENT", "WATERMARK", "FORMAT", "IDENTITY", "OPTIONS-*")


def damages(scale: Scale) -> Iterator[tuple[str, list[Damage]]]:
    """Yield what to do to one copy after the other."""
    for pattern in TABLES_AND_LOGS:
        for way in (flip, cut, lose):
            yield f"{way.__name__} {pattern}", [Damage(pattern, way)]
    for pattern in OF_RECORDS:
        for way in (flip_length, flip_kind):
            yield f"{way.__name__} {pattern}", [Damage(pattern, way)]
    # At one place in four RocksDB by itself opens, and messages are lost.
    for place in range(8):
        yield f"cut_between MANIFEST-*, place {place}", [Damage("MANIFEST-*", cut_between)]
    yield "cut_between *.log", [Damage("*.log", cut_between)]
    for pattern in ("*.log", "*.sst"):
        yield f"swap {pattern}", [Damage(pattern, swap)]
    for pattern in SMALL_FILES:
        for way in (scribble, lose):
            yield f"{way.__name__} {pattern}", [Damage(pattern, way)]
    for way in (scribble, lose):
        both = [Damage("WATERMARK", way), Damage("*.log", cut)]
        yield f"{way.__name__} WATERMARK and cut *.log", both
    for number in range(scale.of(0, 300)):
        rng = random.Random(number)
        part = Damage(rng.choice(TABLES_AND_LOGS), rng.choice((flip, cut, blank, scribble, lose)))
        yield f"seed {number}, {part.inflict.__name__} {part.pattern}", [part]
    for number in range(scale.of(0, 100)):
        rng = random.Random(number)
        way = rng.choice((cut_between, flip_length, flip_kind))
        part = Damage(rng.choice(OF_RECORDS), way)
        yield f"record {number}, {part.inflict.__name__} {part.pattern}", [part]


def run(scale: Scale) -> Figures:
    figures = Figures()
    verdicts: Counter[str] = Counter()
    with folder() as path:
        kept = fill(path / "whole")
        figures["confirmed"] = len(kept)
        figures["files"] = len(list((path / "whole" / "data").iterdir()))
        for number, (name, parts) in enumerate(damages(scale)):
            copy = path / "copy"
            shutil.copytree(path / "whole", copy)
            rng = random.Random(number)
            for part in parts:
                part.inflict(chosen(copy / "data", part.pattern, rng, scale), rng)
            with figures.scene(name):
                verdict = outcome(copy, kept)
                verdicts[verdict.partition(":")[0]] += 1
                figures.hold(verdict.removeprefix("broken: "), not verdict.startswith("broken"))
            shutil.rmtree(copy)
    for verdict in ("whole", "refused", "stopped"):
        figures[verdict] = verdicts[verdict]
    return figures.judged()


def chosen(data: Path, pattern: str, rng: random.Random, scale: Scale) -> Path:
    """The newest log, which holds what was confirmed last, and the largest of everything else."""
    files = sorted(data.glob(pattern))
    if scale.is_long:
        return rng.choice(files)
    return files[-1] if pattern == "*.log" else max(files, key=lambda file: file.stat().st_size)


def fill(path: Path) -> dict[str, bytes]:
    """Leave a store behind as a kill does; return what was confirmed and not acked."""
    path.mkdir()
    broker = Victim(path, config=CONFIG)
    broker.up()
    rng = random.Random(1)
    kept: dict[str, bytes] = {}
    with Client(broker.address, timeout=60) as client:
        client.create_queue(QUEUE)
        for _ in range(BATCHES):
            batch = [EnqueueMessage(QUEUE, None, rng.randbytes(200)) for _ in range(BATCH)]
            for message, result in zip(batch, client.enqueue_many(batch), strict=True):
                kept[result.unwrap()] = bytes(message.payload)
            acked = client.receive(QUEUE, BATCH // 5)
            assert client.ack_many(acked) == [None] * len(acked)
            for done in acked:
                del kept[done.id]
        time.sleep(0.5)  # for tables to be written, so that the newest log has confirmed messages
        for _ in range(20):
            kept[client.enqueue(QUEUE)] = b""
    broker.kill()
    return kept


def outcome(path: Path, kept: dict[str, bytes]) -> str:
    """Start a broker on what is left, and say how it went."""
    broker = Victim(path, config=CONFIG)
    try:
        broker.up()
    except Refused as error:
        return named("refused", broker, str(error))
    try:
        found = drained(broker)
    except fila.FilaError:
        code = broker.wait()
        return named("stopped", broker, broker.last_line()) if code == 1 else f"broken: exit {code}"
    finally:
        broker.close()
    lost = [message_id for message_id in kept if message_id not in found]
    if lost:
        return f"broken: {len(lost)} of {len(kept)} confirmed messages lost in silence"
    changed = [message_id for message_id, payload in kept.items() if found[message_id] != payload]
    return f"broken: {len(changed)} messages have another payload" if changed else "whole"


def named(verdict: str, broker: Victim, line: str) -> str:
    """A broker that gives up says in one line which directory and what is wrong with it."""
    if "Traceback" in broker.log() or "DATA: " not in line:
        return f"broken: {verdict} without naming the damage: {line}"
    return f"{verdict}: {line}"


def drained(broker: Victim) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with Client(broker.address, timeout=60) as client:
        while batch := client.receive(QUEUE, 500):
            found |= {message.id: message.payload for message in batch}
    return found
