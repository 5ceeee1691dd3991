# SPDX-License-Identifier: AGPL-3.0-only
"""API keys from the outside: a real broker, asked with good keys, bad keys and none."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import fila
from fila import AclEntry
from fila.v1 import admin_pb2, service_pb2
from server.tests.broker_process import BrokerProcess

BOOTSTRAP = "bootstrap-key-of-the-tests-0123456789"
WAIT_S = 60.0  # far more than anything here takes, also on a busy machine
NOWHERE = "there-is-no-such-queue"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with API keys on, and two queues."""
    environment = {"FILA_AUTH__BOOTSTRAP_APIKEY": BOOTSTRAP, "FILA_SERVER__LOG_LEVEL": "debug"}
    process = BrokerProcess(tmp_path_factory.mktemp("auth"), environment=environment)
    process.start()
    try:
        with fila.Client(process.address, api_key=BOOTSTRAP, timeout=WAIT_S) as client:
            for queue in ("orders.eu", "mail"):
                client.create_queue(queue)
        yield process
        assert process.terminate() == 0
    finally:
        process.close()


@pytest.fixture
def connect(broker: BrokerProcess) -> Iterator[Callable[[str | None], fila.Client]]:
    clients: list[fila.Client] = []

    def client(api_key: str | None) -> fila.Client:
        clients.append(fila.Client(broker.address, api_key=api_key, timeout=WAIT_S))
        return clients[-1]

    yield client
    for one in clients:
        one.close()


@pytest.fixture
def root(connect: Callable[[str], fila.Client]) -> fila.Client:
    return connect(BOOTSTRAP)


@pytest.fixture
def with_acl(
    root: fila.Client, connect: Callable[[str], fila.Client]
) -> Callable[..., tuple[str, fila.Client]]:
    """Make a key from `permission:pattern` words and return its id and a client that uses it."""

    def make(*words: str, **options: Any) -> tuple[str, fila.Client]:
        acl = [AclEntry(*word.split(":")) for word in words]
        key = root.create_api_key("test", acl, **options)
        return key.key_id, connect(key.secret)

    return make


@pytest.fixture
def channel(broker: BrokerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(broker.address) as channel:
        yield channel


def call(channel: grpc.Channel, method: str, request: bytes, *headers: str) -> grpc.StatusCode:
    """The status of a unary call with raw `authorization` headers."""
    metadata = [("authorization", header) for header in headers]
    try:
        channel.unary_unary(method)(request, metadata=metadata, timeout=WAIT_S)
    except grpc.RpcError as error:
        trailers = dict(error.trailing_metadata())
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            assert trailers["fila-reason"] == "UNAUTHENTICATED"
        return error.code()
    return grpc.StatusCode.OK


LIST_QUEUES = "/fila.v1.FilaAdmin/ListQueues"
METHODS = [
    f"/{service.full_name}/{method.name}"
    for file in (service_pb2, admin_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


# --- Who is let in --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_rpc_needs_a_key(channel: grpc.Channel, method: str) -> None:
    assert call(channel, method, b"") is grpc.StatusCode.UNAUTHENTICATED
    assert call(channel, method, b"", "Bearer x") is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Basic {BOOTSTRAP}",
        BOOTSTRAP,
        f"Bearer {BOOTSTRAP}x",
        f"Bearer {BOOTSTRAP[:-1]}",
        f"Bearer {BOOTSTRAP.upper()}",
        "Bearer fila_",
        "Bearer fila__",
        f"Bearer fila_{'0' * 20}_{'A' * 43}",
        "Bearer " + "x" * 8000,
    ],
)
def test_a_bad_header_is_unauthenticated(channel: grpc.Channel, header: str) -> None:
    assert call(channel, LIST_QUEUES, b"", header) is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_a_word_in_any_case(channel: grpc.Channel, scheme: str) -> None:
    assert call(channel, LIST_QUEUES, b"", f"{scheme} {BOOTSTRAP}") is grpc.StatusCode.OK


def test_the_first_of_several_headers_counts(channel: grpc.Channel) -> None:
    good, bad = f"Bearer {BOOTSTRAP}", "Bearer no"
    assert call(channel, LIST_QUEUES, b"", good, bad) is grpc.StatusCode.OK
    assert call(channel, LIST_QUEUES, b"", bad, good) is grpc.StatusCode.UNAUTHENTICATED


def test_a_request_without_a_key_is_refused_unread(channel: grpc.Channel) -> None:
    # Not a message of the contract, and above its size limit: with a key it would be looked at.
    rubbish = b"\xff" * (20 << 20)
    method = "/fila.v1.FilaService/Enqueue"
    assert call(channel, method, rubbish) is grpc.StatusCode.UNAUTHENTICATED
    assert call(channel, method, b"\xff") is grpc.StatusCode.UNAUTHENTICATED
    with_key = call(channel, method, rubbish, f"Bearer {BOOTSTRAP}")
    assert with_key is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_health_needs_no_key(channel: grpc.Channel) -> None:
    answer = health_pb2_grpc.HealthStub(channel).Check(
        health_pb2.HealthCheckRequest(), timeout=WAIT_S
    )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_needs_a_key(channel: grpc.Channel) -> None:
    def services(**options: Any) -> list[str]:
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=WAIT_S, **options)
        return [row.name for row in answer.list_services_response.service]

    with pytest.raises(grpc.RpcError) as caught:
        services()
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "fila.v1.FilaAdmin" in services(metadata=[("authorization", f"Bearer {BOOTSTRAP}")])


