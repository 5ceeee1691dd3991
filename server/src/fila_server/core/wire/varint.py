# SPDX-License-Identifier: AGPL-3.0-only
"""Protobuf's variable-length numbers."""


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at`, and where it ends."""
    value = raw[at] & 0x7F
    shift = 7
    while raw[at] > 0x7F:
        at += 1
        value |= (raw[at] & 0x7F) << shift
        shift += 7
    return value, at + 1
