# SPDX-License-Identifier: AGPL-3.0-only
"""Where the records of RocksDB's logs and manifests begin, for tests that damage them.

A header is a checksum of 4 bytes, a length of 2 and a kind of 1; none is split between blocks.
"""

import struct

BLOCK = 32768
LENGTH, KIND, SIZE = 4, 6, 7  # offsets in a header, and its size


def headers(content: bytes | bytearray) -> list[int]:
    """Where the records begin."""
    found, at = [], 0
    while at + SIZE <= len(content):
        left = BLOCK - at % BLOCK
        if left < SIZE:
            at += left
            continue
        found.append(at)
        at += SIZE + struct.unpack_from("<H", content, at + LENGTH)[0]
    return found
