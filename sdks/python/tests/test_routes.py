# SPDX-License-Identifier: AGPL-3.0-only
"""What a channel is made of: several addresses, keys that are asked for, files that are replaced,
and what users put in between."""

import asyncio
import gc
import shutil
import socket
import threading
from collections import deque
from pathlib import Path

import grpc
import grpc.aio
import pytest

import fila
from fila import _endpoint
from fila._address import Addresses
from fila._key import KeyRing

QUICK = fila.Backoff(0.01, 0.05)
OTHERS = Path(__file__).parents[3] / "conformance/certs"  # of a CA that ours does not know


def enqueue_async(target, **settings):
    async def enqueue():
        async with fila.AsyncClient(target, **settings) as client:
            return await client.enqueue("orders", payload=b"x")

    return asyncio.run(enqueue())


# --- Several addresses ----------------------------------------------------------------------------


@pytest.fixture
def numbers(monkeypatch):
    """What names stand for; a name that is not there is not known."""
    known = {}

    def look_up(host, port, **_):
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "name not known")
        return [(None, None, None, None, (number, port)) for number in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


def test_several_addresses_become_one_list_of_numbers(numbers):
    numbers |= {"a": ["10.0.0.2", "10.0.0.1"], "b": ["10.0.0.3"], "::1": ["::1"]}
    assert Addresses("a:1").target() == "a:1"
    assert Addresses("a:1, b:2").target() == "ipv4:10.0.0.1:1,10.0.0.2:1,10.0.0.3:2"
    assert Addresses(["a:1", "nobody:5"]).target() == "ipv4:10.0.0.1:1,10.0.0.2:1"
    assert Addresses(("b:1", "[::1]:2")).target() == "ipv6:[::ffff:10.0.0.3]:1,[::1]:2"
    assert Addresses(["b:1", "b:1"]).target() == "ipv4:10.0.0.3:1"
    with pytest.raises(fila.UnavailableError, match='no address of "x:1,y:1" is known: name not'):
        Addresses("x:1,y:1").target()


@pytest.mark.parametrize(
    ("target", "kind", "says"),
    [
        ("a:1,b", ValueError, 'target "b" is not host:port'),
        ("a:1,", ValueError, 'target "" is not host:port'),
        ([], ValueError, "target is an empty list"),
        (["a:1", 2], TypeError, "target must be str or a list of str"),
        (b"a:1", TypeError, "target must be str or a list of str"),
    ],
)
def test_a_list_that_is_none_is_refused(target, kind, says):
    with pytest.raises(kind, match=says):
        fila.Client(target)


def test_the_first_that_answers_is_used_and_the_next_after_its_loss(start_broker, wire):
    nobody = f"127.0.0.1:{wire.free_port()}"
    first, second = start_broker(), start_broker()
    targets = [nobody, first.target, second.target]
    with fila.Client(targets, backoff=QUICK, timeout=wire.patience_s) as client:
        client.enqueue("orders", idempotency_key="a")
        assert (len(first.seen), len(second.seen)) == (1, 0)
        first.stop()
        client.enqueue("orders", idempotency_key="b")
        assert (len(first.seen), len(second.seen)) == (1, 1)


def test_the_async_client_takes_several_addresses(broker, wire):
    assert enqueue_async(f"127.0.0.1:{wire.free_port()},localhost:{broker.port}")


def test_addresses_of_both_families_go_together(broker, wire):
    with fila.Client(f"[::1]:{wire.free_port()},127.0.0.1:{broker.port}") as client:
        assert client.enqueue("orders")


def test_a_consumer_moves_to_the_next_address(start_broker, wire):
    first, second = start_broker(), start_broker()
    for number, broker in enumerate((first, second)):

        def answer(request, context, number=number):
            yield wire.frame(f"m-{number}")
            wire.idle(context)

        broker.script("Consume", answer)
    with (
        fila.Client([first.target, second.target], backoff=QUICK) as client,
        client.consume("orders") as consumer,
    ):
        assert next(consumer).id == "m-0"
        first.stop()
        assert next(consumer).id == "m-1"


def test_names_are_looked_up_again_while_nobody_is_there(broker, numbers, monkeypatch, wire):
    monkeypatch.setattr(_endpoint, "LOOK_S", 0)
    events = []
    client = fila.Client(
        f"moved:{broker.port},nobody:1", backoff=QUICK, on_connection=events.append
    )
    with client:
        for _ in range(2):
            with pytest.raises(fila.UnavailableError, match="is known"):
                client.enqueue("orders")
        assert [event.kind for event in events] == ["unreachable"]
        numbers["moved"] = ["127.0.0.1"]
        assert client.enqueue("orders")


def test_several_addresses_with_tls_need_a_name_for_all(wire, start_broker):
    with pytest.raises(ValueError, match="several addresses with tls need a server_name"):
        fila.Client("a:1,b:1", tls=fila.TlsOptions())
    broker = start_broker(credentials=server_credentials(wire.certs))
    tls = fila.TlsOptions(wire.certs / "ca.pem", server_name="localhost")
    with fila.Client([f"127.0.0.1:{wire.free_port()}", broker.target], tls=tls) as client:
        assert client.enqueue("orders")


# --- Keys -----------------------------------------------------------------------------------------


def keys_seen(broker):
    return [call.metadata.get("authorization") for call in broker.seen]


def test_a_key_is_asked_for_each_call_and_stream(broker, wire):
    broker.script("Consume", lambda request, context: iter([wire.frame("a")]))
    keys = iter(["one", "two", "three", *["more"] * 100])
    with fila.Client(broker.target, api_key=lambda: next(keys)) as client:
        client.enqueue("orders")
        client.enqueue_many([fila.EnqueueMessage("orders")])
        next(client.consume("orders"))
    assert keys_seen(broker)[:3] == ["Bearer one", "Bearer two", "Bearer three"]


def test_each_thread_gets_the_key_that_it_was_given_while_keys_change():
    ring = KeyRing(lambda: "old")
    interrupted = []

    class Interrupted(deque):
        """Another thread is given the new key while this one takes the old one."""

        def append(self, key):
            super().append(key)
            if not interrupted:
                interrupted.append(key)
                ring._ask = lambda: "new"
                ring.ask()

    ring._seen = Interrupted()
    assert ring.ask() == (("authorization", "Bearer old"),)
    assert [ring.ask() for _ in range(2)] == [(("authorization", "Bearer new"),)] * 2


@pytest.mark.parametrize("awaits", [True, False])
def test_the_async_client_asks_a_function_or_awaits_it(broker, awaits):
    async def fetch():
        await asyncio.sleep(0)
        return "fetched"

    assert enqueue_async(broker.target, api_key=fetch if awaits else lambda: "fetched")
    assert keys_seen(broker) == ["Bearer fetched"]


def test_a_key_that_does_not_come_takes_no_longer_than_the_call(broker):
    async def fetch():
        await asyncio.Event().wait()

    async def ask():
        async with fila.AsyncClient(broker.target, api_key=fetch, timeout=0.05) as client:
            for call in (client.enqueue("orders"), client.stats("orders"), client.ping()):
                with pytest.raises(fila.DeadlineExceededError):
                    await call

    asyncio.run(asyncio.wait_for(ask(), 20))
    assert broker.seen == []


def test_closing_does_not_wait_for_a_key(broker):
    async def close():
        asked = asyncio.Event()

        async def fetch():
            asked.set()
            await asyncio.Event().wait()

        client = fila.AsyncClient(broker.target, api_key=fetch, timeout=600, close_timeout=0)
        calls = [asyncio.create_task(it) for it in (client.enqueue("orders"), client.stats("q"))]
        await asked.wait()
        await client.close()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, fila.ClientClosedError)

    asyncio.run(asyncio.wait_for(close(), 20))


