# SPDX-License-Identifier: AGPL-3.0-only
"""What is looked at before RocksDB may open a store for writing: formats, room, losses.

All of it leaves the store as it is, so that whoever is refused can put things right. What concerns
the manifest is in manifest.py.
"""

from pathlib import Path

from rocksdict import AccessType, Rdict

from fila_server.errors import StorageFailed
from fila_server.storage.directory import FORMAT_VERSION, Directory
from fila_server.storage.faults import ACCEPT_LOSS
from fila_server.storage.migration import Steps
from fila_server.storage.records import disarm, endless_records
from fila_server.storage.reserve import Reserve
from fila_server.storage.tuning import MIB, make_options, open_bytes
from fila_server.storage.watermark import Watermark


def check_steps(directory: Directory, steps: Steps) -> None:
    """Raise StorageFailed if no way leads from the directory's format to this broker's."""
    missing = [v for v in range(directory.version, FORMAT_VERSION) if v not in steps]
    if missing:
        raise StorageFailed(
            f"{directory.path}: written by an older Fila (format {directory.version}, this one "
            f"reads {FORMAT_VERSION}); start a version in between first"
        )


def make_room(directory: Directory) -> None:
    """Give the reserve up if an open could not write out what is in the log."""
    if directory.volume()[1] < open_bytes(directory.log_bytes()):
        Reserve(directory.path / "RESERVE").release()


def open_watermark(directory: Directory, accept_data_loss: bool) -> Watermark:
    """Open the watermark, or make one where there is nothing yet to be lost.

    Raises StorageFailed for one that is missing beside a store, or damaged.
    """
    path = directory.path / "WATERMARK"
    is_new = not directory.has_store()
    try:
        watermark = Watermark(path, create=is_new or accept_data_loss)
    except FileNotFoundError as error:
        raise StorageFailed(_cannot_tell(directory.path, "missing")) from error
    try:
        if is_new and not watermark.is_readable:
            watermark.reset(0)
            directory.settle()
        elif not watermark.is_readable and not accept_data_loss:
            raise StorageFailed(_cannot_tell(directory.path, "damaged"))
    except (OSError, StorageFailed):
        watermark.close()
        raise
    return watermark


def _cannot_tell(path: Path, what: str) -> str:
    return (
        f"{path}: the file WATERMARK is {what}, so nothing tells whether the log is whole; put it "
        "back, or start with --accept-data-loss to go on with what is there"
    )


def check_logs(path: Path, accept_data_loss: bool) -> None:
    """Raise StorageFailed for a log that RocksDB would never finish reading.

    If the loss is accepted, the log ends there.
    """
    for log in sorted(path.glob("*.log")):
        for at in endless_records(log):
            if not accept_data_loss:
                what = f"{log.name} has an impossible record at byte {at}"
                raise StorageFailed(f"{path}: damaged: {what}; {ACCEPT_LOSS}")
            disarm(log, at)


def check_promise(path: Path, promised: int, names: list[str]) -> None:
    """Raise StorageFailed if the store ends below the promise, and leave it as it is.

    Opened for writing, RocksDB would drop what follows the damage, and a log that somebody puts
    back would no longer be read.
    """
    options = make_options(path, MIB, MIB, check_logs=True)
    columns = dict.fromkeys(names, options)
    db = Rdict(str(path), options, columns, AccessType.read_only(False))
    reached = db.latest_sequence_number()
    db.close()
    if reached < promised:
        raise StorageFailed(
            f"{path}: the log ends at sequence {reached}, but {promised} was confirmed as durable; "
            f"{ACCEPT_LOSS}"
        )
