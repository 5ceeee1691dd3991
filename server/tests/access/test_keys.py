# SPDX-License-Identifier: AGPL-3.0-only
"""API keys in the core: made, changed, revoked, expired, stored; and the streams they opened."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila_server.core.access import ADMIN, CONSUME, PRODUCE, WORDS, ApiKey, Minted
from fila_server.core.commands import Access, OpenConsumer
from fila_server.errors import (
    ApiKeyNotFound,
    InvalidArgument,
    Overloaded,
    PermissionDenied,
    QueueNotFound,
    Unauthenticated,
)
from fila_server.storage.api import Column
from server.tests.core.harness import Harness, S

MS = 1_000_000
TENANT = ((ADMIN, "a.*"), (PRODUCE, "a.*"), (CONSUME, "a.*"))
Entries = tuple[tuple[int, str], ...]


def entries(acl: Entries) -> list[pb.AclPermission]:
    return [
        pb.AclPermission(kind=WORDS.get(number, f"kind{number}"), pattern=text)
        for number, text in acl
    ]


class Keys:
    """A broker with API keys, asked as the bootstrap key unless told otherwise."""

    def __init__(self) -> None:
        self.broker = Harness()
        self._ids = itertools.count(1)
        self._consumers = itertools.count(1)

    def ask(self, request: Any, caller: str = "", minted: Minted | None = None) -> Any:
        return self.broker.ask(lambda ticket: Access(ticket, request, caller, minted))

    def create(
        self, *acl: tuple[int, str], caller: str = "", name: str = "key", **fields: Any
    ) -> str:
        minted = Minted(f"k{next(self._ids)}", b"salt", b"digest")
        expires_ns = fields.pop("expires_ns", 0)
        request = pb.CreateApiKeyRequest(
            name=name, acl=entries(acl), expires_at_ms=expires_ns // MS, **fields
        )
        return str(self.ask(request, caller, minted).key_id)

    def revoke(self, key_id: str, caller: str = "") -> None:
        self.ask(pb.RevokeApiKeyRequest(key_id=key_id), caller)

    def set_acl(self, key_id: str, *acl: tuple[int, str], caller: str = "") -> None:
        self.ask(pb.SetAclRequest(key_id=key_id, acl=entries(acl)), caller)

    def acl(self, key_id: str, caller: str = "") -> tuple[Entries, bool]:
        answer = self.ask(pb.GetAclRequest(key_id=key_id), caller)
        numbers = {word: number for number, word in WORDS.items()}
        acl = tuple((numbers[row.kind], row.pattern) for row in answer.acl)
        return acl, answer.superadmin

    def listed(self, caller: str = "") -> list[str]:
        return [row.key_id for row in self.ask(pb.ListApiKeysRequest(), caller).keys]

    def open(self, queue: str, key_id: str, is_once: bool = False) -> int:
        consumer = next(self._consumers)
        self.broker.ask(
            lambda ticket: OpenConsumer(ticket, consumer, queue, 10, 10, 0, is_once, key_id)
        )
        return consumer

    def closed(self) -> list[tuple[int, str]]:
        closed, self.broker.closed = self.broker.closed, []
        return [(consumer, error.reason) for consumer, error in closed]

    def wall_ns(self, seconds: float = 0) -> int:
        return self.broker.clock.wall_ns + int(seconds * S)


@pytest.fixture
def keys() -> Keys:
    return Keys()


def test_a_key_is_listed_with_all_but_its_secret(keys: Keys) -> None:
    expires_ns = keys.wall_ns(60)
    key_id = keys.create((PRODUCE, "orders.*"), name="billing", expires_ns=expires_ns)
    (row,) = keys.ask(pb.ListApiKeysRequest()).keys
    assert (row.key_id, row.name, row.superadmin) == (key_id, "billing", False)
    assert row.created_at.ToNanoseconds() == keys.wall_ns()
    assert row.expires_at.ToNanoseconds() == expires_ns
    assert list(row.acl) == entries(((PRODUCE, "orders.*"),))
    assert b"salt" not in row.SerializeToString()
    assert b"digest" not in row.SerializeToString()


def test_keys_are_listed_by_age(keys: Keys) -> None:
    made = []
    for _ in range(12):
        made.append(keys.create(superadmin=True))
        keys.broker.clock.advance(1)
    assert keys.listed() == made


def test_repeated_entries_are_one(keys: Keys) -> None:
    key_id = keys.create((PRODUCE, "a"), (PRODUCE, "b"), (PRODUCE, "a"))
    assert keys.acl(key_id) == (((PRODUCE, "a"), (PRODUCE, "b")), False)


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb", "\x1b[2J"])
def test_bad_names_are_refused(keys: Keys, name: str) -> None:
    with pytest.raises(InvalidArgument, match="key name"):
        keys.create(name=name, superadmin=True)
    assert keys.listed() == []


@pytest.mark.parametrize(
    ("acl", "text"),
    [
        (((0, "orders"),), r'acl\[0\].kind "kind0" is not produce, consume or admin'),
        (((PRODUCE, "x"), (9, "orders")), r'acl\[1\].kind "kind9"'),
        (((PRODUCE, "or*ers"),), r'acl\[0\].pattern "or\*ers"'),
        (((PRODUCE, ""),), r"acl\[0\].pattern"),
        (tuple((PRODUCE, f"q{at}") for at in range(101)), "more than 100"),
    ],
)
def test_bad_entries_are_refused(keys: Keys, acl: Entries, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        keys.create(*acl)
    key_id = keys.create((PRODUCE, "x"))
    with pytest.raises(InvalidArgument, match=text):
        keys.set_acl(key_id, *acl)
    assert keys.acl(key_id) == (((PRODUCE, "x"),), False)


def test_bad_expiries_are_refused(keys: Keys) -> None:
    with pytest.raises(InvalidArgument, match="not in the future"):
        keys.create(superadmin=True, expires_ns=keys.wall_ns())
    with pytest.raises(InvalidArgument, match="expires_at_ms 1 is not in the future"):
        keys.create(superadmin=True, expires_ns=MS)
    for too_far_ms in (9_300_000_000_000, (1 << 64) - 1):
        with pytest.raises(InvalidArgument, match="2262"):
            keys.create(superadmin=True, expires_ns=too_far_ms * MS)


def test_a_superadmin_takes_no_acl(keys: Keys) -> None:
    with pytest.raises(InvalidArgument, match="takes no acl"):
        keys.create((PRODUCE, "x"), superadmin=True)
    key_id = keys.create(superadmin=True)
    with pytest.raises(InvalidArgument, match="takes no acl"):
        keys.set_acl(key_id, (PRODUCE, "x"))
    assert keys.acl(key_id) == ((), True)


def test_there_is_a_limit_to_the_number_of_keys(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fila_server.core.admin.api_keys.MAX_API_KEYS", 2)
    first = keys.create(superadmin=True)
    keys.create(superadmin=True)
    with pytest.raises(Overloaded, match="revoke some"):
        keys.create(superadmin=True)
    keys.revoke(first)
    keys.create(superadmin=True)


def test_an_unknown_key_is_not_found(keys: Keys) -> None:
    for request in (
        pb.RevokeApiKeyRequest(key_id="nobody"),
        pb.SetAclRequest(key_id="nobody"),
        pb.GetAclRequest(key_id="nobody"),
        pb.GetAclRequest(key_id=""),
    ):
        with pytest.raises(ApiKeyNotFound):
            keys.ask(request)


# --- Delegation -----------------------------------------------------------------------------------


def test_a_key_makes_and_manages_keys_within_its_own_rights(keys: Keys) -> None:
    tenant = keys.create(*TENANT)
    stranger = keys.create((PRODUCE, "b.x"))
    child = keys.create((PRODUCE, "a.x"), caller=tenant)
    assert keys.listed(tenant) == [tenant, child]
    keys.set_acl(child, (CONSUME, "a.*"), caller=tenant)
    assert keys.acl(child, tenant) == (((CONSUME, "a.*"),), False)
    keys.revoke(child, tenant)
    assert keys.listed() == [tenant, stranger]


@pytest.mark.parametrize(
    "acl", [((PRODUCE, "b.x"),), ((PRODUCE, "a.x"), (ADMIN, "*")), ((PRODUCE, "a*"),), ()]
)
def test_a_key_cannot_grant_what_it_does_not_have(keys: Keys, acl: Entries) -> None:
    tenant = keys.create(*TENANT)
    child = keys.create((PRODUCE, "a.x"), caller=tenant)
    before = keys.listed()
    with pytest.raises(PermissionDenied):
        keys.create(*acl, caller=tenant)
    with pytest.raises(PermissionDenied):
        keys.set_acl(child, *acl, caller=tenant)
    assert keys.listed() == before
    assert keys.acl(child) == (((PRODUCE, "a.x"),), False)


def test_only_a_superadmin_makes_superadmins(keys: Keys) -> None:
    chief = keys.create(superadmin=True)
    operator = keys.create((ADMIN, "*"), (PRODUCE, "*"), (CONSUME, "*"))
    with pytest.raises(PermissionDenied, match="superadmin"):
        keys.create(superadmin=True, caller=operator)
    assert keys.acl(keys.create(superadmin=True, caller=chief)) == ((), True)


def test_a_key_without_admin_makes_no_keys(keys: Keys) -> None:
    producer = keys.create((PRODUCE, "*"))
    with pytest.raises(PermissionDenied, match=r"may not grant produce:orders"):
        keys.create((PRODUCE, "orders"), caller=producer)
    assert keys.listed(producer) == [producer]
    assert keys.acl(producer, producer) == (((PRODUCE, "*"),), False)


def test_keys_that_one_does_not_manage_look_like_keys_that_are_not_there(keys: Keys) -> None:
    tenant = keys.create(*TENANT)
    chief = keys.create(superadmin=True)
    texts = set()
    for target in (chief, "nobody"):
        for request in (
            pb.RevokeApiKeyRequest(key_id=target),
            pb.SetAclRequest(key_id=target, acl=entries(((PRODUCE, "a.x"),))),
            pb.GetAclRequest(key_id=target),
        ):
            with pytest.raises(PermissionDenied) as caught:
                keys.ask(request, tenant)
            texts.add(caught.value.message.replace(target, "?"))
    assert len(texts) == 1


def test_a_key_that_expires_cannot_make_one_that_outlives_it(keys: Keys) -> None:
    for is_superadmin in (True, False):
        acl = () if is_superadmin else TENANT
        expires_ns = keys.wall_ns(60)
        caller = keys.create(*acl, expires_ns=expires_ns, superadmin=is_superadmin)
        for later_ns in (0, expires_ns + MS):
            with pytest.raises(PermissionDenied, match="outlives"):
                keys.create((PRODUCE, "a.x"), caller=caller, expires_ns=later_ns)
        keys.create((PRODUCE, "a.x"), caller=caller, expires_ns=expires_ns)


def test_a_caller_that_is_gone_by_now_is_refused(keys: Keys) -> None:
    chief = keys.create(superadmin=True, expires_ns=keys.wall_ns(60))
    keys.broker.clock.advance(60)
    with pytest.raises(Unauthenticated, match="expired"):
        keys.listed(chief)
    keys.revoke(chief)
    with pytest.raises(Unauthenticated, match="not valid"):
        keys.listed(chief)


# --- Streams --------------------------------------------------------------------------------------


@pytest.fixture
def streams(keys: Keys) -> tuple[str, list[int]]:
    """A key with a stream on each of two queues, and a stream of nobody's."""
    for queue in ("a.x", "a.y"):
        keys.broker.create(queue)
    key_id = keys.create((CONSUME, "a.*"))
    consumers = [keys.open("a.x", key_id), keys.open("a.y", key_id, is_once=True)]
    keys.open("a.x", "")
    return key_id, consumers


