# SPDX-License-Identifier: AGPL-3.0-only
"""Health and reflection: what probes and generic tools see."""

import signal
from collections.abc import Callable

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2 as rp
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from fila.v1 import service_pb2 as sp
from fila_server.limits import WATCHES_MAX
from server.tests.broker_process import BrokerProcess
from server.tests.rpc.wire import Wire, eventually, refused

SERVICES = ("", "fila.v1.FilaService", "fila.v1.FilaAdmin")
SERVING = health_pb2.HealthCheckResponse.SERVING
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
Start = Callable[..., tuple[BrokerProcess, Wire]]


@pytest.mark.parametrize("service", SERVICES)
def test_a_running_broker_serves(wire: Wire, service: str) -> None:
    request = health_pb2.HealthCheckRequest(service=service)
    assert HealthStub(wire.channel).Check(request, timeout=30).status == SERVING


def test_the_services_that_serve_can_be_listed(wire: Wire) -> None:
    listed = HealthStub(wire.channel).List(health_pb2.HealthListRequest(), timeout=30)
    assert {name: row.status for name, row in listed.statuses.items()} == dict.fromkeys(
        SERVICES, SERVING
    )


def test_health_of_a_service_that_does_not_exist(wire: Wire) -> None:
    request = health_pb2.HealthCheckRequest(service="fila.v1.Nothing")
    refusal = refused(lambda: HealthStub(wire.channel).Check(request, timeout=30))
    assert refusal.status is grpc.StatusCode.NOT_FOUND


def test_a_broker_that_stops_says_so_and_ends_its_streams(start: Start) -> None:
    broker, wire = start("[server]\nshutdown_grace_ms = 1000\n")
    queue = wire.queue()
    watches = [
        HealthStub(wire.channel).Watch(health_pb2.HealthCheckRequest(service=service))
        for service in SERVICES
    ]
    assert [next(watch).status for watch in watches] == [SERVING] * 3
    stream = wire.consume(queue)
    waiting = wire.service.Receive.future(sp.ReceiveRequest(queue=queue, wait_ms=60_000))
    eventually(lambda: wire.stats(queue).active_consumers == 2)
    broker.signal(signal.SIGTERM)
    assert [next(watch).status for watch in watches] == [NOT_SERVING] * 3
    for refusal in (refused(lambda: next(stream)), refused(lambda: waiting.result(30))):
        assert (refusal.status, refusal.reason) == (
            grpc.StatusCode.UNAVAILABLE,
            "SHUTTING_DOWN",
        )
    assert broker.wait() == 0


def ask(wire: Wire, **fields: str) -> rp.ServerReflectionResponse:
    request = rp.ServerReflectionRequest(**fields)
    stub = ServerReflectionStub(wire.channel)
    response: rp.ServerReflectionResponse = next(
        stub.ServerReflectionInfo(iter([request]), timeout=30)
    )
    return response


def test_reflection_shows_the_contract(wire: Wire) -> None:
    listed = ask(wire, list_services="").list_services_response.service
    names = {service.name for service in listed}
    assert {"fila.v1.FilaService", "fila.v1.FilaAdmin", "grpc.health.v1.Health"} <= names
    found = ask(wire, file_containing_symbol="fila.v1.FilaService").file_descriptor_response
    files = [FileDescriptorProto.FromString(file) for file in found.file_descriptor_proto]
    (service,) = next(file for file in files if file.name.endswith("service.proto")).service
    assert {"Enqueue", "Consume", "ExtendLease"} <= {method.name for method in service.method}


def test_reflection_can_be_turned_off(start: Start) -> None:
    _, wire = start("[server]\nreflection = false\n")
    refusal = refused(lambda: ask(wire, list_services=""))
    assert refusal.status is grpc.StatusCode.UNIMPLEMENTED


NOISE = b"\xff\xff\xff\xff\xff"


def test_bytes_that_are_no_request_get_a_status_and_leave_no_traceback(start: Start) -> None:
    broker, wire = start()
    health = "/grpc.health.v1.Health/"
    check = wire.channel.unary_unary(health + "Check", None, None)
    watch = wire.channel.unary_stream(health + "Watch", None, None)
    info = wire.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", None, None
    )
    for call in (
        lambda: check(NOISE, timeout=30),
        lambda: next(watch(NOISE, timeout=30)),
        lambda: next(info(iter([NOISE]), timeout=30)),
        lambda: next(info(iter([bytes(100_000)]), timeout=30)),
    ):
        assert refused(call).status is grpc.StatusCode.INVALID_ARGUMENT
    assert HealthStub(wire.channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
    assert broker.terminate() == 0
    assert "Traceback" not in broker.log() and "error" not in broker.log()


@pytest.mark.serial
def test_watches_are_bounded_and_make_room_when_they_end(start: Start) -> None:
    _, wire = start()
    channels = [
        grpc.insecure_channel(wire.address, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(2)
    ]
    request = health_pb2.HealthCheckRequest()
    stubs = [HealthStub(channel) for channel in channels]  # a connection carries 1000 streams
    watches = [stubs[n % 2].Watch(request, timeout=120) for n in range(WATCHES_MAX)]
    assert all(next(watch).status == SERVING for watch in watches)
    refusal = refused(lambda: next(stubs[0].Watch(request, timeout=120)))
    assert (refusal.status, refusal.reason) == (EXHAUSTED, "OVERLOADED")
    assert HealthStub(wire.channel).Check(request, timeout=60).status == SERVING
    for watch in watches:
        watch.cancel()

    def has_room() -> bool:
        watch = stubs[0].Watch(request, timeout=60)
        try:
            return bool(next(watch).status == SERVING)
        except grpc.RpcError:
            return False
        finally:
            watch.cancel()

    eventually(has_room)
    for channel in channels:
        channel.close()


def test_a_watch_of_a_service_that_does_not_exist(wire: Wire) -> None:
    request = health_pb2.HealthCheckRequest(service="fila.v1.Nothing")
    watch = HealthStub(wire.channel).Watch(request, timeout=30)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()
