# SPDX-License-Identifier: AGPL-3.0-only
"""Every reason and every status becomes one exception, by name and never by text."""

import pickle

import grpc
import pytest

import fila
from fila import errors
from fila.v1 import messages_pb2, service_pb2

_, *_NAMES = (name for name, _ in messages_pb2.ErrorReason.items())
REASONS = [name.removeprefix("ERROR_REASON_") for name in _NAMES]

BY_STATUS = {
    grpc.StatusCode.CANCELLED: fila.CancelledError,
    grpc.StatusCode.UNKNOWN: fila.InternalError,
    grpc.StatusCode.INVALID_ARGUMENT: fila.InvalidArgumentError,
    grpc.StatusCode.DEADLINE_EXCEEDED: fila.DeadlineExceededError,
    grpc.StatusCode.NOT_FOUND: fila.QueueNotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: fila.QueueAlreadyExistsError,
    grpc.StatusCode.PERMISSION_DENIED: fila.PermissionDeniedError,
    grpc.StatusCode.UNAUTHENTICATED: fila.UnauthenticatedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: fila.ResourceExhaustedError,
    grpc.StatusCode.FAILED_PRECONDITION: fila.InternalError,
    grpc.StatusCode.ABORTED: fila.InternalError,
    grpc.StatusCode.OUT_OF_RANGE: fila.InternalError,
    grpc.StatusCode.UNIMPLEMENTED: fila.UnimplementedError,
    grpc.StatusCode.INTERNAL: fila.InternalError,
    grpc.StatusCode.UNAVAILABLE: fila.UnavailableError,
    grpc.StatusCode.DATA_LOSS: fila.InternalError,
}


def test_every_reason_of_the_contract_is_in_the_table_and_no_other():
    assert set(errors.REASONS) == set(REASONS)


def test_every_status_but_ok_is_tested_here():
    assert set(BY_STATUS) == set(grpc.StatusCode) - {grpc.StatusCode.OK}


@pytest.mark.parametrize("reason", REASONS)
def test_reason_of_a_call_chooses_the_class(broker, client, wire, reason):
    # A status that says something else: the reason wins.
    broker.script("DeleteQueue", wire.refuse(grpc.StatusCode.ABORTED, "some text", reason))
    with pytest.raises(fila.FilaError) as caught:
        client.delete_queue("orders")
    error = caught.value
    assert type(error) is errors.REASONS[reason][0]
    fields = (error.message, error.code, error.reason, error.queue)
    assert fields == ("some text", "ABORTED", reason, "orders")


@pytest.mark.parametrize("reason", REASONS)
def test_reason_of_an_item_chooses_the_class(broker, client, reason):
    error = messages_pb2.ItemError(reason=f"ERROR_REASON_{reason}", message="some text")
    results = [messages_pb2.ItemResult(error=error)]
    broker.script("AckBatch", lambda *_: service_pb2.AckBatchResponse(results=results))
    with pytest.raises(fila.FilaError) as caught:
        client.ack("orders", "m-1")
    kind, code = errors.REASONS[reason]
    assert type(caught.value) is kind
    fields = (caught.value.message, caught.value.code, caught.value.reason)
    assert fields == ("some text", code, reason)
    assert (caught.value.queue, caught.value.message_id) == ("orders", "m-1")


@pytest.mark.parametrize("code", BY_STATUS, ids=lambda code: code.name)
def test_status_without_a_reason_chooses_the_class(broker, client, wire, code):
    broker.script("EnqueueBatch", wire.refuse(code, "some text"))
    with pytest.raises(fila.FilaError) as caught:
        client.enqueue("orders", {}, b"x")
    error = caught.value
    assert type(error) is BY_STATUS[code]
    assert (error.code, error.reason, error.queue) == (code.name, None, "orders")


