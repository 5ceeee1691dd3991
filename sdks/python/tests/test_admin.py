# SPDX-License-Identifier: AGPL-3.0-only
"""Operating a broker: every call of the contract, in both clients, as plain values."""

import dataclasses
import inspect
from datetime import UTC, datetime

import pytest
from google.protobuf.message import Message as ProtobufMessage

import fila
from fila import _wire, admin
from fila.v1 import admin_pb2, service_pb2

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
CONFIG = {
    "on_enqueue_script": "function on_enqueue(msg) end",
    "on_failure_script": "function on_failure(msg) end",
    "visibility_timeout_ms": 1,
    "max_attempts": 2,
    "retry_delay_ms": 3,
    "retry_delay_max_ms": 4,
    "default_ttl_ms": 5,
    "idempotency_window_ms": 6,
    "max_messages": 7,
    "on_hook_error": "reject",
    "hook_timeout_ms": 8,
    "hook_memory_limit_bytes": 9,
    "quantum": 10,
}
RAW_CONFIG = admin_pb2.QueueConfig(
    **{**CONFIG, "on_hook_error": admin_pb2.HOOK_ERROR_POLICY_REJECT}
)
ACL = (fila.AclEntry("produce", "orders"), fila.AclEntry(fila.Permission.ADMIN, "mail.*"))
RAW_ACL = [
    admin_pb2.AclEntry(permission="PERMISSION_PRODUCE", pattern="orders"),
    admin_pb2.AclEntry(permission="PERMISSION_ADMIN", pattern="mail.*"),
]