def test_revoking_a_key_ends_its_streams_before_the_next_delivery(
    keys: Keys, streams: tuple[str, list[int]]
) -> None:
    key_id, consumers = streams
    keys.revoke(key_id)
    assert keys.closed() == [(consumer, "UNAUTHENTICATED") for consumer in consumers]
    keys.broker.enqueue("a.y")
    assert keys.broker.take() == []


def test_expiry_ends_a_keys_streams_by_itself(keys: Keys) -> None:
    keys.broker.create("a.x")
    key_id = keys.create((CONSUME, "a.*"), expires_ns=keys.wall_ns(3))
    consumer = keys.open("a.x", key_id)
    wake_ns = keys.broker.broker.next_wake_ns() - keys.broker.clock.mono_ns
    assert S // 2 < wake_ns <= 3 * S  # it may be looked at when it comes near
    keys.broker.clock.advance(2.9)
    keys.broker.tick()
    assert keys.closed() == []
    assert keys.broker.broker.next_wake_ns() == keys.broker.clock.mono_ns + S // 10
    keys.broker.clock.advance(0.1)
    keys.broker.tick()
    assert keys.closed() == [(consumer, "UNAUTHENTICATED")]
    with pytest.raises(Unauthenticated):
        keys.open("a.x", key_id)
    assert keys.listed() == [key_id]


