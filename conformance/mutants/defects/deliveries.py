# SPDX-License-Identifier: AGPL-3.0-only
"""Defects of consumers, of the leases that they keep, and of settlements."""

import math
import time
from typing import Any

import grpc

from defects.change import replace
from fila import (
    _bulk,
    _calls,
    _connection,
    _endpoint,
    _grants,
    _leases,
    _reader,
    _wire,
    consumer,
    errors,
    options,
)


def deadline_on_stream() -> None:
    def change(original: Any) -> Any:
        def stream(self: Any, *given: Any) -> Any:
            stub = original(self, *given)
            return lambda request, **named: stub(request, timeout=5.0, **named)

        return stream

    replace(_endpoint.Line, "stream", change)


def ignore_stop() -> None:
    replace(consumer.Consumer, "close", lambda original: lambda self: None)


def never_reconnect() -> None:
    def delay(self: Any, error: Any) -> float:
        raise error or errors.UnavailableError("the broker ended the stream")

    replace(_reader._Reconnect, "delay", lambda original: delay)


def hot_loop_reconnect() -> None:
    def stream(self: Any, method: str, request: bytes, response: Any, wait_for_ready: bool) -> Any:
        settings = [*self.options, ("grpc.use_local_subchannel_pool", 1)]
        self._hot = grpc.insecure_channel(self.target, options=settings)
        return self._hot.unary_stream(method, None, response.FromString)(request)

    replace(_connection.Connection, "stream", lambda original: stream)
    replace(options.Backoff, "delay", lambda original: lambda self, attempt, chance: 0.0)
    replace(_reader, "_PROOF_S", lambda original: 0.0)


def swallow_stream_error() -> None:
    def change(original: Any) -> Any:
        def read(self: Any) -> None:
            try:
                original(self)
            except errors.FilaError:
                pass

        return read

    replace(_reader.Reader, "_read", change)


def unread_kept() -> None:
    replace(_reader.Reader, "_release", lambda original: lambda self: None)


def unread_given_back_one_by_one() -> None:
    replace(_wire, "split", lambda original: lambda items: ([item] for item in items))


def unbounded_credit() -> None:
    def change(original: Any) -> Any:
        return lambda queue, max_in_flight, *rest: original(queue, 100_000, *rest)

    replace(_wire, "consume_request", change)


def old_credit() -> None:
    def change(original: Any) -> Any:
        return lambda queue, most, *rest: original(queue, 256 if most == 64 else most, *rest)

    replace(_wire, "consume_request", change)


def leases_not_kept() -> None:
    replace(_leases.Keeper, "add", lambda original: lambda self, frame: None)


def leases_without_end() -> None:
    def change(original: Any) -> Any:
        def starts(self: Any, at: float) -> None:
            original(self, at)
            self.ends_at = math.inf

        return starts

    replace(_leases.Frame, "starts", change)


def lost_frames_are_kept() -> None:
    replace(_leases.Frame, "lose", lambda original: lambda self, why: None)


def extension_given_up() -> None:
    def postpone(frames: Any, error: Any) -> None:
        for frame in frames:
            frame.lose("")

    replace(_leases, "_postpone", lambda original: postpone)


def extended_for_ever() -> None:
    def change(original: Any) -> Any:
        def create(self: Any, messages: Any, arrived_at: float) -> None:
            original(self, messages, arrived_at)
            self.handling[""] = messages[0]

        return create

    replace(_leases.Frame, "__init__", change)


def leases_by_the_wall_clock() -> None:
    def change(original: Any) -> Any:
        def lease_s(times: Any) -> float:
            ends_at = times.lease_expires_at.ToMilliseconds() / 1000
            return ends_at - time.time() if ends_at else math.inf

        return lease_s

    replace(_leases, "_lease_s", change)


def unknown_extensions_asked_again() -> None:
    class Forgetful(Exception):
        """Never raised, so that UNIMPLEMENTED is an error like others."""

    replace(_leases, "UnimplementedError", lambda _: Forgetful)


def lost_stream_takes_frames_along() -> None:
    def change(original: Any) -> Any:
        def prove(self: Any, stream: Any, *given: Any) -> None:
            self.frames.clear()
            original(self, stream, *given)

        return prove

    replace(_reader.Reader, "_prove", change)


def frames_one_by_one() -> None:
    replace(_grants, "whole_frames", lambda _: lambda deliveries: [])


def grants_without_a_count() -> None:
    def change(original: Any) -> Any:
        def frame_item(first: Any) -> Any:
            return original(first._replace(frame_size=0))

        return frame_item

    replace(_grants, "frame_item", change)


def refused_frames_are_lost() -> None:
    class Nothing(errors.FilaError):
        """No error that the broker sends."""

    replace(_grants, "LeaseExpiredError", lambda _: Nothing)


def exceptions_forgotten() -> None:
    def change(original: Any) -> Any:
        return lambda queue, token, ids: original(queue, token, ())

    replace(_grants, "_settlement", change)


def unknown_grants_asked_again() -> None:
    class Forgetful(Exception):
        """Never raised, so that UNIMPLEMENTED is an error like others."""

    replace(_grants, "UnimplementedError", lambda _: Forgetful)
    replace(_bulk, "UnimplementedError", lambda _: Forgetful)


def ignore_lease_token() -> None:
    def change(original: Any) -> Any:
        return lambda queue, message_id, token=None, size=0: original(queue, message_id, None)

    replace(_wire, "ack_item", change)


def retry_after_dropped() -> None:
    def change(original: Any) -> Any:
        return lambda queue, message_id, error="", token=None, *rest: original(
            queue, message_id, error, token
        )

    replace(_wire, "nack_item", change)


def hopeless_is_a_failure() -> None:
    replace(_wire, "nack_item", lambda original: lambda *given: original(*given[:6]))

    def change(original: Any) -> Any:
        return lambda *given: original(*given[:5], False, *given[6:])

    replace(_grants, "nack_item", change)


def _settlement_item(**fields: Any) -> None:
    """Changes every ack, nack and extension of one message."""

    def change(original: Any) -> Any:
        return lambda *given: original(*given)._replace(**fields)

    # Acks are encoded by a way of their own.
    replace(_wire, "_delivery_item", change)
    replace(_wire, "ack_item", change)


def settlements_sent_once() -> None:
    _settlement_item(is_repeatable=False)


def tokenless_settlements_repeated() -> None:
    _settlement_item(is_repeatable=True)


def repeats_taken_at_their_word() -> None:
    _settlement_item(forgiven=())


def _grant_item(is_repeatable: bool) -> None:
    def change(original: Any) -> Any:
        return lambda *given: original(*given)._replace(is_repeatable=is_repeatable)

    replace(_grants, "ack_item", change)
    replace(_grants, "nack_item", change)


def frames_sent_once() -> None:
    _grant_item(is_repeatable=False)


def grants_settled_twice() -> None:
    _grant_item(is_repeatable=True)


def lease_expired_is_an_ack() -> None:
    replace(_wire, "_GONE", lambda original: _wire._GONE_OR_OVER)


def gone_is_always_success() -> None:
    def change(original: Any) -> Any:
        def submit(self: Any, coalescer: Any, item: Any, retry: Any) -> Any:
            try:
                return original(self, coalescer, item, retry)
            except item.forgiven:
                return None

        return submit

    replace(_calls.Calls, "_submit", change)
