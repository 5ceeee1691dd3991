# SPDX-License-Identifier: AGPL-3.0-only
"""A broker that does what a test tells it: real gRPC over loopback, answers from a script.

It records what arrived (method, request, metadata, time left), so that tests can look at the wire
and not at the client's inside. Nothing of it outlives its test: a script that still runs is waited
for, and one that answers nonsense fails the test that wrote it, not one that runs later.
"""

import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import grpc
import pytest

import fila
from fila.v1 import admin_pb2_grpc, messages_pb2, service_pb2, service_pb2_grpc

CERTS = Path(__file__).parent / "certs"
# For what happens soon on a machine that is not busy with something else.
PATIENCE_S = 60
# What gRPC's health service answers when all is well: field 1 is 1.
SERVING = b"\x08\x01"

Script = Callable[[Any, grpc.ServicerContext], Any]


@dataclass
class Seen:
    """One call as it arrived."""

    method: str
    request: Any
    metadata: dict[str, str]
    time_remaining: float | None


class ScriptedBroker:
    """Answers every call with success unless `script` says otherwise."""

    def __init__(
        self,
        port: int = 0,
        credentials: grpc.ServerCredentials | None = None,
        scripts: Mapping[str, Script] = MappingProxyType({}),
    ) -> None:
        self.seen: list[Seen] = []
        self.defects: list[str] = []
        self.scripts: dict[str, Script] = {
            "EnqueueBatch": self.store,
            "AckBatch": self.settle,
            "NackBatch": self.settle,
            "Check": lambda *_: SERVING,
            **scripts,
        }
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        # As the real one: a second broker must not be able to take over the port.
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 << 20)]
        self._pool = ThreadPoolExecutor(max_workers=64)
        self._server = grpc.server(self._pool, options=options)
        service = self._servicer(service_pb2_grpc.FilaServiceServicer)
        admin = self._servicer(admin_pb2_grpc.FilaAdminServicer)
        service_pb2_grpc.add_FilaServiceServicer_to_server(service, self._server)
        admin_pb2_grpc.add_FilaAdminServicer_to_server(admin, self._server)
        self._server.add_generic_rpc_handlers((self._health(),))
        address = f"127.0.0.1:{port}"
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        self._server.start()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def script(self, method: str, answer: Script) -> None:
        self.scripts[method] = answer

    def calls(self, method: str) -> list[Seen]:
        return [call for call in self.seen if call.method == method]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.005)

    def stop(self) -> None:
        """Ends every call, and waits for the scripts that answer them."""
        self._server.stop(None).wait()
        self._pool.shutdown()

    def store(self, request: Any, context: grpc.ServicerContext) -> Any:
        """The id of a message is its payload and a number, so that tests can tell whose it is."""
        with self._lock:
            ids = [
                f"{m.payload.decode(errors='replace')}#{next(self._ids)}" for m in request.messages
            ]
        results = [service_pb2.EnqueueResult(message_id=message_id) for message_id in ids]
        return service_pb2.EnqueueBatchResponse(results=results)

    def settle(self, request: Any, context: grpc.ServicerContext) -> Any:
        if isinstance(request, service_pb2.AckBatchRequest):
            return service_pb2.AckBatchResponse(
                results=[messages_pb2.ItemResult()] * len(request.acks)
            )
        results = [messages_pb2.ItemResult()] * len(request.nacks)
        return service_pb2.NackBatchResponse(results=results)

    def _servicer(self, base: type) -> Any:
        methods = {
            name: self._stream(name) if name in ("Consume", "Backup") else self._unary(name)
            for name in vars(base)
            if not name.startswith("_")
        }
        return type("Scripted" + base.__name__, (base,), methods)()

    def _health(self) -> grpc.GenericRpcHandler:
        """gRPC's health service, with answers as bytes."""
        check = self._unary("Check")
        handler = grpc.unary_unary_rpc_method_handler(lambda *given: check(None, *given))
        return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler})

    def _unary(self, name: str) -> Callable[..., Any]:
        def handle(_: Any, request: Any, context: grpc.ServicerContext) -> Any:
            self._record(name, request, context)
            with self._watched(name):
                answer = self.scripts[name](request, context)
                assert answer is not None, "no answer"
                return answer

        return handle

    def _stream(self, name: str) -> Callable[..., Any]:
        def handle(_: Any, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            self._record(name, request, context)
            with self._watched(name):
                yield from self.scripts[name](request, context)

        return handle

    @contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if type(error) is not Exception or error.args:  # that is how gRPC's abort() leaves
                self.defects.append(f"{name}: {error!r}")
            raise

    def _record(self, name: str, request: Any, context: grpc.ServicerContext) -> None:
        metadata = {key: str(value) for key, value in context.invocation_metadata()}
        self.seen.append(Seen(name, request, metadata, context.time_remaining()))


def message(message_id: str = "m-1", queue: str = "orders", **fields: Any) -> Any:
    """A delivered message as the broker would send it."""
    raw = messages_pb2.Message(id=message_id, **fields)
    raw.metadata.queue_id = queue
    raw.metadata.fairness_key = raw.metadata.fairness_key or "default"
    raw.metadata.lease_token = raw.metadata.lease_token or f"token-of-{message_id}"
    return raw


def frame(*ids: str, queue: str = "orders") -> service_pb2.ConsumeResponse:
    return service_pb2.ConsumeResponse(messages=[message(i, queue) for i in ids])


def idle(context: grpc.ServicerContext) -> None:
    """Keeps a stream open until its client ends it."""
    ended = threading.Event()
    if context.add_callback(ended.set):
        assert ended.wait(PATIENCE_S)


def refuse(code: grpc.StatusCode, text: str = "", reason: str | None = None) -> Callable[..., Any]:
    """A script that fails every call."""

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        if reason is not None:
            context.set_trailing_metadata((("fila-reason", reason),))
        context.abort(code, text)

    return answer


def free_port() -> int:
    """A port where nobody listens, for brokers that come later or again.

    No connection is given it: of the ephemeral range, whoever listens on port 0 could take it
    meanwhile, and a client that tries to connect there may find itself.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@pytest.fixture
def wire() -> SimpleNamespace:
    """What tests build answers and scripts from."""
    return SimpleNamespace(
        message=message,
        frame=frame,
        idle=idle,
        refuse=refuse,
        free_port=free_port,
        certs=CERTS,
        patience_s=PATIENCE_S,
        serving=SERVING,
        code=grpc.StatusCode,
    )


@pytest.fixture
def start_broker() -> Iterator[Callable[..., ScriptedBroker]]:
    """Starts brokers, and stops those that the test did not."""
    brokers: list[ScriptedBroker] = []

    def start(**settings: Any) -> ScriptedBroker:
        brokers.append(ScriptedBroker(**settings))
        return brokers[-1]

    yield start
    for broker in brokers:
        broker.stop()
    assert [defect for broker in brokers for defect in broker.defects] == []


@pytest.fixture
def broker(start_broker: Callable[..., ScriptedBroker]) -> ScriptedBroker:
    return start_broker()


@pytest.fixture
def client(broker: ScriptedBroker) -> Iterator[fila.Client]:
    with fila.Client(broker.target) as client:
        yield client
