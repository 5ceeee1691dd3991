# SPDX-License-Identifier: AGPL-3.0-only
"""The defects, one function each, named as in fila_conformance/mutants.py.

They reach into the Python SDK, which no driver may. A function that finds nothing to break fails
with an AttributeError, so a mutant cannot turn harmless when the SDK changes.
"""

import dataclasses
import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc

from fila import (
    _bulk,
    _calls,
    _coalesce,
    _connection,
    _grants,
    _leases,
    _outcomes,
    _reader,
    _wire,
    access,
    admin,
    client,
    config,
    consumer,
    errors,
    message,
    options,
    tracing,
    worker,
)


def replace(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Puts `change(original)` in the place of something that exists."""
    setattr(owner, name, change(getattr(owner, name)))


def _request(edit: Callable[[Any, Any], None]) -> None:
    """Edits every message that is enqueued, given its request and its trace."""

    def change(original: Any) -> Any:
        def request(sent: Any, trace: Any) -> Any:
            built = original(sent, trace)
            edit(built, trace)
            return built

        return request

    replace(_wire, "_enqueue_request", change)


def drop_headers() -> None:
    _request(lambda request, trace: request.headers.clear())


def overwrite_traceparent() -> None:
    def edit(request: Any, trace: Any) -> None:
        for key, value in trace.items():
            request.headers[key] = value

    _request(edit)


def trace_in_metadata_only() -> None:
    def edit(request: Any, trace: Any) -> None:
        for name in trace:
            request.headers.pop(name, None)

    _request(edit)


def process_in_a_trace_of_its_own() -> None:
    replace(tracing, "_extracted", lambda original: lambda message, into: into)


def lowercase_header_keys() -> None:
    def fill(delivered: Any, raw: Any) -> None:
        delivered.headers = {key.lower(): value for key, value in raw.headers.items()}

    assert "headers" in message._FILL
    message._FILL["headers"] = fill


def decode_payload_as_utf8() -> None:
    def change(original: Any) -> Any:
        def create(self: Any, raw: Any, client: Any = None, frame_size: int = 0) -> None:
            original(self, raw, client, frame_size)
            self.payload = raw.payload.decode("utf-8", "replace").encode()

        return create

    replace(message.Message, "__init__", change)


def attempt_off_by_one() -> None:
    original = message._FILL["attempt_count"]

    def fill(delivered: Any, raw: Any) -> None:
        original(delivered, raw)
        delivered.attempt_count += 1

    # One function fills several fields, whichever of them is read first.
    for name, filler in message._FILL.items():
        if filler is original:
            message._FILL[name] = fill


def not_found_always_queue() -> None:
    errors.REASONS["MESSAGE_NOT_FOUND"] = errors.REASONS["QUEUE_NOT_FOUND"]  # type: ignore[index]


def reason_ignored() -> None:
    replace(
        errors,
        "from_status",
        lambda original: lambda code, reason, text, **about: original(code, None, text, **about),
    )


def retry_ambiguous_enqueue() -> None:
    def change(original: Any) -> Any:
        return lambda *given: original(*given)._replace(is_repeatable=True)

    replace(_wire, "enqueue_item", change)


def retry_everything() -> None:
    replace(_connection, "UnavailableError", lambda original: errors.FilaError)
    replace(_calls, "UnavailableError", lambda original: errors.FilaError)


def no_default_deadline() -> None:
    def seconds(self: Any, timeout: float | None) -> float:
        return 3600.0 if timeout is None else timeout

    replace(_connection.Endpoint, "seconds", lambda original: seconds)


def ignore_call_timeout() -> None:
    replace(_connection.Endpoint, "seconds", lambda original: lambda self, timeout: self.timeout)


def deadline_on_stream() -> None:
    def stream(self: Any, method: str, request: bytes, response: Any, wait_for_ready: bool) -> Any:
        self.check_open()
        stub = self._channel.unary_stream(method, None, response.FromString)
        metadata = self.metadata(tracing.current())
        return stub(request, metadata=metadata, wait_for_ready=wait_for_ready, timeout=self.timeout)

    replace(_connection.Connection, "stream", lambda original: stream)


def receive_deadline_without_wait() -> None:
    def change(original: Any) -> Any:
        def call(self: Any, call: Any, timeout: float | None) -> Any:
            is_receive = call.method == _wire.RECEIVE
            return original(self, call, self.timeout if is_receive else timeout)

        return call

    replace(_connection.Connection, "call", change)


def ignore_cancel() -> None:
    import driver

    replace(driver.Async, "cancel", lambda original: lambda self, target: None)


def cancel_takes_the_batch_along() -> None:
    def change(original: Any) -> Any:
        async def submit(self: Any, *given: Any) -> Any:
            try:
                return await original(self, *given)
            finally:
                for task in list(self._connection._background):
                    task.cancel()
                for task in [seat.future for seat in self._waiting]:
                    task.cancel()

        return submit

    replace(_coalesce.AsyncCoalescer, "submit", change)


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
        def prove(self: Any, stream: Any) -> None:
            self.frames.clear()
            original(self, stream)

        return prove

    replace(_reader.Reader, "_prove", change)


def failures_forgotten() -> None:
    replace(message, "read_failures", lambda original: lambda rows: ())


def dead_letters_always_go() -> None:
    replace(admin, "delete_queue", lambda original: lambda queue, keep: original(queue, False))


def entries_one_by_one() -> None:
    def change(original: Any) -> Any:
        def call(self: Any, call: Any, timeout: float | None) -> Any:
            sent = getattr(call.request, "entries", None)
            for entry in sent or ():
                original(self, config.set_config(entry.key, entry.value), timeout)
            return None if sent else original(self, call, timeout)

        return call

    replace(_connection.Connection, "call", change)


def expiry_lost() -> None:
    def change(original: Any) -> Any:
        return lambda name, acl, expires_at, superadmin: original(name, acl, None, superadmin)

    replace(access, "create_api_key", change)


def throttle_pause_without_end() -> None:
    replace(admin, "pause_throttle", lambda original: lambda key, duration: original(key, None))


def all_throttles_are_listed() -> None:
    def change(original: Any) -> Any:
        return lambda prefix, unset, limit: original(prefix, False, limit)

    replace(admin, "list_throttles", change)


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


# --- Settling again -----------------------------------------------------------------------------


def _settlement_item(**fields: Any) -> None:
    """Changes every ack, nack and extension of one message."""

    def change(original: Any) -> Any:
        return lambda *given: original(*given)._replace(**fields)

    replace(_wire, "_delivery_item", change)


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


def retries_without_pause() -> None:
    def change(original: Any) -> Any:
        return lambda self: None if original(self) is None else 0.01

    replace(_connection.Retry, "pause", change)


# --- Flushing and closing -----------------------------------------------------------------------


def flush_at_once() -> None:
    replace(_calls.Calls, "flush", lambda original: lambda self, timeout: True)


def flush_without_extensions() -> None:
    def change(original: Any) -> Any:
        def send(self: Any, coalescer: Any, encode: Any, timeout: Any) -> Any:
            if coalescer is self.extensions:
                return coalescer.submit(encode(), self._connection.seconds(timeout))
            return original(self, coalescer, encode, timeout)

        return send

    replace(_calls.Calls, "send", change)


def flush_until_success() -> None:
    def change(original: Any) -> Any:
        def end(self: Any, call: Any) -> None:
            if sys.exc_info()[0] is None:
                original(self, call)

        return end

    replace(_calls.Calls, "_end", change)


def flush_without_end() -> None:
    def change(original: Any) -> Any:
        return lambda self, timeout: original(self, 3600.0)

    replace(_calls.Calls, "flush", change)


def _close_timeout(seconds: float) -> None:
    def change(original: Any) -> Any:
        def create(self: Any, target: str, **settings: Any) -> None:
            original(self, target, **settings, close_timeout=seconds)

        return create

    replace(client.Client, "__init__", change)


def close_cuts_off() -> None:
    _close_timeout(0.0)


def close_takes_its_time() -> None:
    _close_timeout(25.0)


# --- Workers ------------------------------------------------------------------------------------


def _outcome(kind: type[BaseException], change: Callable[[Any, Any], Any]) -> None:
    """Changes what becomes of a handler's error of this kind."""

    def changed(original: Any) -> Any:
        def outcome_of(error: Any) -> Any:
            outcome = original(error)
            return change(outcome, error) if isinstance(error, kind) else outcome

        return outcome_of

    replace(worker, "outcome_of", changed)


def failures_are_acked() -> None:
    _outcome(Exception, lambda outcome, error: worker.ACKED)


def failures_without_a_text() -> None:
    _outcome(Exception, lambda outcome, error: dataclasses.replace(outcome, text=""))


def _failed(outcome: Any, error: Any) -> Any:
    return worker.Outcome("nacked", error, str(error))


def backpressure_is_a_failure() -> None:
    _outcome(worker.Backpressure, _failed)


def backpressure_without_its_key() -> None:
    def change(outcome: Any, error: Any) -> Any:
        return dataclasses.replace(outcome, throttle_key=None)

    _outcome(worker.Backpressure, change)


def dead_letter_is_a_failure() -> None:
    _outcome(worker.DeadLetter, _failed)


def _handling(ends_at: Callable[[Any], float]) -> None:
    def change(original: Any) -> Any:
        def create(self: Any, *given: Any) -> None:
            original(self, *given)
            self.ends_at = ends_at(self)

        return create

    replace(worker.Handling, "__init__", change)


def handlers_take_for_ever() -> None:
    _handling(lambda handling: math.inf)


def handlers_time_out_at_once() -> None:
    _handling(lambda handling: handling.since)


def slow_handlers_are_replaced() -> None:
    def change(original: Any) -> Any:
        def tell(self: Any, kind: str, *given: Any) -> None:
            original(self, kind, *given)
            if kind == "timed_out":
                threading.Thread(target=self._work, daemon=True).start()

        return tell

    replace(worker.Worker, "_tell", change)


def settled_twice() -> None:
    replace(_outcomes, "is_settled", lambda original: lambda message: False)


def settlement_ends_the_worker() -> None:
    def change(original: Any) -> Any:
        def settled(self: Any, handling: Any, outcome: Any, message: Any, error: Any) -> None:
            if error is not None:
                self.stop()
            original(self, handling, outcome, message, error)

        return settled

    replace(worker.Worker, "_settled", change)


def one_handler_at_a_time() -> None:
    lock = threading.Lock()

    def change(original: Any) -> Any:
        def handle(self: Any, handling: Any) -> None:
            with lock:
                original(self, handling)

        return handle

    replace(worker.Worker, "_handle", change)


def one_handler_too_many() -> None:
    def change(original: Any) -> Any:
        def watch(self: Any) -> None:
            threading.Thread(target=self._work, daemon=True).start()
            original(self)

        return watch

    replace(worker.Worker, "_watch", change)


def prefetch_of_a_thousand() -> None:
    replace(worker.Options, "in_flight", lambda original: property(lambda self: 1000))


def worker_of_the_queues_timeout() -> None:
    def change(original: Any) -> Any:
        return lambda self: original(dataclasses.replace(self, visibility_timeout_ms=None))

    replace(worker.Options, "request", change)


def batches_linger() -> None:
    def change(original: Any) -> Any:
        def is_ready(self: Any) -> bool:
            while not original(self) and not self.is_closed:
                time.sleep(0.05)
            return True

        return is_ready

    replace(_reader.Reader, "is_ready", change)


def outcome_is_the_firsts() -> None:
    def change(original: Any) -> Any:
        def split(batch: Any) -> Any:
            acks, nacks = original(batch)
            others = [entry for entry in nacks if entry[2] is not entry[0].messages[0]]
            acks += [(handling, worker.ACKED, message) for handling, _, message in others]
            return acks, [entry for entry in nacks if entry not in others]

        return split

    replace(worker, "split", change)


def handled_messages_are_not_kept() -> None:
    def change(original: Any) -> Any:
        def taken(reader: Any) -> Any:
            found = original(reader)
            if found is not None:
                found[0].handling.pop(found[1].id)
            return found

        return taken

    replace(worker, "taken", change)


def acked_before_it_is_handled() -> None:
    def change(original: Any) -> Any:
        def handle(self: Any, handling: Any) -> None:
            for each in handling.messages:
                each.ack()
            original(self, handling)

        return handle

    replace(worker.Worker, "_handle", change)


def stop_has_no_grace() -> None:
    replace(worker.Common, "_shorten", lambda original: lambda self, grace: original(self, 0))


def grace_has_no_end() -> None:
    replace(worker.Common, "_shorten", lambda original: lambda self, grace: original(self, 3600))


def cut_off_is_a_failure() -> None:
    replace(worker, "GIVEN_BACK", lambda original: worker.Outcome("nacked", text="stopped"))


def worker_swallows_its_error() -> None:
    def change(original: Any) -> Any:
        def run(self: Any, **named: Any) -> None:
            with suppress(errors.FilaError):
                original(self, **named)

        return run

    replace(worker.Worker, "run", change)


def worker_stops_late() -> None:
    def change(original: Any) -> Any:
        def run(self: Any, **named: Any) -> None:
            original(self, **named)
            time.sleep(13)

        return run

    replace(worker.Worker, "run", change)


def worker_fails_with_its_client() -> None:
    def change(original: Any) -> Any:
        def run(self: Any, **named: Any) -> None:
            original(self, **named)
            self._connection.check_open()

        return run

    replace(worker.Worker, "run", change)


def worker_fails_before_its_handlers_end() -> None:
    def change(original: Any) -> Any:
        def work(self: Any) -> None:
            original(self)
            if self._failure is not None:
                self._shorten(0)
                self._news.put("stop")

        return work

    replace(worker.Worker, "_work", change)


def duplicates_not_told() -> None:
    def change(original: Any) -> Any:
        return lambda message_id, duplicate=False, error=None: original(message_id, False, error)

    replace(_wire, "EnqueueResult", change)


def one_error_fails_all() -> None:
    def change(original: Any) -> Any:
        def outcomes(self: Any, response: Any, items: Any) -> Any:
            found = original(self, response, items)
            failed = next((one for one in found if isinstance(one, errors.FilaError)), None)
            return found if failed is None else [errors.about(failed, None, None) for _ in found]

        return outcomes

    replace(_wire.Batch, "outcomes", change)


def no_coalescing() -> None:
    replace(_coalesce, "REQUESTS_UNDER_WAY_MAX", lambda original: 10_000)


def sync_lock_across_calls() -> None:
    lock = threading.Lock()

    def change(original: Any) -> Any:
        def send(self: Any, *given: Any) -> Any:
            with lock:
                return original(self, *given)

        return send

    replace(_connection.Connection, "send", change)


def leak_api_key_in_error() -> None:
    replace(_connection, "_checked_api_key", lambda original: lambda key: None)


def no_key_on_stream() -> None:
    def change(original: Any) -> Any:
        def stream(self: Any, *given: Any, **named: Any) -> Any:
            kept, self._metadata = self._metadata, ()
            try:
                return original(self, *given, **named)
            finally:
                self._metadata = kept

        return stream

    replace(_connection.Connection, "stream", change)


def ignore_tls() -> None:
    replace(_connection, "_credentials", lambda original: lambda tls: None)


def _channel(change: Callable[[str, Any], Any]) -> None:
    """Changes options of every channel, given their names and values."""

    def changed(original: Any) -> Any:
        return lambda *given: [(name, change(name, value)) for name, value in original(*given)]

    replace(_connection, "_channel_options", changed)


def anonymous() -> None:
    _channel(lambda name, value: "" if name == "grpc.primary_user_agent" else value)


def grpcs_receive_limit() -> None:
    _channel(lambda name, value: 4 << 20 if name == "grpc.max_receive_message_length" else value)


def hang_on_close() -> None:
    def change(original: Any) -> Any:
        def close(self: Any) -> None:
            time.sleep(13)
            original(self)

        return close

    replace(_connection.Connection, "close", change)


def closed_means_unavailable() -> None:
    replace(_connection, "ClientClosedError", lambda original: errors.UnavailableError)


def chatty_driver() -> None:
    import driver

    def change(original: Any) -> Any:
        def write(self: Any, reply: Any) -> None:
            self._file.write("hello from a print statement\n")
            original(self, reply)

        return write

    replace(driver.Replies, "write", change)


def undeclared_field() -> None:
    import driver

    def change(original: Any) -> Any:
        def write(self: Any, reply: Any) -> None:
            if "message_id" in reply.get("ok", {}):
                reply["ok"]["colour"] = "blue"
            original(self, reply)

        return write

    replace(driver.Replies, "write", change)