def test_what_the_function_raises_fails_the_call_and_no_other(broker):
    answers = [OSError("vault is sealed"), "good"]

    def key():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with fila.Client(broker.target, api_key=key) as client:
        with pytest.raises(fila.UnauthenticatedError, match="OSError: vault is sealed") as caught:
            client.enqueue("orders")
        assert isinstance(caught.value.__cause__, OSError)
        assert client.enqueue("orders")


@pytest.mark.parametrize("key", ["", "two words", None, b"bytes"])
def test_a_function_that_gives_no_key_is_told(broker, key):
    for call in (
        lambda: fila.Client(broker.target, api_key=lambda: key).enqueue("orders"),
        lambda: enqueue_async(broker.target, api_key=lambda: key),
    ):
        with pytest.raises(fila.UnauthenticatedError, match="api_key must be"):
            call()
    assert broker.seen == []


def test_a_consumer_waits_out_a_key_that_is_unavailable_for_now(broker, wire):
    broker.script("Consume", lambda request, context: iter([wire.frame("a")]))
    answers = [fila.UnavailableError("the vault is away"), *["good"] * 100]

    def key():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with fila.Client(broker.target, api_key=key, backoff=QUICK) as client:
        assert next(client.consume("orders")).id == "a"


def test_no_key_of_a_function_is_shown(broker, wire):
    def echo(request, context):
        keys = " ".join(value for name, value in context.invocation_metadata() if "auth" in name)
        context.abort(grpc.StatusCode.UNAUTHENTICATED, f"not valid: {keys}")

    broker.script("EnqueueBatch", echo)
    keys = iter(["secret-1", "secret-2"])
    with fila.Client(broker.target, api_key=lambda: next(keys)) as client:
        for _ in range(2):
            with pytest.raises(fila.UnauthenticatedError, match=r"\[redacted\]") as caught:
                client.enqueue("orders")
            assert "secret" not in f"{caught.value!r} {caught.value.__cause__!r}"


