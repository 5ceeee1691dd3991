# SPDX-License-Identifier: AGPL-3.0-only
"""Health and reflection, through grpcio's own clients."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2 as rp
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from server.edge.tests.calls import refused
from server.edge.tests.canned import Canned
from server.edge.tests.conftest import Connect, Start

STATUS = grpc.StatusCode
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
NOISE = b"\xff\xff\xff\xff\xff"


def asked(service: str = "") -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


def test_check_and_list_say_what_python_said(canned: Canned, channel: grpc.Channel) -> None:
    stub = HealthStub(channel)
    for is_serving, status in ((True, SERVING), (False, NOT_SERVING), (True, SERVING)):
        canned.edge.serving(is_serving)
        for service in ("", "t.T"):
            assert stub.Check(asked(service), timeout=30).status == status
        listed = stub.List(health_pb2.HealthListRequest(), timeout=30).statuses
        assert {name: one.status for name, one in listed.items()} == {"": status, "t.T": status}
    assert refused(lambda: stub.Check(asked("x"), timeout=30)).status is STATUS.NOT_FOUND


def test_a_watch_is_told_of_every_change(canned: Canned, channel: grpc.Channel) -> None:
    watch = HealthStub(channel).Watch(asked("t.T"), timeout=60)
    assert next(watch).status == SERVING
    canned.edge.serving(False)
    assert next(watch).status == NOT_SERVING
    canned.edge.serving(True)
    assert next(watch).status == SERVING
    watch.cancel()
    unknown = HealthStub(channel).Watch(asked("x"), timeout=60)
    assert next(unknown).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    assert unknown.is_active()
    unknown.cancel()
    canned.settled(lambda now: now["watches"] == 0 and now["calls_under_way"] == 0)


def test_watches_are_bounded_and_make_room_when_they_end(start: Start, connect: Connect) -> None:
    canned = start(settings={"watches_max": 5})
    stub = HealthStub(connect(canned))
    watches = [stub.Watch(asked(), timeout=60) for _ in range(5)]
    assert all(next(watch).status == SERVING for watch in watches)
    refusal = refused(lambda: next(stub.Watch(asked(), timeout=60)))
    text = "5 watches are open already; use Check"
    assert refusal == (STATUS.RESOURCE_EXHAUSTED, text, "OVERLOADED")
    assert stub.Check(asked(), timeout=30).status == SERVING
    for watch in watches:
        watch.cancel()
    canned.settled(lambda now: now["watches"] == 0)
    assert next(stub.Watch(asked(), timeout=60)).status == SERVING


def table() -> list[tuple[int, str, bytes]]:
    services = rp.ServerReflectionResponse()
    services.list_services_response.service.add(name="t.T")
    file = rp.ServerReflectionResponse()
    file.file_descriptor_response.file_descriptor_proto.append(b"file")
    return [
        (7, "", services.SerializeToString()),
        (4, "t.T", file.SerializeToString()),
        (3, "t.proto", file.SerializeToString()),
    ]


def test_reflection_answers_from_its_table(start: Start, connect: Connect) -> None:
    stub = ServerReflectionStub(connect(start(reflection=table())))
    requests = [
        rp.ServerReflectionRequest(host="h", list_services="*"),
        rp.ServerReflectionRequest(file_containing_symbol="t.T"),
        rp.ServerReflectionRequest(file_by_filename="t.proto"),
        rp.ServerReflectionRequest(file_by_filename="other.proto"),
    ]
    answers = list(stub.ServerReflectionInfo(iter(requests), timeout=30))
    assert [answer.original_request for answer in answers] == requests
    assert [answer.valid_host for answer in answers] == ["h", "", "", ""]
    assert answers[0].list_services_response.service[0].name == "t.T"
    for answer in answers[1:3]:
        assert answer.file_descriptor_response.file_descriptor_proto == [b"file"]
    assert answers[3].error_response.error_code == 5
    assert "other.proto" in answers[3].error_response.error_message


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_has_both_names(start: Start, connect: Connect, version: str) -> None:
    path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    call = connect(start(reflection=table())).stream_stream(path, None, None)
    request = rp.ServerReflectionRequest(list_services="").SerializeToString()
    assert len(list(call(iter([request] * 100), timeout=30))) == 100


def test_reflection_may_be_off(channel: grpc.Channel) -> None:
    stub = ServerReflectionStub(channel)
    refusal = refused(lambda: next(stub.ServerReflectionInfo(iter([]), timeout=30)))
    assert refusal.status is STATUS.UNIMPLEMENTED


def test_reflection_streams_are_bounded(start: Start, connect: Connect) -> None:
    canned = start(reflection=table(), settings={"reflection_streams_max": 2})
    channel = connect(canned)
    is_over = threading.Event()

    def forever() -> Any:
        yield rp.ServerReflectionRequest(list_services="")
        is_over.wait()

    stub = ServerReflectionStub(channel)
    streams = [stub.ServerReflectionInfo(forever(), timeout=60) for _ in range(2)]
    assert all(next(stream) for stream in streams)
    refusal = refused(lambda: next(stub.ServerReflectionInfo(forever(), timeout=60)))
    text = "2 reflection streams are open already; try again later"
    assert refusal == (STATUS.RESOURCE_EXHAUSTED, text, "OVERLOADED")
    for stream in streams:
        stream.cancel()
    is_over.set()
    canned.settled(lambda now: now["reflection_streams"] == 0)


def test_bytes_that_are_no_request_get_a_status(start: Start, connect: Connect) -> None:
    channel = connect(start(reflection=table()))
    health = "/grpc.health.v1.Health/"
    check = channel.unary_unary(health + "Check", None, None)
    watch = channel.unary_stream(health + "Watch", None, None)
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    info = channel.stream_stream(path, None, None)
    for call, reason in (
        (lambda: check(NOISE, timeout=30), "INVALID_ARGUMENT"),
        (lambda: check(bytes(5000), timeout=30), "MESSAGE_TOO_LARGE"),
        (lambda: next(watch(NOISE, timeout=30)), "INVALID_ARGUMENT"),
        (lambda: next(info(iter([NOISE]), timeout=30)), "INVALID_ARGUMENT"),
        (lambda: next(info(iter([bytes(5000)]), timeout=30)), "MESSAGE_TOO_LARGE"),
    ):
        refusal = refused(call)
        assert (refusal.status, refusal.reason) == (STATUS.INVALID_ARGUMENT, reason)