def test_a_created_key_lets_in_until_it_is_revoked(
    root: fila.Client, connect: Callable[[str], fila.Client]
) -> None:
    key = root.create_api_key("worker", [AclEntry("produce", "mail")])
    client = connect(key.secret)
    client.enqueue("mail", {}, b"x")
    for broken in (key.secret[:-1], key.secret + "x", f"fila_{key.key_id}_", key.key_id):
        with pytest.raises(fila.UnauthenticatedError):
            connect(broken).enqueue("mail", {}, b"x")
    root.revoke_api_key(key.key_id)
    with pytest.raises(fila.UnauthenticatedError):
        client.enqueue("mail", {}, b"x")
    with pytest.raises(fila.ApiKeyNotFoundError):
        root.revoke_api_key(key.key_id)


def test_an_expired_key_is_unauthenticated_and_says_so(
    with_acl: Callable[..., tuple[str, fila.Client]], root: fila.Client
) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=2)
    key_id, client = with_acl("produce:mail", expires_at=soon)
    with pytest.raises(fila.UnauthenticatedError, match="expired"):
        while datetime.now(UTC) < soon + timedelta(seconds=WAIT_S):
            client.enqueue("mail", {}, b"x")
    assert key_id in [key.key_id for key in root.list_api_keys()]


def test_a_superadmin_key_may_do_what_the_bootstrap_key_may(
    with_acl: Callable[..., tuple[str, fila.Client]],
) -> None:
    _, client = with_acl(superadmin=True)
    client.set_config("plan:acme", "gold")
    assert client.get_config("plan:acme") == "gold"
    client.delete_config("plan:acme")
    made = client.create_api_key("other", superadmin=True)
    client.revoke_api_key(made.key_id)


# --- What a key may do ----------------------------------------------------------------------------

Action = Callable[[fila.Client, str], object]

NEEDS: list[tuple[str, str, Action]] = [
    ("enqueue", "produce", lambda client, queue: client.enqueue(queue, {}, b"x")),
    ("consume", "consume", lambda client, queue: next(iter(client.consume(queue)))),
    ("receive", "consume", lambda client, queue: client.receive(queue)),
    ("ack", "consume", lambda client, queue: client.ack(queue, "no-id")),
    ("nack", "consume", lambda client, queue: client.nack(queue, "no-id")),
    ("extend", "consume", lambda client, queue: client.extend(queue, "no-id")),
    ("create_queue", "admin", lambda client, queue: client.create_queue(queue)),
    ("update_queue", "admin", lambda client, queue: client.update_queue(queue, max_attempts=0)),
    ("delete_queue", "admin", lambda client, queue: client.delete_queue(queue)),
    ("stats", "admin", lambda client, queue: client.stats(queue)),
    ("peek", "admin", lambda client, queue: client.peek(queue)),
    ("purge", "admin", lambda client, queue: client.purge(queue)),
    ("pause", "admin", lambda client, queue: client.pause(queue)),
    ("resume", "admin", lambda client, queue: client.resume(queue)),
    ("explain", "admin", lambda client, queue: client.explain(queue, fairness_key="k")),
    ("cancel", "admin", lambda client, queue: client.cancel(queue, "no-id")),
    ("redrive", "admin", lambda client, queue: client.redrive(queue)),
]


