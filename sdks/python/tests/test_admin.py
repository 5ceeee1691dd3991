# SPDX-License-Identifier: AGPL-3.0-only
"""Operating a broker: every call of the contract, in both clients, as plain values."""

from datetime import UTC, datetime

import pytest

import fila
from fila.v1 import admin_pb2, messages_pb2

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
    admin_pb2.AclPermission(kind="produce", pattern="orders"),
    admin_pb2.AclPermission(kind="admin", pattern="mail.*"),
]
FAILURES = (
    fila.Failure(NOON, fila.FailureCause.NACK, "boom"),
    fila.Failure(NOON, fila.FailureCause.MAX_ATTEMPTS, ""),
)
RAW_FAILURES = [
    messages_pb2.Failure(failed_at=NOON, cause="FAILURE_CAUSE_NACK", error="boom"),
    messages_pb2.Failure(failed_at=NOON, cause="FAILURE_CAUSE_MAX_ATTEMPTS"),
]
THROTTLE = {
    "key": "mail",
    "tokens": 0.5,
    "rate_per_second": 2.5,
    "burst": 3.5,
    "passed": 4,
    "blocked": 5,
    "concurrency_limit": 6,
    "in_flight": 7,
    "paused_until": NOON,
    "waiting": 8,
    "passed_per_second": 9.5,
    "blocked_per_second": 10.5,
    "pattern": "mai*",
    "unset": True,
    "paused": True,
}

COUNTERS = {
    "enqueued": 1,
    "delivered": 2,
    "acked": 3,
    "nacked": 4,
    "expired": 5,
    "dead_lettered": 6,
    "timed_out": 7,
    "duplicates": 8,
}
TRAFFIC = {
    "enqueued": 1,
    "delivered": 2,
    "acked": 3,
    "nacked": 4,
    "dead_lettered": 5,
    "retried": 6,
    "wait_p50_ms": 7,
    "wait_p95_ms": 8,
}

