# SPDX-License-Identifier: AGPL-3.0-only
"""HTTP/2 by hand, as the torture tests speak it, and its headers in both directions."""

from __future__ import annotations

import time
from collections.abc import Sequence

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
    """One connection, which can also read what answers say."""

    def __init__(self, address: str, *, window: int = http2.WINDOW_BYTES) -> None:
        self._decoder = Decoder()
        self._heads: dict[int, dict[bytes, bytes]] = {}
        self._ended: set[int] = set()
        super().__init__(address, window=window)

    def answer(self, headers: bytes, body: bytes) -> dict[bytes, bytes]:
        """Make a call, and return the headers and trailers of its answer."""
        (found,) = self.answers([(headers, body)])
        return found

    def answers(self, calls: Sequence[tuple[bytes, bytes]]) -> list[dict[bytes, bytes]]:
        """Make calls at once, and return the headers and trailers of their answers, in order."""
        streams = [self.call(headers, body) for headers, body in calls]
        deadline = time.monotonic() + WAIT_S
        while not self._ended.issuperset(streams):
            assert time.monotonic() < deadline, f"no end of all answers, only {self._heads}"
            self.read(WAIT_S)
        return [self._heads[stream] for stream in streams]

    def call(self, headers: bytes, body: bytes) -> int:
        """Make a call, and return its stream."""
        stream, self._next = self._next, self._next + 2
        self._windows[stream] = self._initial
        self.send(frame(HEADERS, END_HEADERS, stream, headers))
        self.pour(stream, body, WAIT_S)
        self.send(frame(DATA, END_STREAM, stream))
        return stream

    def _note(self, came: http2.Frame) -> None:
        super()._note(came)
        if came.kind == HEADERS:
            fields = dict(self._decoder.decode(came.payload, raw=True))
            self._heads[came.stream] = {**self._heads.get(came.stream, {}), **fields}
        if came.kind in (HEADERS, DATA) and came.flags & END_STREAM:
            self._ended.add(came.stream)