# --- Certificates ---------------------------------------------------------------------------------


def server_credentials(folder, name="server", ca=None):
    pair = ((folder / f"{name}.key").read_bytes(), (folder / f"{name}.pem").read_bytes())
    return grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)


@pytest.mark.parametrize("kind", ["bytes", "text"])
def test_certificates_may_come_from_memory(start_broker, wire, kind):
    certs = wire.certs
    broker = start_broker(credentials=server_credentials(certs, ca=(certs / "ca.pem").read_bytes()))
    files = [certs / name for name in ("ca.pem", "client.pem", "client.key")]
    if kind == "bytes":
        tls = fila.TlsOptions(*[file.read_bytes() for file in files])
    else:
        tls = fila.TlsOptions(*[file.read_text() for file in files])
    assert files[2].read_text().split()[5] not in repr(tls)
    with fila.Client(broker.target, tls=tls) as client:
        assert client.enqueue("orders")
    assert enqueue_async(broker.target, tls=tls)


def test_memory_that_holds_no_pem_is_refused():
    with pytest.raises(ValueError, match="tls ca is neither a file's path nor PEM"):
        fila.Client(tls=fila.TlsOptions(ca=b"nothing"))
    with pytest.raises(ValueError, match="cert and key go together, and cert is missing"):
        fila.TlsOptions(key=b"-----BEGIN ")


@pytest.fixture
def files(tmp_path, monkeypatch, wire):
    """A client's files, and how to replace them. Every call looks at them."""
    monkeypatch.setattr(_endpoint, "LOOK_S", 0)

    def put(name, source):
        fresh = tmp_path / "fresh"
        shutil.copy(source, fresh)
        fresh.replace(tmp_path / name)
        return tmp_path / name

    put("ca.pem", wire.certs / "ca.pem")
    return put


def serve_others(start_broker, port):
    return start_broker(port=port, credentials=server_credentials(OTHERS, "untrusted"))


def test_a_new_connection_uses_the_files_as_they_are_then(start_broker, wire, files, tmp_path):
    first = start_broker(credentials=server_credentials(wire.certs), port=wire.free_port())
    tls = fila.TlsOptions(tmp_path / "ca.pem", server_name="localhost")
    with fila.Client(first.target, tls=tls, backoff=QUICK) as client:
        client.enqueue("orders")
        first.stop()
        second = serve_others(start_broker, first.port)
        with pytest.raises(fila.UnavailableError):
            client.enqueue("orders")
        assert second.seen == []
        files("ca.pem", OTHERS / "untrusted_ca.pem")
        client.enqueue("orders", idempotency_key="k", timeout=wire.patience_s)
    assert len(second.calls("EnqueueBatch")) == 1


async def test_an_async_consumer_finds_the_way_back_with_replaced_files(
    start_broker, wire, files, tmp_path
):
    def answer(request, context):
        yield wire.frame("a")
        wire.idle(context)

    first = start_broker(credentials=server_credentials(wire.certs), port=wire.free_port())
    first.script("Consume", answer)
    tls = fila.TlsOptions(tmp_path / "ca.pem", server_name="localhost")
    client = fila.AsyncClient(first.target, tls=tls, backoff=QUICK)
    async with client, client.consume("orders") as consumer, asyncio.timeout(wire.patience_s):
        await anext(consumer)
        await asyncio.to_thread(first.stop)
        serve_others(start_broker, first.port).script("Consume", answer)
        files("ca.pem", OTHERS / "untrusted_ca.pem")
        await anext(consumer)


