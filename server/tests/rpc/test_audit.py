# SPDX-License-Identifier: AGPL-3.0-only
"""Who changed what, from what to what, in the log; never a secret or anything of a message."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from fila.v1 import admin_pb2 as ap
from fila.v1 import service_pb2 as sp
from fila_server.rpc.admin import perform
from fila_server.rpc.audit import ONLY_READ, TOLD, Seldom
from fila_server.storage.memory import MemoryStorage
from server.tests.broker_process import BrokerProcess
from server.tests.rpc.wire import Wire, refused
from server.tests.runtime.driver import Driver

BOOTSTRAP = "bootstrap-key-of-the-tests-0123456789"
PAYLOAD = b"what-the-message-says"
HEADER = "what-the-header-says"
Start = Callable[..., tuple[BrokerProcess, Wire]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[tuple[BrokerProcess, Wire]] = []

    def run(environment: dict[str, str] | None = None) -> tuple[BrokerProcess, Wire]:
        broker = BrokerProcess(tmp_path, environment=environment)
        broker.start()
        started.append((broker, Wire(broker.address)))
        return started[-1]

    yield run
    for broker, wire in started:
        wire.close()
        broker.close()


@pytest.fixture
async def driver() -> AsyncIterator[Driver]:
    driver = Driver(MemoryStorage()).start()
    yield driver
    driver.engine.stop()


def records(broker: BrokerProcess) -> list[dict[str, Any]]:
    """Return what the broker told of changes and refusals, without the times."""
    lines = [json.loads(line) for line in broker.log().splitlines()]
    found = [line for line in lines if line["logger"] == "fila_server.audit"]
    for line in found:
        del line["time"], line["logger"], line["level"]
    return found


def digest(text: str) -> str:
    return f"{len(text)} bytes, digest {hashlib.sha256(text.encode()).hexdigest()[:12]}"


class Operator:
    """Makes calls and notes what the log should say of each."""

    def __init__(self, wire: Wire, secret: str = BOOTSTRAP, by: str = "bootstrap") -> None:
        self.wire = wire
        self.metadata = (("authorization", f"Bearer {secret}"),)
        self.by = by
        self.called: list[type] = []
        self.expected: list[dict[str, Any]] = []

    def ask(self, request: Any) -> Any:
        self.called.append(type(request))
        return self.wire.call(request, metadata=self.metadata)

    def change(self, request: Any, message: str, **facts: Any) -> Any:
        response = self.ask(request)
        self.expected.append({"message": message, "by": self.by, **facts})
        return response


SCRIPT_FIELD = "on_enqueue_script"
SCRIPT = 'function on_enqueue(msg) return { fairness_key = "of-the-script" } end'


def _change_queues(it: Operator) -> None:
    config = ap.QueueConfig(max_attempts=1, on_enqueue_script=SCRIPT)
    chosen = {"max_attempts": 1, SCRIPT_FIELD: digest(SCRIPT)}
    create = ap.CreateQueueRequest(name="orders", config=config)
    it.change(create, "queue created", queue="orders", old=None, new=chosen)
    update = ap.UpdateQueueRequest(
        queue="orders", config=ap.QueueConfig(max_attempts=1, quantum=5, on_hook_error=2)
    )
    update.update_mask.paths.extend(("max_attempts", "quantum", "on_hook_error", SCRIPT_FIELD))
    before = {
        SCRIPT_FIELD: digest(SCRIPT),
        "quantum": 0,
        "on_hook_error": ap.HookErrorPolicy.Name(0),
    }
    after = {SCRIPT_FIELD: "", "quantum": 5, "on_hook_error": ap.HookErrorPolicy.Name(2)}
    it.change(update, "queue changed", queue="orders", old=before, new=after)


def _change_pauses(it: Operator) -> None:
    queue, key = {"queue": "orders"}, {"queue": "orders", "fairness_key": "acme"}
    throttle = {"throttle_key": "mail"}
    for target in (queue, key, throttle):
        went = {"old": "running", "new": "paused"}
        stood = {"old": "paused", "new": "paused"}
        resumed = {"old": "paused", "new": "running"}
        it.change(ap.PauseRequest(**target), "deliveries paused", **target, **went)
        it.change(ap.PauseRequest(**target), "deliveries paused", **target, **stood)
        it.change(ap.ResumeRequest(**target), "deliveries resumed", **target, **resumed)
    timed = {"old": "running", "new": "paused for 5000 ms"}
    request = ap.PauseRequest(throttle_key="mail", duration_ms=5000)
    it.change(request, "deliveries paused", **throttle, **timed)


def _change_settings(it: Operator) -> None:
    rate, weight = "throttle:mail:rate", "weight:orders:acme"
    for old, new in ((None, "5"), ("5", "7")):
        facts = {"settings": [rate], "count": 1, "old": {rate: old}, "new": {rate: new}}
        it.change(ap.SetConfigRequest(key=rate, value=new), "settings changed", **facts)
    pairs = [(rate, ""), (weight, "3"), (weight, "4"), ("concurrency:mail:limit", "9")]
    entries = [ap.ConfigEntry(key=key, value=value) for key, value in pairs]
    it.change(
        ap.SetConfigRequest(entries=entries),
        "settings changed",
        settings=[rate, weight, weight, "concurrency:mail:limit"],
        count=4,
        old={rate: "7", weight: None, "concurrency:mail:limit": None},
        new={rate: None, weight: "4", "concurrency:mail:limit": "9"},
    )
    facts = {"settings": [weight], "count": 1, "old": {weight: "4"}, "new": {weight: None}}
    it.change(ap.DeleteConfigRequest(key=weight), "setting removed", **facts)


def _change_backlogs(it: Operator) -> None:
    for _ in range(3):
        it.ask(sp.EnqueueRequest(queue="orders", payload=PAYLOAD, headers={"h": HEADER}))
    for message in it.ask(sp.ReceiveRequest(queue="orders", max_messages=3)).messages:
        it.ask(sp.NackRequest(queue="orders", message_id=message.id, error="boom"))
    for request, facts in (
        (ap.RedriveRequest(dlq_queue="orders.dlq", count=1), {"limit": 1}),
        (
            ap.RedriveRequest(dlq_queue="orders.dlq", error_contains="boom", count=1),
            {"error_contains": "boom", "limit": 1},
        ),
    ):
        it.change(request, "dead letters redriven", queue="orders.dlq", redriven=1, **facts)
    found = it.ask(ap.PeekRequest(queue="orders", limit=1)).messages[0].message.id
    cancel = ap.CancelMessageRequest(queue="orders", message_id=found)
    it.change(cancel, "message cancelled", queue="orders", message_id=found)
    purge = ap.PurgeRequest(queue="orders")
    it.change(purge, "queue purged", queue="orders", purged=1)
    it.change(
        ap.DeleteQueueRequest(queue="orders"),
        "queue deleted",
        queue="orders",
        messages=0,
        dead_letters=1,
        old={"max_attempts": 1, "quantum": 5, "on_hook_error": ap.HookErrorPolicy.Name(2)},
        new=None,
    )


def _change_keys(it: Operator) -> str:
    acl = [ap.AclPermission(kind="admin", pattern="*")]
    has = {"superadmin": False, "acl": ["admin:*"], "expires_at_ms": 0}
    created = it.ask(ap.CreateApiKeyRequest(name="ops", acl=acl))
    key = {"key_id": created.key_id, "key_name": "ops"}
    told = {"message": "API key created", "by": it.by, **key, "old": None, "new": has}
    it.expected.append(told)
    narrow = [ap.AclPermission(kind="produce", pattern="orders*")]
    went = {"old": {"acl": ["admin:*"]}, "new": {"acl": ["produce:orders*"]}}
    change = ap.SetAclRequest(key_id=created.key_id, acl=narrow)
    it.change(change, "permissions of API key changed", **key, **went)
    has = {**has, "acl": ["produce:orders*"]}
    revoke = ap.RevokeApiKeyRequest(key_id=created.key_id)
    it.change(revoke, "API key revoked", **key, old=has, new=None)
    return str(created.secret)


def _back_up(it: Operator, root: Path) -> None:
    request = ap.BackupRequest(directory="daily")
    it.called.append(type(request))
    steps = list(it.wire.admin.Backup(request, metadata=it.metadata))
    it.expected.append(
        {
            "message": "backup made",
            "by": it.by,
            "directory": "daily",
            "path": steps[-1].path,
            "messages": 0,
            "copied_bytes": steps[-1].copied_bytes,
        }
    )
    assert steps[-1].path.startswith(str(root / "daily"))


def test_every_administrative_change_is_told_once_with_both_values(
    start: Start, tmp_path: Path
) -> None:
    root = tmp_path / "backups"
    root.mkdir()
    broker, wire = start(
        {"FILA_AUTH__BOOTSTRAP_APIKEY": BOOTSTRAP, "FILA_STORAGE__BACKUP_DIR": str(root)}
    )
    it = Operator(wire)
    _change_queues(it)
    _change_pauses(it)
    _change_settings(it)
    _change_backlogs(it)
    secret = _change_keys(it)
    _back_up(it, root)
    assert records(broker) == it.expected
    for hidden in (BOOTSTRAP, secret, "of-the-script", PAYLOAD.decode(), HEADER):
        assert hidden not in broker.log()
    changes = {request for request in it.called if request.__module__ == ap.__name__}
    assert changes - ONLY_READ == set(TOLD)


def test_every_call_of_the_service_is_told_or_marked_as_one_that_only_reads() -> None:
    service = ap.DESCRIPTOR.services_by_name["FilaAdmin"]
    asked = {getattr(ap, method.input_type.name) for method in service.methods}
    assert not ONLY_READ & set(TOLD)
    assert ONLY_READ | set(TOLD) == asked


def test_what_hooks_read_is_told_by_its_size_and_a_digest_nobody_can_guess(start: Start) -> None:
    broker, wire = start()
    for value in ("hunter2", "hunter3", "hunter2", ""):
        wire.call(ap.SetConfigRequest(key="fila.secret", value=value))
    told = [(row["old"]["fila.secret"], row["new"]["fila.secret"]) for row in records(broker)]
    (nothing, first), (_, second), (_, third), (last, gone) = told
    assert nothing is None and gone is None
    assert first == third == last == told[1][0] != second
    assert first.startswith("7 bytes, digest ") and first != digest("hunter2")
    assert "hunter" not in broker.log()


def test_a_record_of_many_settings_is_short(start: Start) -> None:
    broker, wire = start()
    entries = [ap.ConfigEntry(key=f"weight:q:{n}", value="2") for n in range(30)]
    wire.call(ap.SetConfigRequest(entries=entries))
    (told,) = records(broker)
    assert told["count"] == 30
    assert told["settings"] == [f"weight:q:{n}" for n in range(20)]
    assert told["new"] == {f"weight:q:{n}": "2" for n in range(20)}


def test_changes_that_race_are_told_with_what_each_of_them_replaced(start: Start) -> None:
    broker, wire = start()
    name = "throttle:mail:rate"

    def change(first: int) -> None:
        for n in range(first, first + 100):
            wire.call(ap.SetConfigRequest(key=name, value=str(n)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(change, (100, 200, 300, 400)))
    told = records(broker)
    values = [row["new"][name] for row in told]
    assert sorted(map(int, values)) == [*range(100, 500)]
    assert [row["old"][name] for row in told] == [None, *values[:-1]]
    assert wire.call(ap.GetConfigRequest(key=name)).value == values[-1]


async def test_a_change_is_told_though_its_caller_left(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fila_server.audit")
    request = ap.CreateQueueRequest(name="q")
    call = asyncio.ensure_future(perform(driver.engine, "CreateQueue", request))
    await asyncio.sleep(0)  # it has begun
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await perform(driver.engine, "Pause", ap.PauseRequest(queue="q"))
    told = [record.getMessage() for record in caplog.records]
    assert told == ["queue created", "deliveries paused"]


def test_without_keys_nobody_has_a_name(start: Start) -> None:
    broker, wire = start()
    wire.queue()
    assert [(row["message"], row["by"]) for row in records(broker)] == [("queue created", "no key")]


def test_refused_changes_are_told_and_reads_are_not(start: Start) -> None:
    broker, wire = start({"FILA_AUTH__BOOTSTRAP_APIKEY": BOOTSTRAP})
    root = Operator(wire)
    acl = [ap.AclPermission(kind="admin", pattern="mine")]
    made = root.ask(ap.CreateApiKeyRequest(name="ops", acl=acl))
    ops = Operator(wire, made.secret)
    bad = ap.QueueConfig(on_enqueue_script="function of-the-script")
    for it, request in (
        (ops, ap.DeleteQueueRequest(queue="orders")),
        (ops, ap.SetConfigRequest(key="throttle:mail:rate", value="5")),
        (ops, ap.RevokeApiKeyRequest(key_id="0123")),
        (root, ap.CreateQueueRequest(name="x" * 1000)),
        (root, ap.CreateQueueRequest(name="q", config=bad)),
        (root, ap.BackupRequest(directory="daily")),
        (root, ap.PeekRequest(queue="orders")),
    ):
        assert refused(lambda it=it, request=request: list(it.ask(request)))  # type: ignore[misc]
    found = [row for row in records(broker) if row["message"].startswith("change refused: ")]
    by = f"ops ({made.key_id})"
    keys = ("by", "call", "reason", "queue", "settings", "key_id", "directory")
    assert [{key: row[key] for key in keys if key in row} for row in found] == [
        {"by": by, "call": "DeleteQueue", "reason": "PERMISSION_DENIED", "queue": "orders"},
        {
            "by": by,
            "call": "SetConfig",
            "reason": "PERMISSION_DENIED",
            "settings": ["throttle:mail:rate"],
        },
        {"by": by, "call": "RevokeApiKey", "reason": "PERMISSION_DENIED", "key_id": "0123"},
        {
            "by": "bootstrap",
            "call": "CreateQueue",
            "reason": "INVALID_ARGUMENT",
            "queue": "x" * 512,
        },
        {"by": "bootstrap", "call": "CreateQueue", "reason": "INVALID_SCRIPT", "queue": "q"},
        {
            "by": "bootstrap",
            "call": "Backup",
            "reason": "PERMISSION_DENIED",
            "directory": "daily",
        },
    ]
    assert "of-the-script" not in broker.log()


def test_refused_changes_are_told_now_and_then(start: Start) -> None:
    broker, wire = start()
    for _ in range(100):
        wire.refusal(ap.PurgeRequest(queue="unknown"))
    found = records(broker)
    assert 10 <= len(found) <= 50  # ten in a minute; a busy machine may need some
    assert {row["message"] for row in found} == {
        'change refused: queue "unknown" does not exist',
    }


def test_refused_keys_are_told_now_and_then(start: Start) -> None:
    broker, wire = start({"FILA_AUTH__BOOTSTRAP_APIKEY": BOOTSTRAP})
    request = ap.ListQueuesRequest()
    bad = (("authorization", "Bearer fila_0123_not-a-key"),)
    for metadata in [(), *[bad] * 99]:
        refusal = refused(partial(wire.call, request, metadata=metadata))
        assert refusal.status is grpc.StatusCode.UNAUTHENTICATED
    found = records(broker)
    assert 10 <= len(found) <= 50  # ten in a minute; a busy machine may need some
    assert found[0]["message"].startswith("call refused: no API key was sent")
    assert {row["method"] for row in found} == {"/fila.v1.FilaAdmin/ListQueues"}
    assert "not-a-key" not in broker.log()


def test_a_few_pass_in_a_period_and_the_others_are_counted() -> None:
    now_s = 100.0
    seldom = Seldom(2, 60, lambda: now_s)
    assert [seldom.passes() for _ in range(5)] == [True, True, False, False, False]
    now_s = 159.0
    assert not seldom.passes()
    now_s = 160.0
    assert seldom.passes() and seldom.held() == 4 and seldom.held() == 0
    assert seldom.passes() and not seldom.passes()
