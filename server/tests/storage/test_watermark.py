# SPDX-License-Identifier: AGPL-3.0-only
"""The watermark file: what it remembers, and what damage does to it."""

import struct
import zlib
from pathlib import Path

import pytest

from fila_server.storage.watermark import NOTHING, Extent, Watermark


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "WATERMARK"


def advance(path: Path, *sequences: int) -> None:
    watermark = Watermark(path, create=True)
    if not watermark.is_readable:
        watermark.reset(0)
    for sequence in sequences:
        watermark.advance(sequence, NOTHING)
        assert watermark.sequence == sequence
    watermark.close()


def read(path: Path) -> int | None:
    watermark = Watermark(path, create=False)
    watermark.close()
    return watermark.sequence if watermark.is_readable else None


def test_a_new_file_promises_nothing(path: Path) -> None:
    advance(path)
    assert read(path) == 0
    assert path.stat().st_size == 1024
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_missing_is_not_made_unasked(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(path)
    assert not path.exists()


@pytest.mark.parametrize("count", range(1, 6))
def test_the_last_number_is_remembered(path: Path, count: int) -> None:
    advance(path, *range(1, count + 1))
    assert read(path) == count


def test_the_largest_number_fits(path: Path) -> None:
    advance(path, 2**64 - 1)
    assert read(path) == 2**64 - 1


@pytest.mark.parametrize("count", [2, 3])
def test_a_torn_write_leaves_the_number_before(path: Path, count: int) -> None:
    """The write under way when the power fails goes to the slot that the next one would use."""
    advance(path, *range(1, count + 1))
    before = path.read_bytes()
    advance(path, count + 1)
    after = path.read_bytes()
    changed = [at for at in range(1024) if before[at] != after[at]]
    for at in changed:
        torn = bytearray(after)
        torn[at] ^= 0x55
        path.write_bytes(torn)
        assert read(path) == count


def test_advancing_after_a_reopen_spares_the_newer_slot(path: Path) -> None:
    for sequence in range(1, 8):
        advance(path, sequence)
        content = path.read_bytes()
        assert read(path) == sequence
        slots = {content[:32], content[512:544]}
        assert len(slots) == 2  # the number before is still there


@pytest.mark.parametrize("content", [b"", b"\0" * 5, b"\0" * 1024, b"garbage" * 200])
def test_an_unreadable_file_says_so(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read(path) is None
    advance(path, 5, 6)
    assert read(path) == 6


def test_reset_forgets_higher_numbers_in_both_slots(path: Path) -> None:
    advance(path, 10, 11)
    watermark = Watermark(path, create=False)
    watermark.reset(4)
    watermark.close()
    assert read(path) == 4
    advance(path, 5)
    assert read(path) == 5


# --- The manifest ---------------------------------------------------------------------------------

LARGEST = Extent(2**64 - 1, 2**64 - 1, 2**32 - 1)


def note(path: Path, sequence: int, extent: Extent) -> None:
    watermark = Watermark(path, create=False)
    watermark.advance(sequence, extent)
    assert (watermark.sequence, watermark.extent) == (sequence, extent)
    watermark.close()


def noted(path: Path) -> tuple[int, Extent]:
    watermark = Watermark(path, create=False)
    watermark.close()
    assert watermark.is_readable
    return watermark.sequence, watermark.extent


def test_what_was_on_disk_of_the_manifest_is_remembered(path: Path) -> None:
    advance(path)
    assert noted(path) == (0, NOTHING)
    steps = [
        (0, Extent(5, 100, 7)),  # opened
        (9, Extent(5, 100, 7)),  # synced
        (9, Extent(5, 4000, 3)),  # the manifest grew
        (9, Extent(12, 300, 4)),  # or was replaced
        (10, LARGEST),
    ]
    for sequence, extent in steps:
        before = noted(path)
        note(path, sequence, extent)
        assert noted(path) == (sequence, extent)
        spoilt = bytearray(path.read_bytes())
        newer = spoilt.find(struct.pack("<QQQI", sequence, *extent))
        spoilt[newer + 27] ^= 1
        whole = path.read_bytes()
        path.write_bytes(spoilt)
        assert noted(path) == before
        path.write_bytes(whole)
    assert path.stat().st_size == 1024


def test_reset_forgets_the_manifest(path: Path) -> None:
    advance(path)
    note(path, 3, Extent(5, 100, 7))
    watermark = Watermark(path, create=False)
    watermark.reset(4)
    watermark.close()
    assert noted(path) == (4, NOTHING)


def slot_of_format_1(sequence: int) -> bytes:
    number = struct.pack("<Q", sequence)
    return (number + struct.pack("<I", zlib.crc32(number))).ljust(512, b"\0")


def test_the_slots_of_format_1_are_read_and_replaced(path: Path) -> None:
    path.write_bytes(slot_of_format_1(41) + slot_of_format_1(40))
    assert noted(path) == (41, NOTHING)
    note(path, 41, Extent(5, 100, 7))
    assert noted(path) == (41, Extent(5, 100, 7))
    assert path.read_bytes()[:512] == slot_of_format_1(41)  # the newer one was spared
    note(path, 42, Extent(5, 100, 7))
    assert noted(path) == (42, Extent(5, 100, 7))
