# SPDX-License-Identifier: AGPL-3.0-only
"""Fila's native gRPC edge: it owns sockets, HTTP/2, TLS, framing, limits, deadlines, health and
reflection on a thread of its own, and hands calls over in batches.

All methods are called from one thread, and none of them waits but `close`.
"""

from typing import Any, Final, final

# Kinds of events. What `take` returns:
#   (CALL, id, route, body, metadata)  a call; its body is None for BIDI, its metadata the values
#                                      of the names given, in order, None where there is none
#   (MESSAGE, id, body)                the next request of a BIDI call
#   (HALF_CLOSED, id)                  there will be no further request; where that is for a
#                                      request that could not be read, the call ends with the status
#                                      for that, whatever `end` says
#   (TAKEN, id)                        HTTP/2 has taken over a frame given to `write` or `finish`
#   (GONE, id)                         the caller left, or its time is over, before the call was
#                                      ended; told once, and nothing about the call follows
#   (KEY, value, path)                 may calls with this `authorization` (None: there is none)
#                                      send their bodies? Asked once while it is undecided, for the
#                                      call of this path
# A call whose caller left before it was taken is not shown at all.
CALL: Final[int]
MESSAGE: Final[int]
HALF_CLOSED: Final[int]
TAKEN: Final[int]
GONE: Final[int]
KEY: Final[int]

# Kinds of routes: one request and one response; one request and many responses; many of both.
UNARY: Final[int]
SERVER_STREAM: Final[int]
BIDI: Final[int]

@final
class Edge:
    """The listening edge. It owns the sockets whose descriptors it is given."""

    def __init__(
        self,
        *,
        listeners: list[int],
        routes: list[tuple[str, int]],
        metadata: list[str],
        settings: dict[str, int],
        certificates: tuple[bytes, bytes, bytes | None] | None,
        needs_key: bool,
        services: list[str],
        reflection: list[tuple[int, str, bytes]] | None,
    ) -> None:
        """Begin to listen; health says NOT_SERVING.

        listeners: descriptors of sockets that are bound and listen.
        routes: paths and their kinds; a call names its route by the index.
        metadata: lower-case names of headers to hand over with each call.
        settings: limits, all of them: max_request_bytes, max_stream_request_bytes,
            max_metadata_bytes, max_connections, max_concurrent_streams (of a connection),
            max_concurrent_calls, inbox_bytes, max_unread_bytes, handshake_timeout_ms,
            arrival_timeout_ms, keepalive_time_ms, keepalive_timeout_ms, min_ping_interval_ms,
            watches_max, reflection_streams_max.
        certificates: PEM of the chain, the key, and the CA that clients' certificates need.
        needs_key: every call but health's needs an admitted `authorization`, before its body is
            read.
        services: names that health knows, beside the empty one.
        reflection: the field number of a question in ServerReflectionRequest, its argument, and the
            encoded field of ServerReflectionResponse that answers it; None turns it off. The list
            of services (7) is asked for with any argument and stands under the empty one; an
            extension (5) stands under "TYPE NUMBER".

        Raises ValueError for what cannot be used; the sockets are still the caller's then.
        """

    def fileno(self) -> int:
        """Return a descriptor that is readable while `take` has something."""

    def take(self, most: int) -> list[tuple[Any, ...]]:
        """Return at most so many events, in order."""

    def admit(self, value: str) -> None:
        """Let calls with this `authorization` in, those that wait and those to come."""

    def reject(self, value: str | None, code: int, message: str, reason: str) -> None:
        """End the calls that wait for the verdict on a value. It is not remembered."""

    def forget(self, value: str | None = None) -> None:
        """Ask again about a value, or about all; calls that come after this returns are asked."""

    def answer(self, replies: list[tuple[int, bytes]]) -> None:
        """End calls with status OK and one encoded response each.

        Raises TypeError if a row is no (id, bytes); all others are answered all the same.
        """

    def open(self, id: int) -> None:
        """Send the response's headers now."""

    def write(self, id: int, frame: bytes) -> None:
        """Send an encoded response; TAKEN follows."""

    def finish(self, id: int, frame: bytes) -> None:
        """Send an encoded response and, with it, end the call with status OK; TAKEN follows, and
        nothing after that. If GONE comes instead it was not taken over.
        """

    def reply(self, id: int, frame: bytes) -> None:
        """Send an encoded response to the oldest MESSAGE without one; nothing is told.

        When HTTP/2 has taken it over, that message takes up no bytes of the budget any more, and
        another may come.
        """

    def end(self, id: int, code: int, message: str, reason: str) -> None:
        """End a call with a status; an empty reason is none."""

    def more(self, id: int, count: int) -> None:
        """Let so many further MESSAGEs of a BIDI call come; it begins with one."""

    def serving(self, is_serving: bool) -> None:
        """Set what health says."""

    def drain(self) -> None:
        """Stop listening, and ask peers to go elsewhere; calls under way go on."""

    def close(self) -> None:
        """End what is under way with UNAVAILABLE, then all connections, then the thread."""

    def reload(self, certificates: tuple[bytes, bytes, bytes | None]) -> None:
        """Use other certificates from the next handshake on.

        Raises ValueError if they cannot be used; the old ones stay.
        """

    def figures(self) -> dict[str, int]:
        """Return what the edge counts: levels and counters by name."""

# A request taken apart: its queue; headers and payload as encoded; what it asks for, as encoded;
# the bytes of the payload; how many headers it has; the bytes that they are encoded in.
Draft = tuple[str, bytes, bytes, int, int, int]

def draft(encoded: bytes) -> Draft | None:
    """Take an EnqueueRequest apart if it is written as protobuf would write it again, but for the
    order of its headers; None leaves it to protobuf's parser.
    """