# method, arguments, RPC, the request on the wire, the answer, what the caller gets
CALLS = [
    (
        lambda c: c.create_queue("orders", **CONFIG),
        "CreateQueue",
        admin_pb2.CreateQueueRequest(name="orders", config=RAW_CONFIG),
        admin_pb2.CreateQueueResponse(dead_letter_queue="orders.dlq"),
        "orders.dlq",
    ),
    (
        lambda c: c.update_queue("orders", max_attempts=0, quantum=10),
        "UpdateQueue",
        admin_pb2.UpdateQueueRequest(
            queue="orders",
            config=admin_pb2.QueueConfig(quantum=10),
            update_mask={"paths": ["max_attempts", "quantum"]},
        ),
        admin_pb2.UpdateQueueResponse(config=RAW_CONFIG),
        fila.QueueConfig(**CONFIG),
    ),
    (
        lambda c: c.delete_queue("orders"),
        "DeleteQueue",
        admin_pb2.DeleteQueueRequest(queue="orders"),
        admin_pb2.DeleteQueueResponse(),
        None,
    ),
    (
        lambda c: c.list_queues(),
        "ListQueues",
        admin_pb2.ListQueuesRequest(),
        admin_pb2.ListQueuesResponse(
            queues=[
                admin_pb2.QueueInfo(
                    name="orders.dlq",
                    depth=1,
                    in_flight=2,
                    active_consumers=3,
                    delayed=4,
                    paused=True,
                    dead_letter_of="orders",
                )
            ]
        ),
        [fila.QueueInfo("orders.dlq", 1, 2, 3, 4, True, "orders")],
    ),
    (
        lambda c: c.purge("orders", "acme"),
        "Purge",
        admin_pb2.PurgeRequest(queue="orders", fairness_key="acme"),
        admin_pb2.PurgeResponse(purged=3),
        3,
    ),
    (
        lambda c: c.pause("orders"),
        "Pause",
        admin_pb2.PauseRequest(queue="orders"),
        admin_pb2.PauseResponse(),
        None,
    ),
    (
        lambda c: c.resume("orders", fairness_key="acme"),
        "Resume",
        admin_pb2.ResumeRequest(queue="orders", fairness_key="acme"),
        admin_pb2.ResumeResponse(),
        None,
    ),
    (
        lambda c: c.redrive(
            "orders.dlq", 5, fairness_key="a", error_contains="b", message_ids=["m-1", "m-2"]
        ),
        "Redrive",
        admin_pb2.RedriveRequest(
            dlq_queue="orders.dlq",
            count=5,
            fairness_key="a",
            error_contains="b",
            message_ids=["m-1", "m-2"],
        ),
        admin_pb2.RedriveResponse(redriven=2),
        2,
    ),
    (
        lambda c: c.cancel("orders", "m-1"),
        "CancelMessage",
        admin_pb2.CancelMessageRequest(queue="orders", message_id="m-1"),
        admin_pb2.CancelMessageResponse(),
        None,
    ),
    (
        lambda c: c.explain("orders", fairness_key="acme", message_id="m-1"),
        "Explain",
        admin_pb2.ExplainRequest(queue="orders", fairness_key="acme", message_id="m-1"),
        admin_pb2.ExplainResponse(
            summary="It waits.",
            reasons=[
                admin_pb2.WaitReason(
                    kind="WAIT_KIND_NO_CREDIT",
                    detail="nobody",
                    throttle_key="mail",
                    until=NOON,
                    count=1,
                    limit=2,
                ),
                admin_pb2.WaitReason(kind=99),
            ],
            estimated_at=NOON,
            fairness_key="acme",
            pending_count=3,
            ahead=4,
            state="MESSAGE_STATE_DELAYED",
        ),
        fila.Explanation(
            "It waits.",
            (
                fila.WaitReason(fila.WaitKind.NO_CREDIT, "nobody", "mail", NOON, 1, 2),
                fila.WaitReason(None, "", "", None, 0, 0),
            ),
            NOON,
            "acme",
            3,
            4,
            fila.MessageState.DELAYED,
        ),
    ),
    (
        lambda c: c.set_config("throttle:mail:rate", "5"),
        "SetConfig",
        admin_pb2.SetConfigRequest(key="throttle:mail:rate", value="5"),
        admin_pb2.SetConfigResponse(),
        None,
    ),
    (
        lambda c: c.get_config("key"),
        "GetConfig",
        admin_pb2.GetConfigRequest(key="key"),
        admin_pb2.GetConfigResponse(value="5"),
        "5",
    ),
    (
        lambda c: c.delete_config("key"),
        "DeleteConfig",
        admin_pb2.DeleteConfigRequest(key="key"),
        admin_pb2.DeleteConfigResponse(),
        None,
    ),
    (
        lambda c: c.list_config("throttle"),
        "ListConfig",
        admin_pb2.ListConfigRequest(prefix="throttle"),
        admin_pb2.ListConfigResponse(
            entries=[admin_pb2.ConfigEntry(key=k, value=v) for k, v in ("ab", "cd")], total_count=2
        ),
        {"a": "b", "c": "d"},
    ),
    (
        lambda c: c.create_api_key("ci", ACL, expires_at=NOON, superadmin=True),
        "CreateApiKey",
        admin_pb2.CreateApiKeyRequest(name="ci", expires_at=NOON, superadmin=True, acl=RAW_ACL),
        admin_pb2.CreateApiKeyResponse(key_id="k-1", secret="s"),
        fila.NewApiKey("k-1", "s"),
    ),
    (
        lambda c: c.revoke_api_key("k-1"),
        "RevokeApiKey",
        admin_pb2.RevokeApiKeyRequest(key_id="k-1"),
        admin_pb2.RevokeApiKeyResponse(),
        None,
    ),
    (
        lambda c: c.list_api_keys(),
        "ListApiKeys",
        admin_pb2.ListApiKeysRequest(),
        admin_pb2.ListApiKeysResponse(
            keys=[
                admin_pb2.ApiKeyInfo(
                    key_id="k-1", name="ci", created_at=NOON, superadmin=True, acl=RAW_ACL
                )
            ]
        ),
        [fila.ApiKeyInfo("k-1", "ci", NOON, None, True, ACL)],
    ),
    (
        lambda c: c.set_acl("k-1", ACL),
        "SetAcl",
        admin_pb2.SetAclRequest(key_id="k-1", acl=RAW_ACL),
        admin_pb2.SetAclResponse(),
        None,
    ),
    (
        lambda c: c.get_acl("k-1"),
        "GetAcl",
        admin_pb2.GetAclRequest(key_id="k-1"),
        admin_pb2.GetAclResponse(acl=RAW_ACL, superadmin=True),
        fila.Acl(ACL, True),
    ),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("call", "rpc", "request_on_wire", "answer", "expected"), CALLS, ids=[row[1] for row in CALLS]
)
async def test_a_call_sends_its_request_and_reads_its_answer(
    broker, client, call, rpc, request_on_wire, answer, expected
):
    broker.script(rpc, lambda *_: answer)
    assert call(client) == expected
    async with fila.AsyncClient(broker.target) as async_client:
        assert await call(async_client) == expected
    assert [seen.method for seen in broker.seen] == [rpc, rpc]
    assert [seen.request for seen in broker.seen] == [request_on_wire] * 2


def test_stats_are_read_in_full(broker, client):
    raw = admin_pb2.GetStatsResponse(
        depth=1,
        in_flight=2,
        active_fairness_keys=3,
        active_consumers=4,
        quantum=5,
        per_key_stats=[admin_pb2.PerFairnessKeyStats(key="acme", current_deficit=-1, paused=True)],
        per_throttle_stats=[
            admin_pb2.PerThrottleKeyStats(key="mail", tokens=0.5, paused_until=NOON)
        ],
        counters=admin_pb2.QueueCounters(enqueued=9),
        config=admin_pb2.QueueConfig(quantum=7),
        dead_letter_of="x",
        throttled=8,
    )
    broker.script("GetStats", lambda *_: raw)
    stats = client.stats("orders", max_keys=4)
    assert broker.seen[0].request == admin_pb2.GetStatsRequest(queue="orders", max_keys=4)
    assert (stats.depth, stats.in_flight, stats.active_fairness_keys) == (1, 2, 3)
    assert (stats.dead_letter_of, stats.throttled, stats.hooks) == ("x", 8, None)
    assert stats.per_key_stats == (fila.FairnessKeyStats("acme", 0, -1, 0, 0, 0, True),)
    (throttle,) = stats.per_throttle_stats
    assert (throttle.key, throttle.tokens, throttle.paused_until) == ("mail", 0.5, NOON)
    assert stats.counters.enqueued == 9
    assert (stats.config.quantum, stats.config.on_hook_error) == (7, fila.HookErrorPolicy.DEFAULT)
    raw.hooks.last_error = "boom"
    assert client.stats("orders").hooks == fila.HookStats(0, 0, 0, False, "boom")


