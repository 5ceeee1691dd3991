# SPDX-License-Identifier: AGPL-3.0-only
"""Is the broker there, and is the queue? What programs and tests ask first."""

import inspect
import threading

import grpc
import pytest

import fila
from fila.v1 import admin_pb2

QUICK = fila.Backoff(0.01, 0.02)


@pytest.fixture(params=["sync", "async"])
async def begin(request, broker):
    """Both clients as one: every call is awaited."""
    kind = fila.Client if request.param == "sync" else fila.AsyncClient
    opened = []

    def make(target=broker.target, **settings):
        client = kind(target, **settings)
        opened.append(client)

        async def call(name, *given, **options):
            answer = getattr(client, name)(*given, **options)
            return await answer if inspect.isawaitable(answer) else answer

        return call

    yield make
    for client in opened:
        closing = client.close()
        if inspect.isawaitable(closing):
            await closing


async def test_ping_says_how_long_the_answer_took(begin, broker):
    assert 0 < await begin()("ping") < 60
    assert [seen.method for seen in broker.seen] == ["Check"]


@pytest.mark.parametrize("answer", [b"", b"\x08\x02", b"\x08\x03"])
async def test_a_broker_that_is_not_serving_is_unavailable(begin, broker, answer):
    broker.script("Check", lambda *_: answer)
    with pytest.raises(fila.UnavailableError, match="not serving"):
        await begin()("ping")


async def test_ping_of_nobody_is_unavailable_and_of_a_silent_broker_late(begin, broker, wire):
    with pytest.raises(fila.UnavailableError):
        await begin(f"127.0.0.1:{wire.free_port()}")("ping")

    def silence(request, context):
        wire.idle(context)
        return b""

    broker.script("Check", silence)
    with pytest.raises(fila.DeadlineExceededError):
        await begin()("ping", timeout=0.1)


async def test_wait_ready_waits_for_a_broker_that_comes_later(begin, start_broker, wire):
    port = wire.free_port()
    call = begin(f"127.0.0.1:{port}", backoff=QUICK)
    with pytest.raises(fila.UnavailableError):  # nobody is there yet
        await call("ping")
    starting = threading.Timer(0.3, start_broker, kwargs={"port": port})
    starting.start()
    await call("wait_ready", wire.patience_s)
    starting.join()


async def test_wait_ready_waits_until_the_broker_serves(begin, broker, wire):
    broker.script("Check", lambda *_: wire.serving if len(broker.seen) == 4 else b"")
    await begin(backoff=QUICK)("wait_ready", wire.patience_s)
    assert len(broker.seen) == 4


async def test_wait_ready_gives_up_with_the_last_failure(begin, broker):
    broker.script("Check", lambda *_: b"")
    with pytest.raises(fila.DeadlineExceededError, match=r"0\.2 s: the broker is not serving"):
        await begin(backoff=QUICK)("wait_ready", 0.2)


async def test_wait_ready_raises_what_waiting_does_not_cure(begin, broker, wire):
    broker.script("Check", wire.refuse(grpc.StatusCode.UNAUTHENTICATED, "no"))
    with pytest.raises(fila.UnauthenticatedError):
        await begin()("wait_ready")
    assert len(broker.seen) == 1


# --- Queues ---------------------------------------------------------------------------------------


def exists(wire):
    code = grpc.StatusCode.ALREADY_EXISTS
    return wire.refuse(code, 'queue "orders" exists', "QUEUE_ALREADY_EXISTS")


async def test_ensure_queue_creates_what_is_missing(begin, broker):
    broker.script(
        "CreateQueue",
        lambda request, _: admin_pb2.CreateQueueResponse(dead_letter_queue="orders.dlq"),
    )
    assert await begin()("ensure_queue", "orders", max_attempts=3) == "orders.dlq"
    (create,) = broker.seen
    assert create.request.name == "orders" and create.request.config.max_attempts == 3


async def test_ensure_queue_is_content_with_a_queue_that_has_these_settings(begin, broker, wire):
    config = admin_pb2.QueueConfig(max_attempts=3, quantum=7, on_hook_error=2)
    broker.script("CreateQueue", exists(wire))
    broker.script("GetStats", lambda *_: admin_pb2.GetStatsResponse(config=config))
    ensured = begin()("ensure_queue", "orders", max_attempts=3, on_hook_error="reject")
    assert await ensured == "orders.dlq"
    assert broker.seen[-1].request.max_keys == 1


async def test_ensure_queue_names_every_difference_and_changes_nothing(begin, broker, wire):
    config = admin_pb2.QueueConfig(max_attempts=5, on_failure_script="old" * 99, quantum=7)
    broker.script("CreateQueue", exists(wire))
    broker.script("GetStats", lambda *_: admin_pb2.GetStatsResponse(config=config))
    with pytest.raises(fila.QueueAlreadyExistsError) as caught:
        await begin()("ensure_queue", "orders", max_attempts=3, on_failure_script="new", quantum=7)
    error = caught.value
    assert (error.queue, error.reason) == ("orders", "QUEUE_ALREADY_EXISTS")
    assert "max_attempts is 5, not 3" in error.message
    assert 'not "new"' in error.message and "update_queue" in error.message
    assert "quantum" not in error.message and len(error.message) < 300
    assert [seen.method for seen in broker.seen] == ["CreateQueue", "GetStats"]


async def test_ensure_queue_creates_again_what_was_deleted_in_between_once(begin, broker, wire):
    missing = wire.refuse(grpc.StatusCode.NOT_FOUND, "no", "QUEUE_NOT_FOUND")
    broker.script("CreateQueue", exists(wire))
    broker.script("GetStats", missing)
    with pytest.raises(fila.QueueNotFoundError):
        await begin()("ensure_queue", "orders")
    methods = [seen.method for seen in broker.seen]
    assert methods == ["CreateQueue", "GetStats"] * 2


async def test_ensure_queue_raises_what_else_fails(begin, broker, wire):
    broker.script("CreateQueue", wire.refuse(grpc.StatusCode.PERMISSION_DENIED, "no"))
    with pytest.raises(fila.PermissionDeniedError):
        await begin()("ensure_queue", "orders")