@pytest.mark.parametrize(("name", "permission", "action"), NEEDS, ids=[need[0] for need in NEEDS])
def test_a_call_needs_its_permission_on_its_queue(
    with_acl: Callable[..., tuple[str, fila.Client]],
    root: fila.Client,
    name: str,
    permission: str,
    action: Action,
) -> None:
    others = {"produce", "consume", "admin"} - {permission}
    _, lacks = with_acl(*(f"{other}:*" for other in others), f"{permission}:elsewhere")
    texts = set()
    for queue in ("mail", NOWHERE):
        with pytest.raises(fila.PermissionDeniedError) as caught:
            action(lacks, queue)
        texts.add(str(caught.value).replace(queue, "?"))
    assert len(texts) == 1  # whether the queue exists or not
    queue = f"allowed.{name}"
    _, may = with_acl(f"{permission}:allowed.*")
    if name != "create_queue":
        root.create_queue(queue)
        root.enqueue(queue, {}, b"x")
    try:
        action(may, queue)
    except fila.PermissionDeniedError:
        raise
    except fila.FilaError as error:
        assert error.reason in ("MESSAGE_NOT_FOUND", "NOT_A_DEAD_LETTER_QUEUE")


def test_redrive_needs_admin_on_both_queues(
    with_acl: Callable[..., tuple[str, fila.Client]],
) -> None:
    for pattern in ("mail", "mail.*"):
        with pytest.raises(fila.PermissionDeniedError):
            with_acl(f"admin:{pattern}")[1].redrive("mail.dlq")
    assert with_acl("admin:mail", "admin:mail.dlq")[1].redrive("mail.dlq") == 0


def test_runtime_settings_need_admin_on_all_queues(
    with_acl: Callable[..., tuple[str, fila.Client]],
) -> None:
    actions: list[Callable[[fila.Client], object]] = [
        lambda client: client.set_config("plan:zeta", "gold"),
        lambda client: client.get_config("plan:zeta"),
        lambda client: client.list_config(),
        lambda client: client.delete_config("plan:zeta"),
    ]
    _, operator = with_acl("admin:*")
    _, tenant = with_acl("admin:orders.*", "produce:*", "consume:*")
    for action in actions:
        with pytest.raises(fila.PermissionDeniedError, match="all queues"):
            action(tenant)
        action(operator)


def test_throttle_keys_need_admin_on_all_queues(
    with_acl: Callable[..., tuple[str, fila.Client]],
) -> None:
    _, tenant = with_acl("admin:mail", "admin:mail.dlq", "produce:*", "consume:*")
    for action in (
        lambda: tenant.list_throttles(),
        lambda: tenant.pause_throttle("stripe"),
        lambda: tenant.resume_throttle("stripe"),
    ):
        with pytest.raises(fila.PermissionDeniedError, match="all queues"):
            action()


def test_deleting_a_queue_needs_admin_on_the_dead_letters_that_go_with_it(
    with_acl: Callable[..., tuple[str, fila.Client]], root: fila.Client
) -> None:
    root.create_queue("bills")
    _, client = with_acl("admin:bills")
    with pytest.raises(fila.PermissionDeniedError, match=r'on queue "bills\.dlq"'):
        client.delete_queue("bills")
    client.delete_queue("bills", keep_dead_letters=True)
    assert "bills" not in [queue.name for queue in root.list_queues()]


def test_list_queues_shows_what_the_key_has_any_permission_on(
    with_acl: Callable[..., tuple[str, fila.Client]],
) -> None:
    for words, expected in (
        (("produce:mail",), ["mail"]),
        (("consume:orders.*",), ["orders.eu", "orders.eu.dlq"]),
        (("admin:mail.dlq", "produce:orders.eu"), ["mail.dlq", "orders.eu"]),
        (("admin:elsewhere",), []),
    ):
        assert [queue.name for queue in with_acl(*words)[1].list_queues()] == expected


def test_each_item_of_a_batch_is_judged_by_its_queue(
    with_acl: Callable[..., tuple[str, fila.Client]], root: fila.Client
) -> None:
    _, client = with_acl("produce:orders.*", "consume:orders.*")
    queues = ["orders.eu", "mail", NOWHERE, "orders.eu", "orders.us", "mail"]
    results = client.enqueue_many([fila.EnqueueMessage(queue, {}, b"x") for queue in queues])
    reasons = [result.error.reason if result.error else None for result in results]
    denied = "PERMISSION_DENIED"
    assert reasons == [None, denied, denied, None, "QUEUE_NOT_FOUND", denied]
    assert len({result.message_id for result in results if result.message_id}) == 2
    root.enqueue("mail", {}, b"y")
    (foreign,) = root.receive("mail", wait_ms=10_000)
    ours = client.receive("orders.eu", 2, wait_ms=10_000)
    for settle in (client.nack_many, client.ack_many):
        first, *others = settle([foreign, ours.pop()])
        assert first is not None and first.reason == denied
        assert others == [None]
    assert root.ack_many([foreign]) == [None]


