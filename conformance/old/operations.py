# SPDX-License-Identifier: AGPL-3.0-only
"""Every request of the protocol as calls of `fila`'s public API, written once for both clients.

A blocking client returns values and an awaiting one things to await; `settled` takes either.
"""

import inspect
import platform
import re
import time
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import fila

Fields = dict[str, Any]

_PASSED_ON = (
    *("queue", "headers", "fairness_key", "weight", "throttle_keys", "throttle_cost"),
    *("delay_ms", "ttl_ms", "idempotency_key"),
)

_THROTTLE = (
    *("key", "rate_per_second", "burst", "concurrency_limit", "in_flight", "waiting"),
    *("pattern", "unset", "paused"),
)


class Unsupported(Exception):
    """The SDK has no such call."""


class ActiveSpan(trace.NonRecordingSpan):
    """A span with the ids that the runner chose; recording, as a sampled one is."""

    def is_recording(self) -> bool:
        return True


def _identity(context: Any) -> str:
    return f"{context.trace_id:032x}-{context.span_id:016x}"


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class Operations:
    """Clients and consumers by the names that the runner gave them."""

    def __init__(self, flavour: Any) -> None:
        self._flavour = flavour
        self._clients: dict[str, Any] = {}
        self._consumers: dict[str, Any] = {}
        self._readers: dict[str, Any] = {}
        self._delivered: dict[tuple[str, str], Any] = {}
        self._spans = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._spans))
        trace.set_tracer_provider(provider)

    async def run(self, request: Fields) -> Fields:
        given = {name: value for name, value in request.items() if value is not None}
        operation = getattr(self, "do_" + given.pop("op"), None)
        if operation is None:
            raise Unsupported(f"unknown op {request['op']}")
        given.pop("id", None)
        outcome = await operation(given)
        return {} if outcome is None else outcome

    def _client(self, given: Fields) -> Any:
        return self._clients[given.pop("client")]

    async def do_hello(self, given: Fields) -> Fields:
        return {
            "sdk": "fila-python",
            "sdk_version": version("fila-client"),
            "language": f"python {platform.python_version()}",
            "features": ["tracing", "mtls"],
        }

    async def do_connect(self, given: Fields) -> None:
        options = given.get("options", {})
        settings: Fields = {}
        if "api_key" in given:
            settings["api_key"] = given["api_key"]
        if "tls" in given:
            settings["tls"] = fila.TlsOptions(**given["tls"])
        if options.get("timeout_ms") is not None:
            settings["timeout"] = options["timeout_ms"] / 1000
        backoff = {
            name: options[f"backoff_{name}_ms"] / 1000
            for name in ("initial", "maximum")
            if options.get(f"backoff_{name}_ms") is not None
        }
        if backoff:
            settings["backoff"] = fila.Backoff(**backoff)
        self._clients[given["client"]] = self._flavour.client(given["target"], **settings)

    async def do_close(self, given: Fields) -> None:
        await settled(self._client(given).close())

    async def do_enqueue(self, given: Fields) -> Fields:
        client = self._client(given)
        call = client.enqueue(**_message(given), **_timeout(given))
        return {"message_id": await settled(call)}

    async def do_enqueue_many(self, given: Fields) -> Fields:
        messages = [
            fila.EnqueueMessage(**_message({k: v for k, v in item.items() if v is not None}))
            for item in given["messages"]
        ]
        call = self._client(given).enqueue_many(messages, **_timeout(given))
        return {
            "results": [
                {"error": error_of(result.error)}
                if result.error
                else {"message_id": result.message_id, "duplicate": result.duplicate}
                for result in await settled(call)
            ]
        }

    async def do_enqueue_concurrently(self, given: Fields) -> Fields:
        client = self._client(given)
        count = given.pop("count")
        message = _message(given)
        outcomes = await self._flavour.gather([lambda: client.enqueue(**message)] * count)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return {"message_ids": outcomes}

    async def do_consume(self, given: Fields) -> None:
        names = ("max_in_flight", "batch_size", "visibility_timeout_ms")
        settings = {name: given[name] for name in names if name in given}
        consumer = self._client(given).consume(given["queue"], **settings)
        self._consumers[given["consumer"]] = consumer
        self._readers[given["consumer"]] = self._flavour.reader(consumer)

    async def do_next(self, given: Fields) -> Fields:
        name, reader = given["consumer"], self._readers[given["consumer"]]
        deadline = time.monotonic() + given["wait_ms"] / 1000
        messages: list[Fields] = []
        while len(messages) < given["max"]:
            try:
                item = await reader.next(max(0.001, deadline - time.monotonic()))
            except TimeoutError:
                break
            if isinstance(item, Exception):
                if not messages:
                    raise item
                self._readers[name] = Failed(item)
                break
            if item is None:
                return {"messages": messages, "ended": True}
            self._delivered[name, item.id] = item
            messages.append(_delivery(item))
        return {"messages": messages, "ended": False}

    async def do_stop(self, given: Fields) -> None:
        await settled(self._consumers[given["consumer"]].close())

    async def do_receive(self, given: Fields) -> Fields:
        client = self._client(given)
        call = client.receive(**given | _timeout(given))
        return {"messages": [_delivery(message) for message in await settled(call)]}

    async def do_ack(self, given: Fields) -> None:
        client = self._client(given)
        await settled(client.ack(**given | _timeout(given)))

    async def do_nack(self, given: Fields) -> None:
        client = self._client(given)
        await settled(client.nack(**given | _timeout(given)))

    async def do_extend(self, given: Fields) -> Fields:
        client = self._client(given)
        return {"lease_expires_at_ms": _ms(await settled(client.extend(**given | _timeout(given))))}

    async def do_ack_grant(self, given: Fields) -> Fields:
        client = self._client(given)
        return {"messages": await settled(client.ack_grant(**given | _timeout(given)))}

    async def do_nack_grant(self, given: Fields) -> Fields:
        client = self._client(given)
        return {"messages": await settled(client.nack_grant(**given | _timeout(given)))}

    async def do_extend_grant(self, given: Fields) -> Fields:
        client = self._client(given)
        end = await settled(client.extend_grant(**given | _timeout(given)))
        return {"lease_expires_at_ms": _ms(end)}

    async def do_ack_many(self, given: Fields) -> Fields:
        client, consumer = self._client(given), given["consumer"]
        messages = [self._delivered[consumer, it] for it in given["message_ids"]]
        outcomes = await settled(client.ack_many(messages))
        return {"results": [error_of(error) if error else None for error in outcomes]}

    async def do_ack_concurrently(self, given: Fields) -> Fields:
        client, queue = self._client(given), given["queue"]
        calls = [
            lambda ack=ack: client.ack(queue, ack["message_id"], ack.get("lease_token"))
            for ack in given["acks"]
        ]
        outcomes = await self._flavour.gather(calls)
        return {"results": [error_of(error) if error else None for error in outcomes]}

    async def do_settle(self, given: Fields) -> Fields | None:
        message = self._delivered[given["consumer"], given["message_id"]]
        if given["how"] == "ack":
            await settled(message.ack())
        elif given["how"] == "nack":
            await settled(message.nack(*[given[name] for name in ("error",) if name in given]))
        else:
            end = await settled(message.extend(*[given[name] for name in ("ms",) if name in given]))
            return {"lease_expires_at_ms": _ms(end)}
        return None

    async def do_create_queue(self, given: Fields) -> Fields:
        call = self._client(given).create_queue(given["queue"], **given.get("settings", {}))
        return {"dead_letter_queue": await settled(call)}

    async def do_delete_queue(self, given: Fields) -> Fields:
        deleted = await settled(self._client(given).delete_queue(**given))
        return {"messages": deleted.messages, "dead_letters": deleted.dead_letters}

    async def do_list_queues(self, given: Fields) -> Fields:
        names = ("name", "depth", "in_flight", "active_consumers")
        queues = await settled(self._client(given).list_queues())
        return {"queues": [{name: getattr(queue, name) for name in names} for queue in queues]}

    async def do_stats(self, given: Fields) -> Fields:
        stats = await settled(self._client(given).stats(given["queue"]))
        names = ("depth", "in_flight", "delayed", "active_consumers")
        return {name: getattr(stats, name) for name in names}

    async def do_redrive(self, given: Fields) -> Fields:
        call = self._client(given).redrive(given["queue"], given.get("count"))
        return {"redriven": await settled(call)}

    async def do_set_config(self, given: Fields) -> None:
        await settled(self._client(given).set_config(given["key"], given["value"]))

    async def do_get_config(self, given: Fields) -> Fields:
        return {"value": await settled(self._client(given).get_config(given["key"]))}

    async def do_set_config_all(self, given: Fields) -> None:
        await settled(self._client(given).set_config_all(given["entries"]))

    async def do_list_throttles(self, given: Fields) -> Fields:
        page = await settled(self._client(given).list_throttles(**given))
        rows = [{name: getattr(row, name) for name in _THROTTLE} for row in page.throttles]
        return {"throttles": rows, "total_count": page.total_count}

    async def do_pause_throttle(self, given: Fields) -> None:
        await settled(self._client(given).pause_throttle(**given))

    async def do_resume_throttle(self, given: Fields) -> None:
        await settled(self._client(given).resume_throttle(given["key"]))

    async def do_create_api_key(self, given: Fields) -> Fields:
        client = self._client(given)
        given["acl"] = [fila.AclEntry(**entry) for entry in given.get("acl", ())]
        if (expires_at_ms := given.pop("expires_at_ms", None)) is not None:
            given["expires_at"] = datetime.fromtimestamp(expires_at_ms / 1000, UTC)
        key = await settled(client.create_api_key(**given))
        return {"key_id": key.key_id, "secret": key.secret}

    async def do_cancel(self, given: Fields) -> None:
        self._flavour.cancel(given["target"])

    async def do_process(self, given: Fields) -> Fields:
        with fila.tracing.processing(self._delivered[given["consumer"], given["message_id"]]):
            pass
        (span,) = self._spans.get_finished_spans()
        self._spans.clear()
        return {
            "name": span.name,
            "kind": span.kind.name.lower(),
            "parent": _identity(span.parent) if span.parent else "",
            "links": [_identity(link.context) for link in span.links],
            "attributes": dict(span.attributes or {}),
        }

    async def do_with_span(self, given: Fields) -> Fields:
        carrier = {name: given[name] for name in ("traceparent", "tracestate") if name in given}
        context = TraceContextTextMapPropagator().extract(carrier)
        span = ActiveSpan(trace.get_current_span(context).get_span_context())
        with trace.use_span(span):
            return await self.run(given["then"])


