# SPDX-License-Identifier: AGPL-3.0-only
"""Makes a backup of a store that a broker is writing: one more generation in a directory.

    DIRECTORY/20260730-101530Z/            a generation: a data directory, and BACKUP.json
    DIRECTORY/20260730-111530Z.partial/    one that is being made, or was cut short

Tables never change, so a table that the newest generation has already is not copied but given one
more name. Deleting a generation therefore never harms another. Everything else is copied, so that a
broker that is started on a generation writes to nothing that another one shares.

A generation gets its name when it was read from its first record to its last and is on disk.
"""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from pathlib import Path

from fila_server.errors import DiskFull, StorageFailed
from fila_server.limits import MIB
from fila_server.storage.backups import catalog, contents, files
from fila_server.storage.backups.catalog import Catalog, Entry
from fila_server.storage.backups.contents import Tell
from fila_server.storage.backups.snapshot import Opened, Snapshot
from fila_server.storage.directory import format_of, fsync_directory, make
from fila_server.storage.faults import explain
from fila_server.storage.watermark import Watermark

_PARTIAL = ".partial"
_NAME = re.compile(r"\d{8}-\d{6}Z(-\d+)?")
# Between two looks at what the volume has left.
_LOOK_BYTES = 16 * MIB
_WAY_OUT = "free some space, for example by deleting old backups"


@dataclass(frozen=True, slots=True)
class Made:
    """A backup that was made."""

    path: Path
    messages: int
    copied_bytes: int


def make_generation(
    data: Path, directory: Path, *, sequence: int, floor_bytes: int, tell: Tell
) -> Made:
    """Back up the store in `data`, which must reach `sequence`.

    Keeps `floor_bytes` free if both are on one volume. Raises FilaError, with nothing left behind.
    """
    room = _Room(directory)
    try:
        make(directory)
        with _alone(directory):
            _clear_partial(directory)
            with Snapshot(data) as snapshot, _partial(directory) as partial:
                if data.stat().st_dev == directory.stat().st_dev:
                    room.floor_bytes = floor_bytes
                copying = _Copying(directory, partial, snapshot, room, tell)
                copying.run()
                return _complete(data, partial, copying, sequence, tell)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise room.used_up() from error
        raise explain(directory, error) from error


def _complete(data: Path, partial: Path, copying: "_Copying", sequence: int, tell: Tell) -> Made:
    """Read the copy, write down what it is, and give it its name."""
    version = format_of(data)
    found = contents.read(partial, version, copying.bytes, tell)
    if found.sequence < sequence:
        raise StorageFailed(
            f"{partial}: the copy ends at sequence {found.sequence}, but {sequence} was written"
            " before it began; check the disk, and try again"
        )
    entries = copying.keep(found.tables)
    watermark = Watermark(partial / "WATERMARK", create=True)
    try:
        watermark.reset(found.sequence)
    finally:
        watermark.close()
    entries.append(_entry(partial / "WATERMARK"))
    files.put(partial / "FORMAT", b"%d\n" % version)
    entries.append(_entry(partial / "FORMAT"))
    Catalog(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        fila_version=version_of("fila-server"),
        format=version,
        sequence=found.sequence,
        messages=found.messages,
        files=tuple(sorted(entries, key=lambda entry: entry.name)),
    ).write(partial)
    fsync_directory(partial)
    final = _free_name(partial.parent)
    partial.rename(final)
    fsync_directory(final.parent)
    return Made(final, found.messages, copying.copied_bytes)


