# SPDX-License-Identifier: AGPL-3.0-only
"""HTTP/2 by hand, for what no gRPC client does: connections that idle, bodies that stop halfway.

It knows frames, windows and the few headers of a gRPC call, and leaves everything else unread.
"""

from __future__ import annotations

import socket
import struct

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_HEADERS, _ACK = 4, 1
_FRAME_BYTES = 16_384
_WINDOW = 65_535


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(text: str) -> bytes:
    raw = text.encode(errors="surrogateescape")  # so that it need not be one
    assert len(raw) < 127
    return bytes((len(raw),)) + raw


class Connection:
    """One connection. `ended` has the streams that the broker has closed, and how."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
        self._window = _WINDOW
        self._initial = _WINDOW
        self._windows: dict[int, int] = {}
        self._buffer = b""
        self._next = 1
        self.ended: set[int] = set()
        self.is_closed = False

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def call(self, method: str, **changes: str) -> int:
        """Begin a call, some of its headers changed, and return its stream."""
        stream, self._next = self._next, self._next + 2
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": "broker",
            "content-type": "application/grpc",
            "te": "trailers",
            **changes,
        }
        block = b"".join(b"\x10" + _text(name) + _text(value) for name, value in fields.items())
        self._windows[stream] = self._initial
        self._socket.sendall(_frame(_HEADERS, _END_HEADERS, stream, block))
        return stream

    def reset(self, stream: int) -> None:
        self._socket.sendall(_frame(_RST_STREAM, 0, stream, struct.pack(">I", 8)))

    def open_window(self, stream: int, size: int) -> None:
        """Let the broker send so much more."""
        for one in (0, stream):
            self._socket.sendall(_frame(_WINDOW_UPDATE, 0, one, struct.pack(">I", size)))

    def send(self, stream: int, size: int) -> int:
        """Send zeros as far as the windows allow; return how many went."""
        sent = 0
        while sent < size and stream not in self.ended:
            room = min(size - sent, self._window, self._windows[stream], _FRAME_BYTES)
            if room <= 0:
                break
            self._socket.sendall(_frame(_DATA, 0, stream, bytes(room)))
            self._window -= room
            self._windows[stream] -= room
            sent += room
        return sent

    def begin_message(self, stream: int, size: int) -> None:
        """Announce a request of some bytes."""
        head = struct.pack(">BI", 0, size)
        self._socket.sendall(_frame(_DATA, 0, stream, head))
        self._window -= len(head)
        self._windows[stream] -= len(head)

    def pump(self, seconds: float) -> None:
        """Take in what the broker sent, waiting for something at most this long."""
        self._socket.settimeout(seconds)
        try:
            received = self._socket.recv(1 << 20)
        except TimeoutError:
            return
        except OSError:
            received = b""
        finally:
            self._socket.settimeout(60)
        self.is_closed = self.is_closed or not received
        self._buffer += received
        while len(self._buffer) >= 9:
            size = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 9 + size:
                return
            kind, flags, stream = struct.unpack(">BBI", self._buffer[3:9])
            payload, self._buffer = self._buffer[9 : 9 + size], self._buffer[9 + size :]
            self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at : at + 6])
                if name == 4:  # the window that a stream begins with
                    change, self._initial = value - self._initial, value
                    self._windows = {one: left + change for one, left in self._windows.items()}
            self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW_UPDATE:
            (more,) = struct.unpack(">I", payload)
            if stream:
                self._windows[stream] += more
            else:
                self._window += more
        elif kind == _RST_STREAM or (kind == _HEADERS and flags & 1):
            self.ended.add(stream)
        elif kind == _GOAWAY:
            self.is_closed = True