class Failed:
    """Stands in for a reader whose error has yet to be reported."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def next(self, seconds: float) -> Any:
        return self._error


def error_of(error: BaseException) -> Fields:
    if not isinstance(error, fila.FilaError):
        raise error
    words = re.findall("[A-Z][a-z]*", type(error).__name__.removesuffix("Error"))
    kind = "_".join(words).lower()
    return {"kind": kind, "message": str(error), "retryable": error.retryable}


def _message(given: Fields) -> Fields:
    fields = {name: given[name] for name in _PASSED_ON if name in given}
    if "payload" in given:
        fields["payload"] = b64decode(given["payload"])
    if "deliver_at_ms" in given:
        fields["deliver_at"] = datetime.fromtimestamp(given["deliver_at_ms"] / 1000, UTC)
    return fields


def _timeout(given: Fields) -> Fields:
    timeout_ms = given.pop("timeout_ms", None)
    return {} if timeout_ms is None else {"timeout": timeout_ms / 1000}


def _delivery(message: fila.Message) -> Fields:
    return {
        "id": message.id,
        "queue": message.queue,
        "headers": message.headers,
        "payload": b64encode(message.payload).decode(),
        "fairness_key": message.fairness_key,
        "weight": message.weight,
        "throttle_keys": list(message.throttle_keys),
        "attempt_count": message.attempt_count,
        "lease_token": message.lease_token,
        "last_error": message.last_error,
        "failures": [
            {
                "failed_at_ms": _ms(failure.failed_at),
                "cause": failure.cause,
                "error": failure.error,
            }
            for failure in message.failures
        ],
        "enqueued_at_ms": _ms(message.enqueued_at),
        "lease_expires_at_ms": _ms(message.lease_expires_at),
    }


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)
