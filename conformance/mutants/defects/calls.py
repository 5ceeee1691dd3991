# SPDX-License-Identifier: AGPL-3.0-only
"""Defects of calls: what is sent, how often, with which deadline, and what comes of the answer."""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from defects.change import replace
from fila import (
    _calls,
    _coalesce,
    _connection,
    _endpoint,
    _key,
    _wire,
    access,
    admin,
    client,
    config,
    errors,
    message,
    tracing,
)


def _request(edit: Callable[[Any, Any], None]) -> None:
    """Edits every message that is enqueued, given its request and its trace."""

    def change(original: Any) -> Any:
        def request(sent: Any, trace: Any) -> Any:
            built = original(sent, trace)
            edit(built, trace)
            return built

        return request

    replace(_wire, "_enqueue_request", change)
    # Plain messages are encoded without one.
    replace(_wire, "_is_plain", lambda original: lambda message: False)


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
        def create(self: Any, raw: Any, *given: Any) -> None:
            original(self, raw, *given)
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


def retries_without_pause() -> None:
    def pause(self: Any) -> float | None:
        return 0.0 if self.remaining > 0 else None

    replace(_connection.Retry, "pause", lambda original: pause)


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
    replace(_key.KeyRing, "redacted", lambda original: lambda self, text: (text, False))


def no_key_on_stream() -> None:
    def change(original: Any) -> Any:
        def stream(self: Any, *given: Any, **named: Any) -> Any:
            self.metadata = lambda trace: tuple(trace.items())
            try:
                return original(self, *given, **named)
            finally:
                del self.metadata

        return stream

    replace(_connection.Connection, "stream", change)


def ignore_tls() -> None:
    def change(original: Any) -> Any:
        return lambda self, route: original(self, route._replace(material=None))

    replace(_connection.Connection, "_open", change)


def _channel(change: Callable[[str, Any], Any]) -> None:
    """Changes options of every channel, given their names and values."""

    def changed(original: Any) -> Any:
        return lambda *given: [(name, change(name, value)) for name, value in original(*given)]

    replace(_endpoint, "_channel_options", changed)


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
    replace(_endpoint, "ClientClosedError", lambda original: errors.UnavailableError)


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
