# SPDX-License-Identifier: AGPL-3.0-only
"""A client of one page, and the driver that lets the conformance suite hold it to `core`.

The upper half is a client as somebody might begin one: calls, one stream, errors by their reason.
The lower half turns the runner's requests into its calls. docs/guides/write-a-client.md explains
both. What protoc makes of the contract is taken from Python's SDK, nothing else of it.

    fila-conformance --driver "python small_client.py" --level core
"""

import json
import os
import queue
import sys
import threading
import time
from base64 import b64decode, b64encode
from typing import Any

import grpc

from fila.v1 import admin_pb2, admin_pb2_grpc, messages_pb2, service_pb2, service_pb2_grpc

# --- The client ---------------------------------------------------------------------------------

TIMEOUT_S = 5.0
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
# Of the statuses that may come without a reason, those whose error is not called internal.
KINDS = {
    "CANCELLED": "cancelled",
    "DEADLINE_EXCEEDED": "deadline_exceeded",
    "INVALID_ARGUMENT": "invalid_argument",
    "PERMISSION_DENIED": "permission_denied",
    "RESOURCE_EXHAUSTED": "resource_exhausted",
    "UNAUTHENTICATED": "unauthenticated",
    "UNAVAILABLE": "unavailable",
    "UNIMPLEMENTED": "unimplemented",
}
RETRYABLE = {
    *("overloaded", "queue_full", "disk_full", "resource_exhausted"),
    *("unavailable", "shutting_down", "deadline_exceeded"),
}


class Refused(Exception):
    """A call failed; `kind` is the broker's reason in lower case, or what the status means."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.is_retryable = kind in RETRYABLE


def refused(error: Any) -> Refused:
    """A failed call as an error: by the trailer `fila-reason`, then by status, never by text."""
    trailers = dict(error.trailing_metadata() or ())
    kind = str(trailers.get("fila-reason", "")).lower() or KINDS.get(error.code().name, "internal")
    return Refused(kind, error.details() or "the call failed")


class Client:
    """A connection to one broker. Any number of threads may use it."""

    def __init__(self, target: str, api_key: str | None = None, timeout: float = TIMEOUT_S) -> None:
        limits = ("grpc.max_receive_message_length", "grpc.max_send_message_length")
        self._channel = grpc.insecure_channel(target, [(it, MESSAGE_BYTES_MAX) for it in limits])
        self.service = service_pb2_grpc.FilaServiceStub(self._channel)
        self.admin = admin_pb2_grpc.FilaAdminStub(self._channel)
        self._metadata = [] if api_key is None else [("authorization", f"Bearer {api_key}")]
        self._timeout = timeout

    def call(self, method: Any, request: Any, timeout: float | None = None) -> Any:
        """One call of the contract, which always has a deadline. Raises Refused."""
        try:
            seconds = self._timeout if timeout is None else timeout
            return method(request, timeout=seconds, metadata=self._metadata)
        except grpc.RpcError as error:
            raise refused(error) from error

    def extend(self, extension: service_pb2.LeaseExtension, timeout: float | None = None) -> Any:
        """Prolongs one lease, and returns its new end. Raises Refused."""
        request = service_pb2.ExtendLeaseRequest(extensions=[extension])
        (result,) = self.call(self.service.ExtendLease, request, timeout).results
        if result.HasField("error"):
            # Batch calls succeed as a whole; each item says for itself what became of it.
            name = messages_pb2.ErrorReason.Name(result.error.reason)
            raise Refused(name.removeprefix("ERROR_REASON_").lower(), result.error.message)
        return result.lease_expires_at

    def consume(self, request: service_pb2.ConsumeRequest) -> "Consumer":
        """Opens a stream of messages. It has no deadline; closing the consumer ends it."""
        return Consumer(self.service.Consume(request, metadata=self._metadata))

    def close(self) -> None:
        self._channel.close()


class Consumer:
    """A stream of leased messages, read by a thread. The credit bounds what waits here."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._end: Any = None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        end: Any = "ended"
        try:
            for frame in self._stream:
                for message in frame.messages:
                    self._arrived.put(message)
        except grpc.RpcError as error:
            if not self._stream.cancelled():
                end = refused(error)
        self._arrived.put(end)

    def next(self, seconds: float) -> Any:
        """A message, "ended" once there are no more, None when time is over. Raises Refused."""
        if self._end is None:
            try:
                found = self._arrived.get(timeout=max(seconds, 0.001))
            except queue.Empty:
                return None
            if isinstance(found, messages_pb2.Message):
                return found
            self._end = found
        if isinstance(self._end, Refused):
            raise self._end
        return self._end

    def close(self) -> None:
        self._stream.cancel()


# --- The driver ---------------------------------------------------------------------------------

Fields = dict[str, Any]


