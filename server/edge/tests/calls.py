# SPDX-License-Identifier: AGPL-3.0-only
"""Calls by grpcio's own client, with bytes for requests and responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import grpc

LIMIT_S = 60.0


class Refusal(NamedTuple):
    status: grpc.StatusCode
    text: str
    reason: str


def unary(channel: grpc.Channel, method: str, body: bytes = b"", **options: Any) -> bytes:
    options.setdefault("timeout", LIMIT_S)
    answer: bytes = channel.unary_unary(f"/t.T/{method}", None, None)(body, **options)
    return answer


def later(channel: grpc.Channel, method: str, body: bytes = b"", **options: Any) -> Any:
    options.setdefault("timeout", LIMIT_S)
    return channel.unary_unary(f"/t.T/{method}", None, None).future(body, **options)


def stream(channel: grpc.Channel, body: bytes = b"", **options: Any) -> Any:
    options.setdefault("timeout", LIMIT_S)
    return channel.unary_stream("/t.T/Stream", None, None)(body, **options)


def talk(channel: grpc.Channel, bodies: Iterable[bytes], **options: Any) -> Any:
    options.setdefault("timeout", LIMIT_S)
    return channel.stream_stream("/t.T/Talk", None, None)(iter(bodies), **options)


def refused(call: Callable[[], Any]) -> Refusal:
    """Make a call that is refused."""
    try:
        answer = call()
    except grpc.RpcError as error:
        failed: Any = error
        reason = dict(failed.trailing_metadata() or ()).get("fila-reason", "")
        return Refusal(failed.code(), failed.details(), reason)
    raise AssertionError(f"it was answered: {answer!r}")
