# SPDX-License-Identifier: AGPL-3.0-only
"""What every call carries, how a client is set up, and what is left of it after close."""

import asyncio
import logging
import subprocess
import sys
import threading

import grpc
import pytest

import fila
from fila import _endpoint
from fila.v1 import admin_pb2, service_pb2

KEY = "fk_0123456789.secret~key"


class About:
    """Equals what is left of so many seconds when a request arrives, on a busy machine too."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __repr__(self):
        return f"about {self.seconds} s"

    def __eq__(self, left):
        # gRPC rounds the deadlines that it sends up, by as much as a per cent.
        return self.seconds / 2 < left <= self.seconds * 1.02


def test_unary_calls_have_a_deadline_of_five_seconds(broker, client):
    client.enqueue("orders")
    client.enqueue_many([fila.EnqueueMessage("orders")])
    client.ack("orders", "m")
    assert [call.time_remaining for call in broker.seen] == [About(5)] * 3


def test_a_call_can_choose_its_own_deadline(broker):
    with fila.Client(broker.target, timeout=60) as client:
        client.enqueue("orders")
        client.enqueue("orders", timeout=20)
        client.ack("orders", "m", timeout=20)
        client.enqueue_many([fila.EnqueueMessage("orders")], timeout=20)
    seen = [call.time_remaining for call in broker.seen]
    assert seen == [About(60), About(20), About(20), About(20)]


@pytest.mark.asyncio
async def test_async_deadlines(broker, wire):
    broker.script("Consume", lambda request, context: iter([wire.frame("a")]))
    async with fila.AsyncClient(broker.target) as client:
        await client.enqueue("orders")
        await client.enqueue("orders", timeout=20)
        await anext(client.consume("orders"))
    default, chosen, stream = (call.time_remaining for call in broker.seen[:3])
    assert (default, chosen) == (About(5), About(20))
    assert is_unlimited(stream)


def test_a_stream_has_no_deadline(broker, client, wire):
    broker.script("Consume", lambda request, context: iter([wire.frame("a")]))
    next(client.consume("orders"))
    assert is_unlimited(broker.calls("Consume")[0].time_remaining)


def is_unlimited(time_remaining):
    # gRPC reports a deadline at the end of time for a call that has none.
    return time_remaining is None or time_remaining > 10**8


def test_a_client_enforces_the_deadline_itself(broker, client, wire):
    def silence(request, context):
        wire.idle(context)
        return admin_pb2.DeleteQueueResponse()

    broker.script("DeleteQueue", silence)
    with pytest.raises(fila.DeadlineExceededError):
        client.delete_queue("orders", timeout=0.2)


def test_a_deadline_that_has_passed_is_exceeded(broker, client):
    for timeout in (0, -1):
        with pytest.raises(fila.DeadlineExceededError):
            client.enqueue("orders", timeout=timeout)
        with pytest.raises(fila.DeadlineExceededError):
            client.delete_queue("orders", timeout=timeout)
    assert broker.seen == []


def test_nobody_there_is_unavailable_and_not_a_matter_of_time(wire):
    with (
        fila.Client(f"127.0.0.1:{wire.free_port()}", timeout=60) as client,
        pytest.raises(fila.UnavailableError) as caught,
    ):
        client.enqueue("orders")
    assert caught.value.retryable


def test_the_api_key_is_sent_on_unary_calls_and_streams(broker, wire):
    broker.script("Consume", lambda request, context: iter([wire.frame("a")]))
    with fila.Client(broker.target, api_key=KEY) as client:
        client.enqueue("orders")
        next(client.consume("orders"))
    assert len(broker.seen) >= 2
    assert {call.metadata["authorization"] for call in broker.seen} == {f"Bearer {KEY}"}


@pytest.mark.asyncio
async def test_the_api_key_is_sent_by_the_async_client(broker, wire):
    broker.script("Consume", lambda request, context: iter([wire.frame("a")]))
    async with fila.AsyncClient(broker.target, api_key=KEY) as client:
        await client.enqueue("orders")
        await anext(client.consume("orders"))
    assert {call.metadata["authorization"] for call in broker.seen} == {f"Bearer {KEY}"}


def test_without_an_api_key_none_is_sent(broker, client):
    client.enqueue("orders")
    assert "authorization" not in broker.seen[0].metadata


def everything_shown_of(error):
    shown = []
    while error is not None:
        shown += [str(error), repr(error), repr(vars(error))]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(shown)


def test_the_api_key_is_not_shown_by_errors_repr_or_log(broker, wire, caplog):
    echo = wire.refuse(
        grpc.StatusCode.UNAUTHENTICATED, f"key {KEY} is not valid", "UNAUTHENTICATED"
    )
    for method in ("EnqueueBatch", "GetConfig", "Consume"):
        broker.script(method, echo)
    with caplog.at_level(logging.DEBUG), fila.Client(broker.target, api_key=KEY) as client:
        for call in (
            lambda: client.enqueue("orders"),
            lambda: client.get_config("key"),
            lambda: next(client.consume("orders")),
        ):
            with pytest.raises(fila.UnauthenticatedError, match="not valid") as caught:
                call()
            assert KEY not in everything_shown_of(caught.value)
        (result,) = client.enqueue_many([fila.EnqueueMessage("orders")])
        assert KEY not in everything_shown_of(result.error)
        assert KEY not in f"{client!r} {client._connection!r}"
    assert KEY not in caplog.text


@pytest.mark.parametrize("key", ["", "with space", "new\nline", "schlüssel", "nul\0"])
def test_a_malformed_api_key_is_refused_without_being_shown(key):
    with pytest.raises(ValueError, match="api_key must be printable ASCII") as caught:
        fila.Client("127.0.0.1:1", api_key=key)
    assert not key or key not in str(caught.value)


@pytest.mark.parametrize(
    "target",
    ["", "localhost", "localhost:", ":5555", "localhost:http", "localhost:0", "localhost:65536",
     "http://localhost:5555", "::1:5555", "localhost:-1"],
)  # fmt: skip
def test_a_target_that_is_no_address_is_named(target):
    for kind in (fila.Client, fila.AsyncClient):
        with pytest.raises(ValueError, match="is not host:port") as caught:
            kind(target)
        assert f'"{target}"' in str(caught.value)


@pytest.mark.parametrize(
    "target", ["localhost:5555", "10.0.0.1:1", "[::1]:5555", "dns:///broker:5555", "unix:/run/fila"]
)
def test_a_target_that_is_an_address_is_taken(target):
    fila.Client(target).close()


def test_wrong_settings_are_named():
    with pytest.raises(TypeError, match="target must be str or a list of str, not int"):
        fila.Client(5555)
    with pytest.raises(ValueError, match="timeout must be positive, got 0"):
        fila.Client(timeout=0)


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture
def secure(start_broker, wire):
    """A broker with TLS; with mTLS if asked."""

    def start(mutual=False):
        pair = ((wire.certs / "server.key").read_bytes(), (wire.certs / "server.pem").read_bytes())
        ca = (wire.certs / "ca.pem").read_bytes() if mutual else None
        credentials = grpc.ssl_server_credentials([pair], ca, require_client_auth=mutual)
        return start_broker(credentials=credentials)

    return start


def test_a_private_ca_is_verified(secure, wire):
    broker = secure()
    with fila.Client(broker.target, tls=fila.TlsOptions(wire.certs / "ca.pem")) as client:
        assert client.enqueue("orders", None, b"x").startswith("x#")


@pytest.mark.asyncio
async def test_a_private_ca_is_verified_by_the_async_client(secure, wire):
    broker = secure()
    tls = fila.TlsOptions(ca=str(wire.certs / "ca.pem"))
    async with fila.AsyncClient(broker.target, tls=tls, api_key=KEY) as client:
        assert (await client.enqueue("orders", None, b"x")).startswith("x#")
    assert broker.seen[0].metadata["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "options",
    [{"ca": "other_ca.pem"}, {"ca": "ca.pem", "server_name": "elsewhere"}, {}],
    ids=["untrusted", "wrong-name", "system-roots"],
)
def test_a_certificate_that_does_not_prove_the_broker_is_refused(secure, wire, options):
    broker = secure()
    if "ca" in options:
        options = {**options, "ca": wire.certs / options["ca"]}
    with (
        fila.Client(broker.target, tls=fila.TlsOptions(**options)) as client,
        pytest.raises(fila.UnavailableError),
    ):
        client.enqueue("orders")
    assert broker.seen == []


def test_a_server_name_stands_in_for_the_target(secure, wire):
    broker = secure()
    tls = fila.TlsOptions(wire.certs / "ca.pem", server_name="localhost")
    with fila.Client(f"dns:///127.0.0.1:{broker.port}", tls=tls) as client:
        client.enqueue("orders")


def test_plaintext_to_a_tls_port_is_unavailable(secure):
    with fila.Client(secure().target) as client, pytest.raises(fila.UnavailableError):
        client.enqueue("orders")


def test_mutual_tls_needs_the_clients_certificate(secure, wire):
    broker = secure(mutual=True)
    ca = wire.certs / "ca.pem"
    with (
        fila.Client(broker.target, tls=fila.TlsOptions(ca)) as client,
        pytest.raises(fila.UnavailableError),
    ):
        client.enqueue("orders")
    tls = fila.TlsOptions(ca, wire.certs / "client.pem", wire.certs / "client.key")
    with fila.Client(broker.target, tls=tls) as client:
        client.enqueue("orders")


def test_a_bad_tls_file_is_named(wire, tmp_path):
    missing = tmp_path / "missing.pem"
    with pytest.raises(ValueError, match=r'cannot read tls ca ".*missing.pem": no such file'):
        fila.Client(tls=fila.TlsOptions(ca=missing))
    text = tmp_path / "text.pem"
    text.write_text("not a certificate")
    with pytest.raises(ValueError, match=r'tls key ".*text.pem" is not a PEM file'):
        fila.Client(tls=fila.TlsOptions(cert=wire.certs / "client.pem", key=text))
    with pytest.raises(ValueError, match="cert and key go together, and key is missing"):
        fila.TlsOptions(cert=text)


# --- Channel --------------------------------------------------------------------------------------


def test_channel_options_say_what_the_design_asks():
    options = dict(
        _endpoint._channel_options(fila.TlsOptions(server_name="b"), 7, fila.Backoff(0.2, 3))
    )
    assert options["grpc.max_send_message_length"] == 7
    assert options["grpc.max_receive_message_length"] == 7
    assert options["grpc.keepalive_time_ms"] == 20_000
    # Without this one a frozen peer goes unnoticed for a minute.
    assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"] == 5_000
    assert options["grpc.keepalive_permit_without_calls"] == 1
    assert options["grpc.enable_retries"] == 0
    assert options["grpc.initial_reconnect_backoff_ms"] == 200
    assert options["grpc.max_reconnect_backoff_ms"] == 3_000
    assert options["grpc.ssl_target_name_override"] == "b"
    assert options["grpc.primary_user_agent"].startswith("fila-python/")


def test_frames_larger_than_grpcs_default_are_received(broker, client, wire):
    payload = b"x" * (3 << 20)
    frame = service_pb2.ConsumeResponse(
        messages=[wire.message(f"m-{n}", payload=payload) for n in range(3)]
    )
    broker.script("Consume", lambda request, context: iter([frame]))
    consumer = client.consume("orders")
    assert [next(consumer).payload for _ in range(3)] == [payload] * 3


def test_a_small_receive_limit_is_kept(broker, wire):
    answer = service_pb2.ReceiveResponse(messages=[wire.message(payload=b"x" * 2000)])
    broker.script("Receive", lambda *_: answer)
    with (
        fila.Client(broker.target, max_message_bytes=1000) as client,
        pytest.raises(fila.ResourceExhaustedError),
    ):
        client.receive("orders")


# --- Close ----------------------------------------------------------------------------------------


def test_after_close_every_call_raises_client_closed(broker):
    client = fila.Client(broker.target)
    client.enqueue("orders")
    client.close()
    client.close()
    message = fila.EnqueueMessage("orders")
    for call in (
        lambda: client.enqueue("orders"),
        lambda: client.enqueue("orders", idempotency_key="k"),
        lambda: client.enqueue_many([message]),
        lambda: client.enqueue_many([]),
        lambda: client.ack("orders", "m"),
        lambda: client.ack_many([]),
        lambda: client.nack("orders", "m"),
        lambda: client.extend("orders", "m"),
        lambda: client.receive("orders"),
        lambda: client.consume("orders"),
        lambda: client.list_queues(),
    ):
        with pytest.raises(fila.ClientClosedError, match="the client is closed"):
            call()
    assert len(broker.seen) == 1


@pytest.mark.asyncio
async def test_after_close_every_async_call_raises_client_closed(broker):
    client = fila.AsyncClient(broker.target)
    await client.enqueue("orders")
    await client.close()
    await client.close()
    for call in (
        client.enqueue("orders"),
        client.enqueue_many([]),
        client.ack("orders", "m"),
        client.receive("orders"),
        client.list_queues(),
    ):
        with pytest.raises(fila.ClientClosedError):
            await call
    with pytest.raises(fila.ClientClosedError):
        client.consume("orders")


@pytest.mark.asyncio
async def test_a_client_that_was_never_used_can_be_closed():
    await fila.AsyncClient().close()
    fila.Client().close()


@pytest.mark.parametrize("idempotency_key", [None, "k"])
def test_close_ends_calls_under_way(broker, wire, idempotency_key):
    arrived, release = threading.Event(), threading.Event()

    def hang(request, context):
        arrived.set()
        assert release.wait(wire.patience_s)
        return broker.store(request, context)

    broker.script("EnqueueBatch", hang)
    client = fila.Client(broker.target, timeout=2 * wire.patience_s)
    found = []

    def enqueue():
        try:
            client.enqueue("orders", idempotency_key=idempotency_key)
        except fila.FilaError as error:
            found.append(error)

    callers = [threading.Thread(target=enqueue) for _ in range(5)]
    for caller in callers:
        caller.start()
    assert arrived.wait(wire.patience_s)
    client.close()
    for caller in callers:
        caller.join()
    release.set()
    assert [type(error) for error in found] == [fila.ClientClosedError] * 5


@pytest.mark.asyncio
async def test_async_close_ends_calls_under_way(broker, wire):
    arrived, release = threading.Event(), threading.Event()

    def hang(request, context):
        arrived.set()
        assert release.wait(wire.patience_s)
        return broker.store(request, context)

    broker.script("EnqueueBatch", hang)
    client = fila.AsyncClient(broker.target, timeout=2 * wire.patience_s)
    calls = [asyncio.create_task(client.enqueue("orders")) for _ in range(5)]
    assert await asyncio.to_thread(arrived.wait, wire.patience_s)
    more = [asyncio.create_task(client.enqueue("orders")) for _ in range(5)]
    await asyncio.sleep(0)
    await client.close()
    found = await asyncio.gather(*calls, *more, return_exceptions=True)
    release.set()
    assert [type(error) for error in found] == [fila.ClientClosedError] * 10


def test_a_process_exits_after_close_and_without_it(broker, wire):
    program = f"""
import fila, threading
client = fila.Client({broker.target!r})
client.enqueue("orders")
consumer = client.consume("orders")
threading.Thread(target=list, args=(consumer,), daemon=True).start()
"""
    broker.script("Consume", lambda request, context: wire.idle(context) or iter(()))
    for end in ("client.close()", ""):
        done = subprocess.run(
            [sys.executable, "-c", program + end], capture_output=True, timeout=60, check=True
        )
        assert done.stderr == b"", end