class Driver:
    """One method per op of PROTOCOL.md; what it returns is the reply's `ok`."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        self._consumers: dict[str, Consumer] = {}

    def hello(self, given: Fields) -> Fields:
        language = f"python {sys.version.split()[0]}"
        return {"sdk": "small", "sdk_version": "1", "language": language, "features": []}

    def connect(self, given: Fields) -> None:
        options = {}
        if (timeout_ms := given.get("options", {}).get("timeout_ms")) is not None:
            options["timeout"] = timeout_ms / 1000
        client = Client(given["target"], given.get("api_key"), **options)
        self._clients[given["client"]] = client

    def close(self, given: Fields) -> None:
        self._clients[given["client"]].close()

    def enqueue(self, given: Fields) -> Fields:
        client, timeout = self._client(given)
        given["payload"] = b64decode(given.get("payload", ""))
        request = service_pb2.EnqueueRequest(**given)
        return {"message_id": client.call(client.service.Enqueue, request, timeout).message_id}

    def receive(self, given: Fields) -> Fields:
        client, timeout = self._client(given)
        # The call may take as long as it was told to wait, and then as long as any other.
        seconds = given.get("wait_ms", 0) / 1000 + (TIMEOUT_S if timeout is None else timeout)
        found = client.call(client.service.Receive, service_pb2.ReceiveRequest(**given), seconds)
        return {"messages": [delivery(message) for message in found.messages]}

    def ack(self, given: Fields) -> None:
        client, timeout = self._client(given)
        client.call(client.service.Ack, service_pb2.AckRequest(**given), timeout)

    def nack(self, given: Fields) -> None:
        client, timeout = self._client(given)
        client.call(client.service.Nack, service_pb2.NackRequest(**given), timeout)

    def extend(self, given: Fields) -> Fields:
        client, timeout = self._client(given)
        extension = service_pb2.LeaseExtension(extend_ms=given.pop("ms", 0), **given)
        return {"lease_expires_at_ms": client.extend(extension, timeout).ToMilliseconds()}

    def stats(self, given: Fields) -> Fields:
        client, timeout = self._client(given)
        found = client.call(client.admin.GetStats, admin_pb2.GetStatsRequest(**given), timeout)
        names = ("depth", "in_flight", "delayed", "active_consumers")
        return {name: getattr(found, name) for name in names}

    def consume(self, given: Fields) -> None:
        client, _ = self._client(given)
        name = given.pop("consumer")
        given["max_batch"] = given.pop("batch_size", 1)
        self._consumers[name] = client.consume(service_pb2.ConsumeRequest(**given))

    def next(self, given: Fields) -> Fields:
        consumer, until = self._consumers[given["consumer"]], given["wait_ms"] / 1000
        until += time.monotonic()
        messages: list[Fields] = []
        while len(messages) < given["max"]:
            found = consumer.next(until - time.monotonic())
            if not isinstance(found, messages_pb2.Message):
                return {"messages": messages, "ended": found == "ended"}
            messages.append(delivery(found))
        return {"messages": messages, "ended": False}

    def stop(self, given: Fields) -> None:
        self._consumers[given["consumer"]].close()

    def _client(self, given: Fields) -> tuple[Client, float | None]:
        """Takes out of a request who makes the call and how long it may take."""
        timeout_ms = given.pop("timeout_ms", None)
        client = self._clients[given.pop("client")]
        return client, None if timeout_ms is None else timeout_ms / 1000


def delivery(message: messages_pb2.Message) -> Fields:
    about, times = message.metadata, message.timestamps
    return {
        "id": message.id,
        "queue": about.queue_id,
        "headers": dict(message.headers),
        "payload": b64encode(message.payload).decode(),
        "fairness_key": about.fairness_key,
        "weight": about.weight,
        "throttle_keys": list(about.throttle_keys),
        "attempt_count": about.attempt_count,
        "lease_token": about.lease_token,
        "last_error": about.last_error,
        "failures": [failure_of(failure) for failure in about.failures],
        "enqueued_at_ms": times.enqueued_at.ToMilliseconds(),
        "lease_expires_at_ms": times.lease_expires_at.ToMilliseconds(),
    }


def failure_of(failure: messages_pb2.Failure) -> Fields:
    cause = messages_pb2.FailureCause.Name(failure.cause)
    return {
        "failed_at_ms": failure.failed_at.ToMilliseconds(),
        "cause": cause.removeprefix("FAILURE_CAUSE_").lower(),
        "error": failure.error,
    }


def answer(driver: Driver, request: Fields) -> Fields:
    """The reply to one request, whatever happens."""
    given = {name: value for name, value in request.items() if value is not None}
    request_id, op = given.pop("id"), given.pop("op")
    if op.startswith("_") or not hasattr(driver, op):
        return {"id": request_id, "unsupported": f"there is no {op} here"}
    try:
        return {"id": request_id, "ok": getattr(driver, op)(given) or {}}
    except Refused as error:
        told = {"kind": error.kind, "message": str(error), "retryable": error.is_retryable}
        return {"id": request_id, "error": told}
    except Exception as error:
        return {"id": request_id, "crashed": repr(error)}


def main() -> None:
    driver, writing = Driver(), threading.Lock()

    def serve(request: Fields) -> None:
        reply = json.dumps(answer(driver, request))
        with writing:
            sys.stdout.write(reply + "\n")
            sys.stdout.flush()

    # Requests run side by side: one that waits must not hold up the one that ends it.
    for line in sys.stdin:
        threading.Thread(target=serve, args=(json.loads(line),), daemon=True).start()
    # Whatever is open: the broker notices.
    os._exit(0)


if __name__ == "__main__":
    main()
