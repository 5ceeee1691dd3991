# SPDX-License-Identifier: AGPL-3.0-only
"""Defects of what operates a broker, of what errors say, and of many who share one thing."""

import threading
from collections.abc import Callable
from typing import Any

from defects.change import replace
from fila import _wire, access, admin, client, config, consumer, errors, findings, ready, settle


def update_names_every_setting() -> None:
    def change(original: Any) -> Any:
        def update(queue: str, settings: Any) -> Any:
            call = original(queue, settings)
            del call.request.update_mask.paths[:]
            call.request.update_mask.paths.extend(admin.QueueSettings.__annotations__)
            return call

        return update

    replace(admin, "update_queue", change)


def _peek(edit: Callable[[Any], None]) -> None:
    """Edits the request of every look at messages."""

    def change(original: Any) -> Any:
        def peek(*given: Any) -> Any:
            call = original(*given)
            edit(call.request)
            return call

        return peek

    replace(admin, "peek", change)


def peek_at_any_state() -> None:
    _peek(lambda request: request.ClearField("state"))


def peek_from_the_beginning() -> None:
    _peek(lambda request: request.ClearField("from_position"))


def purge_takes_all_keys() -> None:
    replace(admin, "purge", lambda original: lambda queue, key: original(queue, None))


def pause_takes_the_queue() -> None:
    replace(admin, "pause", lambda original: lambda queue, key: original(queue, None))


def resume_pauses() -> None:
    replace(admin, "resume", lambda original: admin.pause)


def leased_means_not_found() -> None:
    errors.REASONS["MESSAGE_LEASED"] = errors.REASONS["MESSAGE_NOT_FOUND"]  # type: ignore[index]


def explanation_without_reasons() -> None:
    replace(findings, "WaitKind", lambda original: lambda kind: original.TURN)


def deletion_sets_to_nothing() -> None:
    replace(config, "delete_config", lambda original: lambda key: config.set_config(key, ""))


def permissions_read_alike() -> None:
    replace(access, "_read_kind", lambda original: lambda kind: access.Permission.PRODUCE)


def nack_many_without_the_error() -> None:
    def change(original: Any) -> Any:
        return lambda self, messages, error="", **named: original(self, messages, **named)

    replace(settle.SettleCalls, "nack_many", change)


def ensure_compares_nothing() -> None:
    replace(ready, "_check_same", lambda original: lambda *given: None)


def ensure_is_create() -> None:
    def create(name: str, settings: Any) -> Any:
        return (yield admin.create_queue(name, settings))

    replace(ready, "_ensured", lambda original: create)


def extend_many_by_the_queues_time() -> None:
    def change(original: Any) -> Any:
        return lambda self, messages, ms=None, **named: original(self, messages, **named)

    replace(settle.SettleCalls, "extend_many", change)


def ping_asks_nobody() -> None:
    replace(ready.ReadyCalls, "ping", lambda original: lambda self, **named: 0.0)


def ping_needs_permission() -> None:
    def change(original: Any) -> Any:
        def ping(self: Any, **named: Any) -> Any:
            self.list_queues(**named)
            return original(self, **named)

        return ping

    replace(ready.ReadyCalls, "ping", change)


def _errors(edit: Callable[[Any], None]) -> None:
    """Edits every error once it is made."""

    def change(original: Any) -> Any:
        def create(self: Any, *given: Any, **named: Any) -> None:
            original(self, *given, **named)
            edit(self)

        return create

    replace(errors.FilaError, "__init__", change)


def errors_without_their_queue() -> None:
    _errors(lambda error: setattr(error, "queue", None))


def errors_without_their_message() -> None:
    _errors(lambda error: setattr(error, "message_id", None))


def every_error_has_a_status() -> None:
    _errors(lambda error: setattr(error, "code", error.code or "UNKNOWN"))


def first_message_of_each_reader_is_anothers() -> None:
    reader = threading.local()
    last: list[Any] = []

    def change(original: Any) -> Any:
        def take(self: Any) -> Any:
            message = original(self)
            is_first = not hasattr(reader, "has_one")
            reader.has_one = True
            if not (is_first and last):
                last.append(message)
            return last[-1]

        return take

    replace(consumer.Consumer, "__next__", change)


def text_made_to_fit() -> None:
    def fit(value: Any) -> Any:
        if isinstance(value, str):
            return value.encode(errors="replace").decode()
        if isinstance(value, dict):
            return {fit(key): fit(part) for key, part in value.items()}
        return value

    def change(original: Any) -> Any:
        def enqueue(self: Any, *given: Any, **named: Any) -> Any:
            return original(self, *given, **{name: fit(value) for name, value in named.items()})

        return enqueue

    replace(client.Client, "enqueue", change)


def ipv4_everywhere() -> None:
    def change(original: Any) -> Any:
        def create(self: Any, target: str, **settings: Any) -> None:
            original(self, target.replace("[::1]", "127.0.0.1"), **settings)

        return create

    replace(client.Client, "__init__", change)


def requests_of_any_size() -> None:
    replace(_wire, "BATCH_BYTES_MAX", lambda original: 64 << 20)
