# SPDX-License-Identifier: AGPL-3.0-only
"""The scripted server and what a recording server writes down, seen by a plain gRPC client."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from fila_conformance import admin
from fila_conformance.broker import Broker
from fila_conformance.layout import CERTS
from fila_conformance.scripted import Script, credentials_of
from fila_conformance.wiretap import RecordingServer

from fila.v1 import admin_pb2, service_pb2

Start = Callable[..., RecordingServer]
SERVICE = "/fila.v1.FilaService/"


@pytest.fixture
def start() -> Iterator[Start]:
    servers: list[RecordingServer] = []

    def begin(script: dict[str, Any], tls: str | None = None) -> RecordingServer:
        servers.append(RecordingServer(Script(script), credentials_of(tls)))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


def enqueue(channel: grpc.Channel, count: int = 1, **options: Any) -> Any:
    stub = channel.unary_unary(
        SERVICE + "EnqueueBatch",
        service_pb2.EnqueueBatchRequest.SerializeToString,
        service_pb2.EnqueueBatchResponse.FromString,
    )
    messages = [service_pb2.EnqueueRequest(queue="q", headers={"a": "b"})] * count
    return stub(service_pb2.EnqueueBatchRequest(messages=messages), **options)


def test_answers_come_in_order_and_the_last_stays(start: Start) -> None:
    refusal = {"status": {"code": "UNAVAILABLE", "message": "gone", "reason": "SHUTTING_DOWN"}}
    server = start({"EnqueueBatch": [refusal, {"respond": {"results": [{"message_id": "m"}]}}]})
    with grpc.insecure_channel(server.target) as channel:
        with pytest.raises(grpc.RpcError) as failed:
            enqueue(channel)
        error: Any = failed.value
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert ("fila-reason", "SHUTTING_DOWN") in [tuple(p) for p in error.trailing_metadata()]
        assert [enqueue(channel).results[0].message_id for _ in range(2)] == ["m", "m"]


def test_an_rpc_without_a_script_succeeds(start: Start) -> None:
    server = start({})
    with grpc.insecure_channel(server.target) as channel:
        assert len(enqueue(channel, 3).results) == 3


def test_what_arrives_is_written_down(start: Start) -> None:
    server = start({})
    with grpc.insecure_channel(server.target) as channel:
        enqueue(channel, timeout=7, metadata=(("authorization", "Bearer k"),))
        enqueue(channel)
    first, second = server.calls("EnqueueBatch")
    assert first["metadata"]["authorization"] == "Bearer k"
    assert 1000 < first["deadline_ms"] <= 7100
    assert first["request"]["messages"][0]["headers"] == {"a": "b"}
    assert second["deadline_ms"] is None
    assert server.calls("AckBatch") == []
    assert server.concurrent_max("EnqueueBatch") == 1


def test_a_stream_sends_frames_and_then_its_status(start: Start) -> None:
    frames = [{"messages": [{"id": "m1"}]}, {"messages": [{"id": "m2"}]}]
    status = {"code": "NOT_FOUND", "message": "no queue"}
    server = start({"Consume": [{"frames": frames, "status": status, "unknown_field": True}]})
    with grpc.insecure_channel(server.target) as channel:
        stub = channel.unary_stream(
            SERVICE + "Consume",
            service_pb2.ConsumeRequest.SerializeToString,
            service_pb2.ConsumeResponse.FromString,
        )
        seen = []
        with pytest.raises(grpc.RpcError):
            for frame in stub(service_pb2.ConsumeRequest(queue="q")):
                assert frame.ByteSize() > 0
                seen += [message.id for message in frame.messages]
    assert seen == ["m1", "m2"]


def test_an_unknown_rpc_is_unimplemented(start: Start) -> None:
    server = start({})
    with grpc.insecure_channel(server.target) as channel:
        stub = channel.unary_unary(
            "/fila.v1.FilaAdmin/Dance",
            admin_pb2.ListQueuesRequest.SerializeToString,
            admin_pb2.ListQueuesResponse.FromString,
        )
        with pytest.raises(grpc.RpcError) as failed:
            stub(admin_pb2.ListQueuesRequest())
    error: Any = failed.value
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def test_certificates_are_what_they_are_called(start: Start) -> None:
    credentials = grpc.ssl_channel_credentials((CERTS / "ca.pem").read_bytes())
    for name, is_trusted in (("server", True), ("wrong_host", False), ("untrusted", False)):
        server = start({}, name)
        with grpc.secure_channel(server.target, credentials) as channel:
            if is_trusted:
                assert len(enqueue(channel, timeout=20).results) == 1
            else:
                with pytest.raises(grpc.RpcError):
                    enqueue(channel, timeout=20)


def caller(server: RecordingServer) -> admin.Admin:
    return admin.Admin(cast(Broker, SimpleNamespace(kind="plain", target=server.target)))


def test_an_extension_without_a_script_says_until_when(start: Start) -> None:
    asking = caller(start({}))
    settlements = [{"lease_token": "t", "extend": {"extend_ms": 5000}}, {"ack": {}}]
    prolonged, acked = asking.call("settle_grants", {"settlements": settlements})["results"]
    assert prolonged["lease_expires_at"] > "2026" and prolonged["messages"] == 1
    assert "lease_expires_at" not in acked
    (extended,) = asking.call("extend_lease", {"extensions": [{"extend_ms": 5000}]})["results"]
    assert extended["lease_expires_at"] > "2026"
    asking.close()


def test_a_stream_is_open_when_its_headers_have_come(start: Start) -> None:
    # gRPC's own server sends headers with the first message.
    frames = [{"messages": [{"id": "m"}]}]
    asking = caller(start({"Consume": [{"frames": frames, "hang": True}]}))
    assert asking.call("consume", {"queue": "q"}) == {"headers": {}}
    asking.close()


def test_a_stream_without_headers_is_not_open(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_TIMEOUT_S", 0.5)
    asking = caller(start({"Consume": [{"hang": True}]}))
    with pytest.raises(admin.AdminError, match="DEADLINE_EXCEEDED"):
        asking.call("consume", {"queue": "q"})
    asking.close()


def test_a_stream_that_is_refused_says_why(start: Start) -> None:
    refusal = {"status": {"code": "NOT_FOUND", "message": "none", "reason": "QUEUE_NOT_FOUND"}}
    asking = caller(start({"Consume": [refusal]}))
    with pytest.raises(admin.AdminError, match="QUEUE_NOT_FOUND"):
        asking.call("consume", {"queue": "q"})
    asking.close()