def test_a_batch_of_which_nothing_is_allowed_is_all_errors(
    with_acl: Callable[..., tuple[str, fila.Client]],
) -> None:
    _, client = with_acl("consume:mail")
    results = client.enqueue_many([fila.EnqueueMessage("mail", {}, b"x")] * 3)
    assert [result.error.reason for result in results if result.error] == ["PERMISSION_DENIED"] * 3


def test_a_new_acl_is_in_force_at_once(
    with_acl: Callable[..., tuple[str, fila.Client]], root: fila.Client
) -> None:
    key_id, client = with_acl("produce:mail")
    for _ in range(20):
        root.set_acl(key_id, [AclEntry("consume", "mail")])
        with pytest.raises(fila.PermissionDeniedError):
            client.enqueue("mail", {}, b"x")
        root.set_acl(key_id, [AclEntry("produce", "mail")])
        client.enqueue("mail", {}, b"x")


async def test_calls_at_the_same_time_keep_their_callers_apart(
    broker: BrokerProcess, root: fila.Client
) -> None:
    secrets = [
        root.create_api_key("one", [AclEntry("admin", queue)]).secret
        for queue in ("mail", "orders.eu")
    ]
    async with grpc.aio.insecure_channel(broker.address) as channel:
        list_queues = channel.unary_unary(LIST_QUEUES)

        async def names(key: str) -> list[str]:
            metadata = (("authorization", f"Bearer {key}"),)
            answer = await list_queues(b"", metadata=metadata, timeout=WAIT_S)
            return [row.name for row in admin_pb2.ListQueuesResponse.FromString(answer).queues]

        answers = await asyncio.gather(*(names(secrets[at % 2]) for at in range(200)))
    assert answers == [["mail"], ["orders.eu"]] * 100


# --- Streams --------------------------------------------------------------------------------------


def end_of(client: fila.Client, queue: str) -> tuple[threading.Thread, list[BaseException]]:
    """Consume in a thread until the stream ends; what it ended with is in the list."""
    ends: list[BaseException] = []
    opened = threading.Event()

    def consume() -> None:
        try:
            with client.consume(queue) as consumer:
                for message in consumer:
                    opened.set()
                    message.ack()
        except fila.FilaError as error:
            ends.append(error)

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    assert opened.wait(WAIT_S)
    return thread, ends


@pytest.mark.parametrize("how", ["revoke", "acl", "expiry"])
def test_a_stream_ends_with_the_right_to_it(
    with_acl: Callable[..., tuple[str, fila.Client]], root: fila.Client, how: str
) -> None:
    queue = f"streamed.{how}"
    root.create_queue(queue)
    root.enqueue(queue, {}, b"x")
    options = {"expires_at": datetime.now(UTC) + timedelta(seconds=5)} if how == "expiry" else {}
    key_id, client = with_acl(f"consume:{queue}", **options)
    thread, ends = end_of(client, queue)
    if how == "revoke":
        root.revoke_api_key(key_id)
    elif how == "acl":
        root.set_acl(key_id, [AclEntry("produce", queue)])
    thread.join(WAIT_S)
    (end,) = ends
    expected = fila.PermissionDeniedError if how == "acl" else fila.UnauthenticatedError
    assert isinstance(end, expected)
    root.enqueue(queue, {}, b"y")
    assert root.receive(queue, wait_ms=1000)[0].payload == b"y"


def test_a_waiting_receive_ends_with_the_right_to_it(
    with_acl: Callable[..., tuple[str, fila.Client]], root: fila.Client
) -> None:
    root.create_queue("waited")
    key_id, client = with_acl("consume:waited")
    ends: list[BaseException] = []

    def wait() -> None:
        try:
            client.receive("waited", wait_ms=50_000, timeout=WAIT_S)
        except fila.FilaError as error:
            ends.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    while root.stats("waited").active_consumers == 0:
        time.sleep(0.05)
    root.revoke_api_key(key_id)
    thread.join(WAIT_S)
    assert [type(end) for end in ends] == [fila.UnauthenticatedError]