def test_expiry_follows_the_wall_clock(keys: Keys) -> None:
    keys.broker.create("a.x")
    key_id = keys.create((CONSUME, "a.*"), expires_ns=keys.wall_ns(3600))
    consumer = keys.open("a.x", key_id)
    keys.broker.clock.jump(-60)
    keys.broker.clock.advance(3600)
    keys.broker.tick()
    assert keys.closed() == []
    keys.broker.clock.jump(60)
    keys.broker.tick()
    assert keys.closed() == [(consumer, "UNAUTHENTICATED")]


def test_expiry_is_noticed_again_after_the_clock_was_set_back(keys: Keys) -> None:
    keys.broker.create("a.x")
    key_id = keys.create((CONSUME, "a.*"), expires_ns=keys.wall_ns(60))
    keys.broker.clock.jump(3600)
    keys.broker.tick()
    keys.broker.clock.jump(-3600)
    consumer = keys.open("a.x", key_id)
    keys.broker.clock.advance(60)
    keys.broker.tick()
    assert keys.closed() == [(consumer, "UNAUTHENTICATED")]


def test_a_new_acl_ends_the_streams_that_it_no_longer_allows(
    keys: Keys, streams: tuple[str, list[int]]
) -> None:
    key_id, (_, on_y) = streams
    keys.set_acl(key_id, (CONSUME, "a.x"), (PRODUCE, "a.y"))
    assert keys.closed() == [(on_y, "PERMISSION_DENIED")]
    keys.set_acl(key_id, (CONSUME, "*"))
    assert keys.closed() == []


