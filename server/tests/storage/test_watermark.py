# SPDX-License-Identifier: AGPL-3.0-only
"""The watermark file: what it remembers, and what damage does to it."""

from pathlib import Path

import pytest

from fila_server.storage.watermark import Watermark


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "WATERMARK"


def advance(path: Path, *sequences: int) -> None:
    watermark = Watermark(path)
    for sequence in sequences:
        watermark.advance(sequence)
        assert watermark.sequence == sequence
    watermark.close()


def read(path: Path) -> int:
    watermark = Watermark(path)
    watermark.close()
    return watermark.sequence


def test_a_new_file_promises_nothing(path: Path) -> None:
    assert read(path) == 0
    assert path.stat().st_size == 1024
    assert path.stat().st_mode & 0o777 == 0o600


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
        slots = {content[:12], content[512:524]}
        assert len(slots) == 2  # the number before is still there


@pytest.mark.parametrize("content", [b"", b"\0" * 5, b"\0" * 1024, b"garbage" * 200])
def test_an_unreadable_file_promises_nothing(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read(path) == 0
    advance(path, 5, 6)
    assert read(path) == 6


def test_reset_forgets_higher_numbers_in_both_slots(path: Path) -> None:
    advance(path, 10, 11)
    watermark = Watermark(path)
    watermark.reset(4)
    watermark.close()
    assert read(path) == 4
    advance(path, 5)
    assert read(path) == 5
