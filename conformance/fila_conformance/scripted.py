# SPDX-License-Identifier: AGPL-3.0-only
"""Answers from a case's script: statuses and streams that the real broker cannot be made to send.

A script has a list of answers per RPC; each call takes the next one, and the last one stays. An RPC
without a script, or an answer that says nothing, succeeds as far as that makes sense.
"""

import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message

from fila_conformance.admin import request_type, response_type
from fila_conformance.layout import CERTS

# Field 5000, which the contract does not have, with the number 1.
_UNKNOWN_FIELD = b"\xc0\xb8\x02\x01"
# Longer than any case waits for anything.
_HANG_S = 120.0


class Script:
    """The answers of one case."""

    def __init__(self, answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self._answers = answers
        self._counts: dict[str, int] = {}
        self._ids = itertools.count(1)
        self._lock = threading.Lock()

    def unary(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        answer = self._next(method)
        if answer is None:
            return self._success(method, request).SerializeToString()
        _wait(answer, context)
        if "respond" in answer:
            return _encoded(method, answer["respond"], answer)
        _end(answer, context)
        return self._success(method, request).SerializeToString()

    def stream(self, method: str, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        answer = self._next(method) or {"hang": True}
        _wait(answer, context)
        for frame in answer.get("frames", ()):
            yield _encoded(method, frame, answer)
        _end(answer, context)

    def _next(self, method: str) -> Mapping[str, Any] | None:
        answers = self._answers.get(method)
        if not answers:
            return None
        with self._lock:
            number = self._counts.get(method, 0)
            self._counts[method] = number + 1
        return answers[min(number, len(answers) - 1)]

    def _success(self, method: str, request: bytes) -> Message:
        sent: Any = request_type(method).FromString(request)
        answer: Any = response_type(method)()
        if method == "EnqueueBatch":
            for _ in sent.messages:
                answer.results.add(message_id=f"scripted-{next(self._ids)}")
        elif method in ("AckBatch", "NackBatch"):
            items = sent.ListFields()
            for _ in items[0][1] if items else ():
                answer.results.add()
        elif method == "ExtendLease":
            for item in sent.extensions:
                _extended(answer.results.add(), item.extend_ms)
        elif method == "SettleGrants":
            for item in sent.settlements:
                result = answer.results.add(messages=item.expected_messages or 1)
                if item.HasField("extend"):
                    _extended(result, item.extend.extend_ms)
        return answer  # type: ignore[no-any-return]


def _extended(result: Any, extend_ms: int) -> None:
    result.lease_expires_at.FromMilliseconds(int(time.time() * 1000) + extend_ms)


def _encoded(method: str, data: Mapping[str, Any], answer: Mapping[str, Any]) -> bytes:
    message = json_format.ParseDict(dict(data), response_type(method)())
    return bytes(message.SerializeToString()) + (
        _UNKNOWN_FIELD if answer.get("unknown_field") else b""
    )


def _wait(answer: Mapping[str, Any], context: grpc.ServicerContext) -> None:
    if answer.get("after_ms"):
        _until_gone(context, answer["after_ms"] / 1000)


def _end(answer: Mapping[str, Any], context: grpc.ServicerContext) -> None:
    if answer.get("hang"):
        _until_gone(context, _HANG_S)
    if status := answer.get("status"):
        if reason := status.get("reason"):
            context.set_trailing_metadata((("fila-reason", reason),))
        context.abort(grpc.StatusCode[status["code"]], status.get("message", ""))


def _until_gone(context: grpc.ServicerContext, seconds: float) -> None:
    is_gone = threading.Event()
    if context.add_callback(is_gone.set):
        is_gone.wait(seconds)


def credentials_of(certificate: str | None) -> grpc.ServerCredentials | None:
    """A server's side of TLS with one of the test certificates; None for none."""
    if certificate is None:
        return None
    pair = tuple((CERTS / f"{certificate}.{end}").read_bytes() for end in ("key", "pem"))
    return grpc.ssl_server_credentials([(pair[0], pair[1])])