class _Copying:
    """Brings the files of a snapshot into a new generation."""

    def __init__(
        self, directory: Path, partial: Path, snapshot: Snapshot, room: "_Room", tell: Tell
    ) -> None:
        self._partial = partial
        self._snapshot = snapshot
        self._room = room
        self._tell = tell
        self._done = 0
        self._entries: dict[str, tuple[Entry, int]] = {}  # and how many bytes it took to copy
        self._earlier, known = _newest(directory)
        self._known = {entry.name: entry for entry in known}
        self.bytes = snapshot.bytes

    @property
    def copied_bytes(self) -> int:
        return sum(copied for _, copied in self._entries.values())

    def run(self) -> None:
        opened = self._snapshot.files
        self._room.claim(sum(f.size for n, f in opened.items() if not self._may_share(n, f)))
        self._tell("copy", 0, self.bytes)
        for name, file in opened.items():
            if not (self._may_share(name, file) and self._share(name, file)):
                summed = files.copy(file.descriptor, file.size, self._partial / name, self._wrote)
                self._entries[name] = Entry(name, file.size, summed), file.size
        current = self._snapshot.current
        summed = files.put(self._partial / "CURRENT", current)
        self._entries["CURRENT"] = Entry("CURRENT", len(current), summed), len(current)

    def keep(self, tables: frozenset[str]) -> list[Entry]:
        """Drop tables that were only being written; return what the rest is."""
        for name in [name for name in self._entries if name.endswith(".sst")]:
            if name not in tables:
                (self._partial / name).unlink()
                del self._entries[name]
        return [entry for entry, _ in self._entries.values()]

    def _may_share(self, name: str, file: Opened) -> bool:
        earlier = self._known.get(name)
        return name.endswith(".sst") and earlier is not None and earlier.bytes == file.size

    def _share(self, name: str, file: Opened) -> bool:
        """Give the earlier copy of a table another name, if it is the same table."""
        summed = files.sum_up(file.descriptor, file.size, lambda count: None)
        earlier = self._known[name]
        if earlier.sha256 != summed:
            return False  # another store's, or from before a restore
        source = self._earlier / name
        if source.stat().st_size != file.size or not files.link(source, self._partial / name):
            return False
        self._entries[name] = earlier, 0
        self._told(file.size)
        return True

    def _wrote(self, count: int) -> None:
        self._room.take(count)
        self._told(count)

    def _told(self, count: int) -> None:
        self._done += count
        self._tell("copy", self._done, self.bytes)


class _Room:
    """What a backup may take of its volume, of which `floor_bytes` stay free."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._needed = 0
        self._taken = 0
        self._until_look = 0
        self.floor_bytes = 0

    def claim(self, needed: int) -> None:
        """Raise DiskFull unless so much can be written."""
        self._needed = needed
        self._check()

    def take(self, count: int) -> None:
        """Account for what is about to be written, and look again now and then."""
        self._until_look -= count
        if self._until_look < 0:
            self._check(count)
            self._until_look = _LOOK_BYTES
        self._taken += count

    def used_up(self) -> DiskFull:
        """Return the refusal of a backup that the volume had no room for after all.

        Called when what was copied is gone again.
        """
        free = self._free()
        text = (
            f"{self._directory}: the volume was full before the backup was complete: it takes"
            f" {self._needed:,} bytes, and {free:,} are free now that nothing was kept of it;"
        )
        if free - self.floor_bytes < self._needed:
            return DiskFull(f"{text} {_WAY_OUT}")
        return DiskFull(
            f"{text} look for what else writes there, a quota, or too many files (df -i)"
        )

    def _check(self, least: int = 0) -> None:
        left = max(least, self._needed - self._taken)
        free = self._free()
        if free - left < self.floor_bytes:
            kept = f", of which the broker keeps {self.floor_bytes:,}" if self.floor_bytes else ""
            raise DiskFull(
                f"{self._directory}: the backup takes {left:,} bytes more, and its volume has"
                f" {free:,} free{kept}; {_WAY_OUT}"
            )

    def _free(self) -> int:
        path = self._directory
        while not path.exists():  # not even the directory could be made
            path = path.parent
        volume = os.statvfs(path)
        return volume.f_bavail * volume.f_frsize


def _entry(path: Path) -> Entry:
    source = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(source).st_size
        return Entry(path.name, size, files.sum_up(source, size, lambda count: None))
    finally:
        os.close(source)


# --- The directory --------------------------------------------------------------------------------


def _newest(directory: Path) -> tuple[Path, tuple[Entry, ...]]:
    """Return the newest generation whose catalog can be read, and its files."""
    names = sorted((path.name for path in directory.iterdir()), reverse=True)
    for name in filter(_NAME.fullmatch, names):
        try:
            known = catalog.read(directory / name)
        except StorageFailed:
            continue
        if known is not None:
            return directory / name, known.files
    return directory, ()


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep the backups of other brokers out, and one whose broker was killed a moment ago."""
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise StorageFailed(
            f"{directory}: another backup into it is under way; wait for its end, or name another"
            " directory"
        ) from error
    finally:
        os.close(lock)


@contextmanager
def _partial(directory: Path) -> Iterator[Path]:
    """Make a directory for a new generation. It is gone again unless it has got its name."""
    partial = directory / (_stamp() + _PARTIAL)
    partial.mkdir(mode=0o700)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _clear_partial(directory: Path) -> None:
    for path in directory.glob("*" + _PARTIAL):
        if _NAME.fullmatch(path.name.removesuffix(_PARTIAL)):
            shutil.rmtree(path)


def _free_name(directory: Path) -> Path:
    stamp = _stamp()
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        if not (directory / (stamp + suffix)).exists():
            return directory / (stamp + suffix)
    raise StorageFailed(f"{directory}: 99 backups were made in a second; try again")


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%SZ")
