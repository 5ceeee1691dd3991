# SPDX-License-Identifier: AGPL-3.0-only
"""The data directory, looked at from outside: nothing in it is opened for writing, locked or made.

Whose it is comes from /proc/locks, because asking the lock itself would mean to take it, and a
broker that starts in that moment would be refused.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from fila_server.config import Config
from fila_server.doctor.finding import CRITICAL, NOTICE, OK, WARNING, Finding
from fila_server.limits import MIB
from fila_server.storage.directory import FORMAT_VERSION, strangers_in
from fila_server.storage.tuning import open_bytes
from fila_server.storage.watermark import Watermark

_ELSEWHERE = "set server.data_dir (--data-dir, FILA_DATA_DIR) to another directory"


def holder(path: Path, locks: Path = Path("/proc/locks")) -> int | None:
    """The process that holds the directory's lock; None when none does, or none can be seen."""
    try:
        lock = (path / "fila.lock").stat()
        lines = locks.read_text().splitlines()
    except OSError:
        return None
    place = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    for line in lines:
        fields = line.split()
        if "FLOCK" in fields and place in fields:
            return int(fields[fields.index(place) - 1])
    return None


def newest(path: Path) -> float | None:
    """When anything in the directory was last written."""
    try:
        return max((entry.stat().st_mtime for entry in os.scandir(path)), default=None)
    except OSError:
        return None


def directory(config: Config) -> Iterator[Finding]:
    """Whether a broker could use the directory, and what it would find."""
    path = Path(config.server.data_dir)
    if not path.exists():
        yield _creatable(path)
        yield from _space(config, _nearest(path), 0)
        return
    problem = _usable(path)
    if problem is not None:
        yield problem
        return
    pid = holder(path)
    if pid is not None:
        text = f"{path} is in use by the broker with process id {pid}; a second one is refused"
        yield Finding("data_dir", NOTICE, text)
    else:
        yield Finding("data_dir", OK, f"{path} is free")
    yield from _ownership(path)
    yield from _contents(path)
    yield from _space(config, path, sum(log.stat().st_size for log in path.glob("*.log")))


def _nearest(path: Path) -> Path:
    """The deepest directory above that exists."""
    above = path.absolute().parent
    return above if above.exists() else _nearest(above)


def _creatable(path: Path) -> Finding:
    above = _nearest(path)
    if path.is_symlink():
        text = f"{path} is a link that leads nowhere"
        return Finding("data_dir", CRITICAL, text, "create what it points to, or remove it")
    if not above.is_dir():
        text = f"{path} cannot be made: {above} is not a directory"
        return Finding("data_dir", CRITICAL, text, _ELSEWHERE)
    if not os.access(above, os.W_OK | os.X_OK):
        text = f"{path} cannot be made: user {os.geteuid()} may not write to {above}"
        remedy = f"create it and give it to the broker's user, or {_ELSEWHERE}"
        return Finding("data_dir", CRITICAL, text, remedy)
    return Finding("data_dir", OK, f"{path} does not exist yet and will be made")


def _usable(path: Path) -> Finding | None:
    if not path.is_dir():
        return Finding("data_dir", CRITICAL, f"{path} is not a directory", _ELSEWHERE)
    for right, word in ((os.R_OK | os.X_OK, "read"), (os.W_OK, "write to")):
        if not os.access(path, right):
            text = f"user {os.geteuid()} may not {word} {path}"
            remedy = "run as the broker's user, or give the directory to it"
            return Finding("data_dir", CRITICAL, text, remedy)
    return None


def _ownership(path: Path) -> Iterator[Finding]:
    status = path.stat()
    if status.st_uid != os.geteuid():
        yield Finding(
            "owner",
            WARNING,
            f"{path} belongs to user {status.st_uid}, and this is user {os.geteuid()}",
            "run the broker, and this check, as the user whose it is",
        )
    if status.st_mode & 0o077:
        yield Finding(
            "owner",
            WARNING,
            f"others on this machine may look into {path}",
            f"chmod 700 {path}",
        )


def _contents(path: Path) -> Iterator[Finding]:
    try:
        content = (path / "FORMAT").read_bytes()
    except FileNotFoundError:
        strangers = strangers_in(path)
        if strangers:
            text = f"{path} is no Fila data directory, and not empty (it holds {strangers[0]!r})"
            yield Finding("format", CRITICAL, text, _ELSEWHERE)
        return
    except OSError as error:
        yield Finding("format", CRITICAL, f"{path}/FORMAT: {error.strerror}", "restore a backup")
        return
    yield _format(path, int(content) if content.strip().isdigit() else 0)
    yield from _watermark(path)


def _format(path: Path, version: int) -> Finding:
    if version > FORMAT_VERSION:
        text = f"{path} has format {version}, and this fila-server reads {FORMAT_VERSION}"
        return Finding("format", CRITICAL, text, "upgrade fila-server")
    if version < 1:
        text = f"{path}/FORMAT is damaged"
        return Finding("format", CRITICAL, text, "restore the directory from a backup")
    if version < FORMAT_VERSION:
        text = f"{path} has format {version}; a start migrates it to {FORMAT_VERSION}"
        return Finding("format", NOTICE, text, "make a backup first: there is no way back")
    return Finding("format", OK, f"format {version}")


def _watermark(path: Path) -> Iterator[Finding]:
    remedy = (
        "put it back from a backup, or start with --accept-data-loss to go on with what is there"
    )
    try:
        watermark = Watermark(path / "WATERMARK", create=False)
    except FileNotFoundError:
        if any(path.glob("MANIFEST-*")):
            yield Finding("watermark", CRITICAL, f"{path}/WATERMARK is missing", remedy)
        return
    except OSError as error:
        text = f"{path}/WATERMARK cannot be read: {(error.strerror or 'unknown').lower()}"
        yield Finding("watermark", CRITICAL, text, "let the broker's user read and write it")
        return
    watermark.close()
    if watermark.is_readable:
        text = f"what was written up to sequence {watermark.sequence:,} is promised"
        yield Finding("watermark", OK, text)
    else:
        yield Finding("watermark", CRITICAL, f"{path}/WATERMARK is damaged", remedy)


def _space(config: Config, path: Path, log_bytes: int) -> Iterator[Finding]:
    try:
        volume = os.statvfs(path)
    except OSError as error:
        yield Finding("disk", CRITICAL, f"{path}: {error.strerror}", "check the disk")
        return
    free = volume.f_bavail * volume.f_frsize
    total = volume.f_blocks * volume.f_frsize
    text = f"{free // MIB:,} MiB free of {total // MIB:,} MiB"
    floor = config.storage.min_free_bytes
    if free < open_bytes(log_bytes) and not (path / "RESERVE").exists():
        needed = f"a start needs {open_bytes(log_bytes) // MIB:,} MiB to write out its log"
        yield Finding("disk", CRITICAL, f"{text}, and {needed}", "free some space")
    elif free < floor:
        yield Finding(
            "disk",
            CRITICAL,
            f"{text}: enqueues are refused below storage.min_free_bytes ({floor // MIB:,} MiB)",
            "free some space, or give the volume more room",
        )
    elif free < 2 * floor + config.storage.write_buffer_bytes:
        yield Finding(
            "disk",
            WARNING,
            f"{text}, not far from storage.min_free_bytes ({floor // MIB:,} MiB)",
            "free some space, or give the volume more room",
        )
    else:
        yield Finding("disk", OK, text)
