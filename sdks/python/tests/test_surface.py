# SPDX-License-Identifier: AGPL-3.0-only
"""The public surface is that of the contract, complete and the same in both clients."""

import dataclasses
import inspect
import subprocess
import sys

import pytest
from google.protobuf.message import Message as ProtobufMessage

import fila
from fila import _wire, admin
from fila._answers import member, number_of
from fila.v1 import admin_pb2, messages_pb2, service_pb2


def test_the_settings_are_those_of_the_contract():
    names = [field.name for field in admin_pb2.QueueConfig.DESCRIPTOR.fields]
    assert list(admin.QueueSettings.__annotations__) == names
    assert [field.name for field in dataclasses.fields(fila.QueueConfig)] == names


@pytest.mark.parametrize(
    ("plain", "raw"),
    [
        (fila.QueueInfo, admin_pb2.QueueInfo),
        (fila.DeletedQueue, admin_pb2.DeleteQueueResponse),
        (fila.ThrottlePage, admin_pb2.ListThrottlesResponse),
        (fila.Failure, messages_pb2.Failure),
        (fila.QueueStats, admin_pb2.GetStatsResponse),
        (fila.FairnessKeyStats, admin_pb2.PerFairnessKeyStats),
        (fila.ThrottleKeyStats, admin_pb2.PerThrottleKeyStats),
        (fila.QueueCounters, admin_pb2.QueueCounters),
        (fila.HookStats, admin_pb2.HookStats),
        (fila.PeekPage, admin_pb2.PeekResponse),
        (fila.PeekedMessage, admin_pb2.PeekedMessage),
        (fila.Explanation, admin_pb2.ExplainResponse),
        (fila.WaitReason, admin_pb2.WaitReason),
        (fila.ApiKeyInfo, admin_pb2.ApiKeyInfo),
        (fila.BrokerStatus, admin_pb2.GetStatusResponse),
        (fila.Trouble, admin_pb2.Trouble),
        (fila.KeyTraffic, admin_pb2.KeyTraffic),
        (fila.ConsumerStats, admin_pb2.ConsumerStats),
        (fila.WaitStats, admin_pb2.WaitStats),
        (fila.BackupProgress, admin_pb2.BackupResponse),
    ],
)
def test_results_have_every_field_of_the_contract_and_are_frozen(plain, raw):
    assert [field.name for field in dataclasses.fields(plain)] == [
        field.name for field in raw.DESCRIPTOR.fields
    ]
    assert plain.__dataclass_params__.frozen


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (fila.MessageState, admin_pb2.MessageState),
        (fila.WaitKind, admin_pb2.WaitKind),
        (fila.HookErrorPolicy, admin_pb2.HookErrorPolicy),
        (fila.FailureCause, messages_pb2.FailureCause),
        (fila.Severity, admin_pb2.Severity),
    ],
)
def test_enums_have_every_member_of_the_contract(kind, raw):
    assert [number_of(raw, item) for item in kind] == list(raw.values())[1:]
    assert [member(kind, raw, number) for number in raw.values()] == [None, *kind]


def test_a_batch_request_is_one_repeated_field_with_the_number_one():
    """That is what lets items be encoded one by one and joined."""
    service = service_pb2.DESCRIPTOR.services_by_name["FilaService"]
    for batch in (_wire.ENQUEUE, _wire.ACK, _wire.NACK, _wire.EXTEND):
        method = service.methods_by_name[batch.method.rpartition("/")[2]]
        (field,) = method.input_type.fields
        assert (field.number, field.is_repeated) == (1, True)
        assert method.output_type is batch.response.DESCRIPTOR


def test_both_clients_have_the_same_methods():
    def surface(kind):
        return {
            name: str(inspect.signature(member))
            .replace("AsyncConsume", "Consume")
            .replace("AsyncIterator", "Iterator")
            .replace("AsyncWorker", "Worker")
            .replace("Awaitable[object]", "object")
            .replace("fila.aio", "fila.client")
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert surface(fila.Client) == surface(fila.AsyncClient)
    for name in surface(fila.Client):
        is_async = inspect.iscoroutinefunction(getattr(fila.AsyncClient, name))
        assert is_async == (name not in ("consume", "worker", "backup")), name
        assert getattr(fila.AsyncClient, name).__doc__ == getattr(fila.Client, name).__doc__
    methods = {n for n, _ in inspect.getmembers(fila.ConsumeMessage) if not n.startswith("_")}
    assert methods == {n for n, _ in inspect.getmembers(fila.AsyncConsumeMessage) if n[0] != "_"}


def test_no_public_result_is_a_protobuf_object():
    public = [getattr(fila, name) for name in fila.__all__]
    kinds = [it for it in public if isinstance(it, type)]  # `fila.tracing` is a module
    assert not [kind for kind in kinds if issubclass(kind, ProtobufMessage)]
    assert fila.__all__ == sorted(fila.__all__)


def test_importing_the_client_makes_no_class_that_only_operators_need():
    script = "import sys, fila; fila.Client; print(*(n for n in sys.modules if n[:5] == 'fila.'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    rooms = {"access", "admin", "aio", "backup", "config", "findings", "queues", "stats", "status"}
    rooms |= {"testing", "worker", "_outcomes"}
    assert not {f"fila.{room}" for room in rooms} & set(done.stdout.decode().split())


def test_every_public_name_is_found_and_listed():
    for name in fila.__all__:
        assert getattr(fila, name) is not None
        assert name in dir(fila)
    assert fila.findings.PeekPage is fila.PeekPage
    assert callable(fila.testing.broker)
    with pytest.raises(AttributeError, match="module 'fila' has no attribute 'Cleint'"):
        fila.Cleint  # noqa: B018