def test_a_stream_is_opened_only_with_a_key_that_still_may(keys: Keys) -> None:
    keys.broker.create("a.x")
    key_id = keys.create((CONSUME, "a.x"))
    keys.open("a.x", key_id)
    keys.set_acl(key_id, (CONSUME, "b"))
    for queue in ("a.x", "a.nowhere"):
        with pytest.raises(PermissionDenied):
            keys.open(queue, key_id)
    with pytest.raises(QueueNotFound):
        keys.open("b", key_id)
    keys.revoke(key_id)
    with pytest.raises(Unauthenticated):
        keys.open("b", key_id)


# --- The store ------------------------------------------------------------------------------------


def fields(key: ApiKey) -> dict[str, Any]:
    return {name: getattr(key, name) for name in key.__slots__}


def test_keys_survive_power_loss_and_revoked_ones_do_not_come_back(keys: Keys) -> None:
    kept = keys.create((PRODUCE, "a.*"), (ADMIN, "b"), expires_ns=keys.wall_ns(60), name="ключ")
    chief = keys.create(superadmin=True)
    gone = keys.create(superadmin=True)
    changed = keys.create((PRODUCE, "x"))
    keys.set_acl(changed, (CONSUME, "y"))
    keys.revoke(gone)
    before = {key_id: fields(key) for key_id, key in keys.broker.broker.state.keyring.keys.items()}
    assert before.keys() == {kept, chief, changed}
    keys.broker.restart(power=True)
    after = keys.broker.broker.state.keyring.keys
    assert {key_id: fields(key) for key_id, key in after.items()} == before
    keys.broker.create("a.x")
    keys.broker.clock.advance(60)
    with pytest.raises(Unauthenticated, match="expired"):
        keys.listed(kept)


def test_a_revoked_key_leaves_nothing_in_the_store(keys: Keys) -> None:
    def rows() -> dict[bytes, bytes]:
        return dict(keys.broker.storage.scan(Column.STATE, b"", b"\xff"))

    keys.broker.tick()  # the first group reserves numbers
    before = rows()
    key_id = keys.create((PRODUCE, "orders"), name="short-lived")
    assert any(key_id.encode() in row for row in rows())
    keys.revoke(key_id)
    assert rows() == before


def test_a_permission_from_the_future_allows_nothing(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_id = keys.create((PRODUCE, "a"), (CONSUME, "a"))
    monkeypatch.setattr("fila_server.core.admin.api_keys.WORDS", {PRODUCE: "produce"})
    keys.broker.restart()
    assert keys.acl(key_id) == (((PRODUCE, "a"),), False)