# method, arguments, RPC, the request on the wire, the answer, what the caller gets
CALLS = [
    (
        lambda c: c.create_queue("orders", **CONFIG),
        "CreateQueue",
        admin_pb2.CreateQueueRequest(name="orders", config=RAW_CONFIG),
        admin_pb2.CreateQueueResponse(queue_id="orders", dead_letter_queue="orders.dlq"),
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
        admin_pb2.DeleteQueueResponse(messages=3, dead_letters=2),
        fila.DeletedQueue(3, 2),
    ),
    (
        lambda c: c.delete_queue("orders", keep_dead_letters=True),
        "DeleteQueue",
        admin_pb2.DeleteQueueRequest(queue="orders", keep_dead_letters=True),
        admin_pb2.DeleteQueueResponse(messages=3),
        fila.DeletedQueue(3, 0),
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
                    leader_node_id=4,
                    paused=True,
                    dead_letter_of="orders",
                    delayed=5,
                    counters=admin_pb2.QueueCounters(**COUNTERS),
                    oldest_pending_age_ms=6,
                    throttled=7,
                    dead_letters=8,
                )
            ]
        ),
        [
            fila.QueueInfo(
                *("orders.dlq", 1, 2, 3, 4, True, "orders", 5),
                *(fila.QueueCounters(**COUNTERS), 6, 7, 8),
            )
        ],
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
        lambda c: c.pause_throttle("stripe"),
        "Pause",
        admin_pb2.PauseRequest(throttle_key="stripe"),
        admin_pb2.PauseResponse(),
        None,
    ),
    (
        lambda c: c.pause_throttle("stripe", 60_000),
        "Pause",
        admin_pb2.PauseRequest(throttle_key="stripe", duration_ms=60_000),
        admin_pb2.PauseResponse(),
        None,
    ),
    (
        lambda c: c.resume_throttle("stripe"),
        "Resume",
        admin_pb2.ResumeRequest(throttle_key="stripe"),
        admin_pb2.ResumeResponse(),
        None,
    ),
    (
        lambda c: c.list_throttles(),
        "ListThrottles",
        admin_pb2.ListThrottlesRequest(),
        admin_pb2.ListThrottlesResponse(),
        fila.ThrottlePage((), 0),
    ),
    (
        lambda c: c.list_throttles("mail", unset=True, limit=1),
        "ListThrottles",
        admin_pb2.ListThrottlesRequest(prefix="mail", unset=True, limit=1),
        admin_pb2.ListThrottlesResponse(
            throttles=[admin_pb2.PerThrottleKeyStats(**THROTTLE)], total_count=2
        ),
        fila.ThrottlePage((fila.ThrottleKeyStats(**THROTTLE),), 2),
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
            failures=RAW_FAILURES,
            unset_throttle_keys=["mail", "sms"],
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
            FAILURES,
            ("mail", "sms"),
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
        lambda c: c.set_config_all({"throttle:mail:rate": "5", "throttle:mail:burst": ""}),
        "SetConfig",
        admin_pb2.SetConfigRequest(
            entries=[
                admin_pb2.ConfigEntry(key="throttle:mail:rate", value="5"),
                admin_pb2.ConfigEntry(key="throttle:mail:burst"),
            ]
        ),
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
        admin_pb2.CreateApiKeyRequest(
            name="ci", expires_at_ms=1_893_499_200_000, superadmin=True, acl=RAW_ACL
        ),
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
        per_key_stats=[
            admin_pb2.PerFairnessKeyStats(key="acme", current_deficit=-1, paused=True),
            admin_pb2.PerFairnessKeyStats(
                key="zeta", round_position=0, traffic=admin_pb2.KeyTraffic(**TRAFFIC)
            ),
        ],
        per_throttle_stats=[admin_pb2.PerThrottleKeyStats(**THROTTLE)],
        delayed=6,
        round_key="zeta",
        counters=admin_pb2.QueueCounters(enqueued=9),
        config=admin_pb2.QueueConfig(quantum=7),
        dead_letter_of="x",
        throttled=8,
        consumers=[
            admin_pb2.ConsumerStats(number=1, in_flight=2, credit=3, max_batch=4, key_id="k")
        ],
        waits=[admin_pb2.WaitStats(cause="turn", count=1, p50_ms=2, p95_ms=3)],
    )
    broker.script("GetStats", lambda *_: raw)
    stats = client.stats("orders", max_keys=4)
    assert broker.seen[0].request == admin_pb2.GetStatsRequest(queue="orders", max_keys=4)
    assert (stats.depth, stats.in_flight, stats.active_fairness_keys) == (1, 2, 3)
    assert (stats.dead_letter_of, stats.throttled, stats.hooks) == ("x", 8, None)
    assert (stats.delayed, stats.paused, stats.round_key) == (6, False, "zeta")
    assert stats.per_key_stats == (
        fila.FairnessKeyStats("acme", 0, -1, 0, 0, 0, True, None, None),
        fila.FairnessKeyStats("zeta", 0, 0, 0, 0, 0, False, 0, fila.KeyTraffic(**TRAFFIC)),
    )
    assert stats.per_throttle_stats == (fila.ThrottleKeyStats(**THROTTLE),)
    assert stats.counters.enqueued == 9
    assert (stats.config.quantum, stats.config.on_hook_error) == (7, fila.HookErrorPolicy.DEFAULT)
    assert stats.consumers == (fila.ConsumerStats(1, 2, 3, 4, "k"),)
    assert stats.waits == (fila.WaitStats("turn", 1, 2, 3),)
    raw.hooks.last_error = "boom"
    assert client.stats("orders").hooks == fila.HookStats(0, 0, 0, False, "boom")


def test_peek_shows_messages_that_cannot_be_settled(broker, client, wire):
    message = wire.message("m-1", payload=b"x")
    message.metadata.failures.extend(RAW_FAILURES)
    raw = admin_pb2.PeekedMessage(message=message, state="MESSAGE_STATE_LEASED", position=7)
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
    assert found.message.failures == FAILURES
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
    with pytest.raises(ValueError, match="expires_at must be after 1970"):
        client.create_api_key("ci", expires_at=datetime(1970, 1, 1, tzinfo=UTC))
    assert broker.seen == []


def test_a_permission_that_a_newer_broker_knows_stays_readable(broker, client):
    answer = admin_pb2.GetAclResponse(acl=[admin_pb2.AclPermission(kind="own", pattern="*")])
    broker.script("GetAcl", lambda *_: answer)
    assert client.get_acl("k-1").entries == (fila.AclEntry("own", "*"),)


def test_a_secret_is_not_shown(broker, client):
    answer = admin_pb2.CreateApiKeyResponse(key_id="k-1", secret="hush")
    broker.script("CreateApiKey", lambda *_: answer)
    key = client.create_api_key("ci")
    assert key.secret == "hush"
    assert "hush" not in repr(key)


def test_every_method_of_the_contract_can_be_called():
    service = admin_pb2.DESCRIPTOR.services_by_name["FilaAdmin"]
    tested_apart = {"GetStats", "GetStatus", "Peek", "Backup"}  # Backup: test_backup.py
    assert {row[1] for row in CALLS} | tested_apart == set(service.methods_by_name)
