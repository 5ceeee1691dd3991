# SPDX-License-Identifier: AGPL-3.0-only
"""HTTP/2 by hand, as the torture tests speak it, and its headers in both directions."""

from __future__ import annotations

import time

from hpack import Decoder, Encoder

from server.tests.torture import http2
from server.tests.torture.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, frame, grpc_message

WAIT_S = 60.0

__all__ = ["Connection", "call_headers", "grpc_message"]


def call_headers(
    path: str,
    *more: tuple[bytes, bytes],
    kind: bytes = b"application/grpc",
    method: bytes = b"POST",
) -> bytes:
    """Return the header block of a call."""
    rows = [
        (b":method", method),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"edge"),
        (b"te", b"trailers"),
        (b"content-type", kind),
        *more,
    ]
    encoded: bytes = Encoder().encode(rows, huffman=False)
    return encoded


class Connection(http2.Connection):
    """One connection, which can also read what an answer says."""

    def __init__(self, address: str, *, window: int = http2.WINDOW_BYTES) -> None:
        super().__init__(address, window=window)
        self._decoder = Decoder()

    def answer(self, headers: bytes, body: bytes) -> dict[bytes, bytes]:
        """Make a call, and return the headers and trailers of its answer."""
        stream, self._next = self._next, self._next + 2
        self.send(
            frame(HEADERS, END_HEADERS, stream, headers) + frame(DATA, END_STREAM, stream, body)
        )
        found: dict[bytes, bytes] = {}
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for came in self.read(WAIT_S):
                if came.kind == HEADERS:
                    found |= dict(self._decoder.decode(came.payload, raw=True))
                if came.stream == stream and came.flags & END_STREAM and came.kind in (0, 1):
                    return found
        raise AssertionError(f"no end of the answer, only {found}")