def test_peek_shows_messages_that_cannot_be_settled(broker, client, wire):
    raw = admin_pb2.PeekedMessage(
        message=wire.message("m-1", payload=b"x"), state="MESSAGE_STATE_LEASED", position=7
    )
    answer = admin_pb2.PeekResponse(messages=[raw], next_position=8, end_position=9)
    broker.script("Peek", lambda *_: answer)
    page = client.peek(
        "orders",
        5,
        from_position=1,
        until_position=2,
        fairness_key="acme",
        state="leased",
        exclude_payload=True,
    )
    assert broker.seen[0].request == admin_pb2.PeekRequest(
        queue="orders",
        limit=5,
        from_position=1,
        until_position=2,
        fairness_key="acme",
        state="MESSAGE_STATE_LEASED",
        exclude_payload=True,
    )
    assert (page.next_position, page.end_position) == (8, 9)
    (found,) = page.messages
    assert (found.message.id, found.message.payload, found.position) == ("m-1", b"x", 7)
    assert found.state is fila.MessageState.LEASED
    assert not hasattr(found.message, "ack")


def test_a_wrong_setting_is_named(broker, client):
    with pytest.raises(
        TypeError, match='"max_retries" is not a setting of a queue; they are default'
    ):
        client.create_queue("orders", max_retries=3)
    with pytest.raises(TypeError, match="setting max_attempts must not be None"):
        client.update_queue("orders", max_attempts=None)
    with pytest.raises(ValueError, match="'sometimes' is not a valid HookErrorPolicy"):
        client.create_queue("orders", on_hook_error="sometimes")
    with pytest.raises(ValueError, match="'lost' is not a valid MessageState"):
        client.peek("orders", state="lost")
    with pytest.raises(ValueError, match="expires_at needs a time zone"):
        client.create_api_key("ci", expires_at=datetime(2030, 1, 1))
    assert broker.seen == []


def test_a_secret_is_not_shown(broker, client):
    answer = admin_pb2.CreateApiKeyResponse(key_id="k-1", secret="hush")
    broker.script("CreateApiKey", lambda *_: answer)
    key = client.create_api_key("ci")
    assert key.secret == "hush"
    assert "hush" not in repr(key)


def test_the_settings_are_those_of_the_contract():
    names = [field.name for field in admin_pb2.QueueConfig.DESCRIPTOR.fields]
    assert list(admin.QueueSettings.__annotations__) == names
    assert [field.name for field in dataclasses.fields(fila.QueueConfig)] == names


@pytest.mark.parametrize(
    ("plain", "raw"),
    [
        (fila.QueueInfo, admin_pb2.QueueInfo),
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
        (fila.Permission, admin_pb2.Permission),
    ],
)
def test_enums_have_every_member_of_the_contract(kind, raw):
    assert [admin.number_of(raw, item) for item in kind] == list(raw.values())[1:]
    assert [admin.member(kind, raw, number) for number in raw.values()] == [None, *kind]


def test_every_method_of_the_contract_can_be_called():
    service = admin_pb2.DESCRIPTOR.services_by_name["FilaAdmin"]
    tested_apart = {"GetStats", "Peek"}
    assert {row[1] for row in CALLS} | tested_apart == set(service.methods_by_name)


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
            .replace("fila.aio", "fila.client")
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert surface(fila.Client) == surface(fila.AsyncClient)
    for name in surface(fila.Client):
        is_async = inspect.iscoroutinefunction(getattr(fila.AsyncClient, name))
        assert is_async == (name != "consume"), name
        assert getattr(fila.AsyncClient, name).__doc__ == getattr(fila.Client, name).__doc__
    methods = {n for n, _ in inspect.getmembers(fila.ConsumeMessage) if not n.startswith("_")}
    assert methods == {n for n, _ in inspect.getmembers(fila.AsyncConsumeMessage) if n[0] != "_"}


def test_no_public_result_is_a_protobuf_object():
    public = [getattr(fila, name) for name in fila.__all__]
    assert not [kind for kind in public if issubclass(kind, ProtobufMessage)]
    assert fila.__all__ == sorted(fila.__all__)
