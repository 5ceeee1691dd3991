# SPDX-License-Identifier: AGPL-3.0-only
"""HTTP/2 by hand, for what no gRPC library would send: frames in any order, bodies without an end,
windows that never open. It writes frames and reads them off the wire; it judges nothing.
"""

import socket
import struct
import time
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
CANCEL = 0x8
# The setting that says how much a peer may send on each stream before it has to wait, and what that
# is until a peer says otherwise. Frames are no larger than the smallest that everybody must take.
INITIAL_WINDOW_SIZE = 0x4
WINDOW_BYTES = 65_535
FRAME_BYTES = 16_384


class Frame(NamedTuple):
    """One frame as it came."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def grpc_message(encoded: bytes) -> bytes:
    """Return a message as gRPC frames it: a flag, its length, itself."""
    return struct.pack(">BI", 0, len(encoded)) + encoded


def _literal(name: bytes, value: bytes) -> bytes:
    """A header that goes into no table, neither compressed."""
    return b"\0" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    assert len(text) < 127, "long texts take more bytes than this writes"
    return bytes([len(text)])


def call_headers(path: str, api_key: str = "") -> bytes:
    """The header block of a gRPC call."""
    rows = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    if api_key:
        rows.append((b"authorization", f"Bearer {api_key}".encode()))
    return b"".join(_literal(name, value) for name, value in rows)


class Connection:
    """One connection. Streams get the odd numbers, in order."""

    def __init__(self, address: str, *, window: int = WINDOW_BYTES, greet: bool = True) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self._next = 1
        self._unread = b""
        self._initial = WINDOW_BYTES  # what the peer lets each new stream send
        self._windows: dict[int, int] = {0: WINDOW_BYTES}  # what it lets us send, by stream
        if greet:
            setting = struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
            self.send(PREFACE + frame(SETTINGS, 0, 0, setting))

    def send(self, content: bytes) -> None:
        """Write it all. Raises OSError when the peer has had enough."""
        self.socket.sendall(content)

    def open(self, path: str, body: bytes | None = None, *, api_key: str = "") -> int:
        """Begin a call, with the whole of its body or, for None, with a body yet to come."""
        stream, self._next = self._next, self._next + 2
        self._windows[stream] = self._initial
        self.send(self.opening(stream, path, body, api_key))
        return stream

    @staticmethod
    def opening(stream: int, path: str, body: bytes | None, api_key: str = "") -> bytes:
        head = frame(HEADERS, END_HEADERS, stream, call_headers(path, api_key))
        return head if body is None else head + frame(DATA, END_STREAM, stream, body)

    def pour(self, stream: int, body: bytes, seconds: float) -> int:
        """Send a body that does not end with it, as far as the peer's windows and the time allow;
        return how many bytes went.
        """
        deadline = time.monotonic() + seconds
        sent = 0
        while sent < len(body) and time.monotonic() < deadline:
            room = min(self._windows[0], self._windows[stream], FRAME_BYTES)
            if room <= 0:
                self.read(0.05)
                continue
            part = body[sent : sent + room]
            self.send(frame(DATA, 0, stream, part))
            self._windows[0] -= len(part)
            self._windows[stream] -= len(part)
            sent += len(part)
        return sent

    def read(self, seconds: float) -> list[Frame]:
        """Return what comes first within this time; nothing comes after the peer has closed."""
        deadline = time.monotonic() + seconds
        found: list[Frame] = []
        while (left := deadline - time.monotonic()) > 0 and not found:
            self.socket.settimeout(left)
            try:
                content = self.socket.recv(65_536)
            except TimeoutError:
                break
            except OSError:
                content = b""
            if not content:
                break
            self._unread += content
            found += self._split()
        self.socket.settimeout(30)
        return found

    def discard(self) -> None:
        """Throw away what has come, so that the peer has no reason to wait."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(1024 * 1024):
                pass
        except BlockingIOError:
            pass
        finally:
            self.socket.settimeout(30)

    def _split(self) -> list[Frame]:
        found = []
        while len(self._unread) >= 9:
            size = int.from_bytes(self._unread[:3], "big")
            if len(self._unread) < 9 + size:
                break
            kind, flags, stream = struct.unpack(">BBI", self._unread[3:9])
            found.append(Frame(kind, flags, stream, self._unread[9 : 9 + size]))
            self._unread = self._unread[9 + size :]
            self._note(found[-1])
        return found

    def _note(self, came: Frame) -> None:
        """Keep count of what the peer lets us send, and answer what it must have an answer to."""
        if came.kind == WINDOW_UPDATE:
            more = int.from_bytes(came.payload, "big")
            self._windows[came.stream] = self._windows.get(came.stream, self._initial) + more
        elif came.kind == SETTINGS and not came.flags & ACK:
            for at in range(0, len(came.payload), 6):
                name, value = struct.unpack(">HI", came.payload[at : at + 6])
                if name == INITIAL_WINDOW_SIZE:
                    for stream in self._windows.keys() - {0}:
                        self._windows[stream] += value - self._initial
                    self._initial = value
            self.send(frame(SETTINGS, ACK, 0))
        elif came.kind == PING and not came.flags & ACK:
            self.send(frame(PING, ACK, 0, came.payload))

    def is_closed(self) -> bool:
        """Whether the peer has closed it: there is an end to read, and not nothing."""
        self.socket.setblocking(False)
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.socket.settimeout(30)

    def close(self) -> None:
        self.socket.close()