@pytest.mark.asyncio
@pytest.mark.parametrize("code", BY_STATUS, ids=lambda code: code.name)
async def test_status_chooses_the_class_in_the_async_client(broker, wire, code):
    broker.script("EnqueueBatch", wire.refuse(code, "some text", "OVERLOADED"))
    broker.script("GetConfig", wire.refuse(code, "some text"))
    async with fila.AsyncClient(broker.target) as client:
        with pytest.raises(fila.OverloadedError, match="some text"):
            await client.enqueue("orders", {}, b"x")
        with pytest.raises(fila.FilaError) as caught:
            await client.get_config("key")
    # Nothing that was named can be missing, so NOT_FOUND says nothing that is known.
    expected = fila.InternalError if code is grpc.StatusCode.NOT_FOUND else BY_STATUS[code]
    assert type(caught.value) is expected


PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


@pytest.mark.parametrize("code", [code for code in BY_STATUS if code not in PASSING])
def test_status_of_a_stream_reaches_the_iteration(broker, client, wire, code):
    broker.script("Consume", wire.refuse(code, "some text"))
    consumer = client.consume("orders")
    with pytest.raises(BY_STATUS[code], match="some text") as caught:
        next(consumer)
    assert caught.value.queue == "orders"
    assert list(consumer) == []


def test_not_found_without_a_reason_is_about_what_the_call_named(broker, client, wire):
    broker.script("AckBatch", wire.refuse(grpc.StatusCode.NOT_FOUND))
    broker.script("CancelMessage", wire.refuse(grpc.StatusCode.NOT_FOUND))
    with pytest.raises(fila.MessageNotFoundError):
        client.ack("orders", "m-1")
    with pytest.raises(fila.MessageNotFoundError):
        client.cancel("orders", "m-1")


def test_a_reason_that_is_newer_than_the_client_falls_back(broker, client, wire):
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    broker.script("DeleteQueue", wire.refuse(code, "text", "MOON_FULL"))
    with pytest.raises(fila.ResourceExhaustedError) as caught:
        client.delete_queue("orders")
    assert caught.value.reason == "MOON_FULL"

    results = [messages_pb2.ItemResult(error=messages_pb2.ItemError(reason=999, message="text"))]
    broker.script("AckBatch", lambda *_: service_pb2.AckBatchResponse(results=results))
    with pytest.raises(fila.InternalError, match="text"):
        client.ack("orders", "m-1")


def test_text_keeps_whitespace_and_characters_beyond_the_bmp(broker, client, wire):
    text = "\t\ntest with whitespace\r\nand Unicode BMP \u263a and non-BMP \U0001f608\t\n"
    broker.script("DeleteQueue", wire.refuse(grpc.StatusCode.INTERNAL, text))
    with pytest.raises(fila.InternalError) as caught:
        client.delete_queue("orders")
    assert caught.value.message == str(caught.value) == text


def test_an_error_without_text_says_what_its_class_means(broker, client, wire):
    broker.script("DeleteQueue", wire.refuse(grpc.StatusCode.NOT_FOUND, "", "QUEUE_NOT_FOUND"))
    with pytest.raises(fila.QueueNotFoundError, match="the queue does not exist"):
        client.delete_queue("orders")


def test_an_error_keeps_its_cause(broker, client, wire):
    broker.script("DeleteQueue", wire.refuse(grpc.StatusCode.INTERNAL, "text"))
    with pytest.raises(fila.InternalError) as caught:
        client.delete_queue("orders")
    assert isinstance(caught.value.__cause__, grpc.RpcError)


def test_what_can_be_tried_again():
    retryable = {kind.__name__ for kind in _tree(fila.FilaError) if kind.retryable}
    assert retryable == {
        "DeadlineExceededError",
        "DiskFullError",
        "OverloadedError",
        "QueueFullError",
        "ResourceExhaustedError",
        "ShuttingDownError",
        "UnavailableError",
    }


def test_every_class_is_public_and_drawn_in_the_tree():
    for kind in _tree(fila.FilaError):
        assert getattr(fila, kind.__name__) is kind
        assert kind.__name__ in errors.__doc__


def test_an_error_survives_pickling():
    error = errors.from_reason("LEASE_EXPIRED", "text", queue="orders", message_id="m-1")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is fila.LeaseExpiredError
    assert vars(copy) == vars(error)
    assert str(copy) == "text"


def _tree(kind):
    return [kind, *(deeper for sub in kind.__subclasses__() for deeper in _tree(sub))]