def test_a_client_certificate_is_rotated_under_a_stream_that_goes_on(
    start_broker, wire, files, tmp_path
):
    names = []
    more = threading.Event()

    def note(request, context):
        names.append(context.auth_context()["x509_pem_cert"][0])
        return broker.store(request, context)

    def answer(request, context):
        yield wire.frame("a")
        assert more.wait(wire.patience_s)
        yield wire.frame("b")
        wire.idle(context)

    trusted = (wire.certs / "ca.pem").read_bytes() + (OTHERS / "untrusted_ca.pem").read_bytes()
    broker = start_broker(credentials=server_credentials(wire.certs, ca=trusted))
    broker.script("EnqueueBatch", note)
    broker.script("Consume", answer)
    cert = files("client.pem", wire.certs / "client.pem")
    key = files("client.key", wire.certs / "client.key")
    tls = fila.TlsOptions(tmp_path / "ca.pem", cert, key, server_name="localhost")
    with fila.Client(broker.target, tls=tls) as client, client.consume("orders") as consumer:
        assert next(consumer).id == "a"
        client.enqueue("orders")
        files("client.pem", OTHERS / "untrusted_client.pem")
        client.enqueue("orders")  # half of a pair: the former one is good
        files("client.key", OTHERS / "untrusted_client.key")
        client.enqueue("orders")
        gc.collect()
        more.set()
        assert next(consumer).id == "b"
        lines = len(client._connection._lines)
    assert names[0] == names[1] != names[2]
    assert lines == 2  # the former one is there while its stream is
    assert len(broker.calls("Consume")) == 1


def test_a_ca_that_is_not_whole_does_not_replace_the_former_one(
    start_broker, wire, files, tmp_path
):
    broker = start_broker(credentials=server_credentials(wire.certs))
    with fila.Client(broker.target, tls=fila.TlsOptions(tmp_path / "ca.pem")) as client:
        client.enqueue("orders")
        whole = (tmp_path / "ca.pem").read_bytes()
        for part in (whole[: len(whole) // 2], whole.replace(b"M", b"?")):
            (tmp_path / "part").write_bytes(part)
            files("ca.pem", tmp_path / "part")
            client.enqueue("orders")


def test_a_channel_that_nobody_uses_any_more_is_gone(start_broker, wire, files, tmp_path):
    broker = start_broker(credentials=server_credentials(wire.certs))
    tls = fila.TlsOptions(tmp_path / "ca.pem")
    with fila.Client(broker.target, tls=tls) as client:
        for _ in range(3):
            client.enqueue("orders")
            bundle = (tmp_path / "ca.pem").read_bytes() + (wire.certs / "ca.pem").read_bytes()
            (tmp_path / "bundle").write_bytes(bundle)
            files("ca.pem", tmp_path / "bundle")
        gc.collect()
        assert len(client._connection._lines) == 1


# --- Interceptors ---------------------------------------------------------------------------------


class Note(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    def __init__(self):
        self.methods = []

    def intercept_unary_unary(self, continuation, details, request):
        self.methods.append(details.method.rpartition("/")[2])
        return continuation(details, request)

    intercept_unary_stream = intercept_unary_unary


def test_interceptors_see_calls_and_streams(broker, wire):
    def answer(request, context):
        yield wire.frame("a")
        wire.idle(context)

    broker.script("Consume", answer)
    note = Note()
    with fila.Client(broker.target, interceptors=[note]) as client:
        client.enqueue("orders")
        with client.consume("orders") as consumer:
            assert next(consumer).id == "a"
        client.ping()
    assert note.methods == ["EnqueueBatch", "Consume", "Check"]


class AsyncNote(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self):
        self.methods = []

    async def intercept_unary_unary(self, continuation, details, request):
        self.methods.append(details.method.rpartition(b"/")[2])
        return await continuation(details, request)


class AsyncStreamNote(grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self):
        self.methods = []

    async def intercept_unary_stream(self, continuation, details, request):
        self.methods.append(details.method.rpartition(b"/")[2])
        return await continuation(details, request)


async def test_async_interceptors_see_calls_and_streams(broker, wire):
    def answer(request, context):
        yield wire.frame("a")
        wire.idle(context)

    broker.script("Consume", answer)
    calls, streams = AsyncNote(), AsyncStreamNote()
    async with fila.AsyncClient(broker.target, interceptors=[calls, streams]) as client:
        await client.enqueue("orders")
        async with client.consume("orders") as consumer:
            assert (await anext(consumer)).id == "a"
    assert calls.methods == [b"EnqueueBatch"]
    assert streams.methods == [b"Consume"]
