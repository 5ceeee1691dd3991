# SPDX-License-Identifier: AGPL-3.0-only
"""Patterns, what a key may do, and what it may give away."""

import string

import hypothesis.strategies as st
import pytest
from hypothesis import given

from fila_server.core.access import (
    ADMIN,
    BOOTSTRAP,
    CONSUME,
    PRODUCE,
    AclEntry,
    ApiKey,
    Keyring,
    covers,
    is_pattern,
)
from fila_server.errors import Unauthenticated

NAMES = st.text("ab.", min_size=1, max_size=6)
PATTERNS = st.one_of(NAMES, st.text("ab.", max_size=4).map(lambda prefix: prefix + "*"))


def key(*entries: tuple[int, str], superadmin: bool = False, expires_ns: int = 0) -> ApiKey:
    acl = [AclEntry(*entry) for entry in entries]
    return ApiKey("id", "name", is_superadmin=superadmin, acl=acl, expires_ns=expires_ns)


@pytest.mark.parametrize(
    ("pattern", "matched", "others"),
    [
        ("orders", ["orders"], ["orders.eu", "order", "orders2", "Orders", ""]),
        ("orders.*", ["orders.eu", "orders.eu.dlq", "orders."], ["orders", "orders2", "order.eu"]),
        ("orders*", ["orders", "orders2", "orders.eu"], ["order", "my-orders"]),
        ("*", ["orders", "a/b", "x.dlq"], []),
    ],
)
def test_patterns_match_one_name_or_a_beginning(
    pattern: str, matched: list[str], others: list[str]
) -> None:
    one = key((PRODUCE, pattern))
    assert [name for name in matched if not one.may(PRODUCE, name)] == []
    assert [name for name in others if one.may(PRODUCE, name)] == []


@pytest.mark.parametrize("pattern", ["orders", "a/b-c_d.e", "orders.*", "o*", "*", "x" * 255])
def test_patterns_that_are_accepted(pattern: str) -> None:
    assert is_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["", "**", "*.dlq", "or*ers", "a b", "orders.?", "café", "a\n", "a*\n", "x" * 256]
)
def test_patterns_that_are_refused(pattern: str) -> None:
    assert not is_pattern(pattern)


@given(PATTERNS, PATTERNS, NAMES)
def test_a_pattern_that_covers_another_matches_all_that_it_matches(
    pattern: str, other: str, name: str
) -> None:
    wide, narrow = key((CONSUME, pattern)), key((CONSUME, other))
    if covers(pattern, other) and narrow.may(CONSUME, name):
        assert wide.may(CONSUME, name)
    if pattern == other:
        assert covers(pattern, other)


@given(PATTERNS, NAMES)
def test_matching_a_name_is_covering_it(pattern: str, name: str) -> None:
    assert key((ADMIN, pattern)).may(ADMIN, name) == covers(pattern, name)


def test_permissions_do_not_imply_each_other() -> None:
    for given_permission in (PRODUCE, CONSUME, ADMIN):
        one = key((given_permission, "*"))
        allowed = [it for it in (PRODUCE, CONSUME, ADMIN) if one.may(it, "q")]
        assert allowed == [given_permission]


def test_a_key_sees_queues_on_which_it_may_do_anything() -> None:
    one = key((PRODUCE, "in.*"), (CONSUME, "out"))
    names = ("in.a", "out", "in", "outer", "other")
    assert [name for name in names if one.may_see(name)] == ["in.a", "out"]


def test_only_the_star_alone_is_everywhere() -> None:
    assert key((ADMIN, "*")).may_everywhere(ADMIN)
    assert not key((ADMIN, "*")).may_everywhere(PRODUCE)
    for letter in string.ascii_lowercase:
        assert not key((ADMIN, f"{letter}*")).may_everywhere(ADMIN)
    assert BOOTSTRAP.may_everywhere(ADMIN)


@pytest.mark.parametrize(
    ("own", "entry", "may"),
    [
        ([(ADMIN, "orders.*"), (PRODUCE, "orders.*")], (PRODUCE, "orders.eu"), True),
        ([(ADMIN, "orders.*"), (PRODUCE, "orders.*")], (PRODUCE, "orders.*"), True),
        ([(ADMIN, "*"), (PRODUCE, "orders")], (PRODUCE, "orders"), True),
        ([(ADMIN, "orders.*")], (ADMIN, "orders.eu.*"), True),
        ([(PRODUCE, "orders.*")], (PRODUCE, "orders.eu"), False),
        ([(ADMIN, "orders.*")], (PRODUCE, "orders.eu"), False),
        ([(ADMIN, "orders.*"), (PRODUCE, "*")], (PRODUCE, "orders"), False),
        ([(ADMIN, "orders.*"), (PRODUCE, "orders.eu")], (PRODUCE, "orders.*"), False),
        ([(ADMIN, "orders.*")], (ADMIN, "orders*"), False),
        ([(ADMIN, "orders.*")], (ADMIN, "*"), False),
    ],
)
def test_a_key_grants_what_it_has_where_it_has_admin(
    own: list[tuple[int, str]], entry: tuple[int, str], may: bool
) -> None:
    assert key(*own).may_grant(AclEntry(*entry)) is may


def test_a_key_manages_keys_that_it_could_have_made() -> None:
    tenant = key((ADMIN, "a.*"), (CONSUME, "a.*"))
    assert tenant.may_manage(key((CONSUME, "a.x"), (ADMIN, "a.y")))
    assert not tenant.may_manage(key((CONSUME, "a.x"), (PRODUCE, "a.x")))
    assert not tenant.may_manage(key((CONSUME, "b.x")))
    assert not tenant.may_manage(key())
    assert not tenant.may_manage(key(superadmin=True))
    assert BOOTSTRAP.may_manage(key(superadmin=True))
    assert BOOTSTRAP.may_manage(key())


def test_a_superadmin_may_do_everything() -> None:
    one = key(superadmin=True)
    assert all(one.may(permission, "any") for permission in (PRODUCE, CONSUME, ADMIN))
    assert one.may_grant(AclEntry(PRODUCE, "*"))


def test_a_key_expires_at_its_time_and_not_before() -> None:
    one = key(expires_ns=100)
    assert not one.is_expired(99)
    assert one.is_expired(100)
    assert not key().is_expired(1 << 62)


def test_the_caller_of_a_command_must_still_be_there() -> None:
    ring = Keyring()
    assert ring.caller("", 0) is BOOTSTRAP
    one = key(expires_ns=100)
    ring.put(one)
    assert ring.caller("id", 99) is one
    with pytest.raises(Unauthenticated, match="expired"):
        ring.caller("id", 100)
    ring.remove(one)
    with pytest.raises(Unauthenticated, match="not valid"):
        ring.caller("id", 99)


def test_a_replaced_key_expires_once() -> None:
    ring = Keyring()
    first = key(expires_ns=100)
    ring.put(first)
    second = first.with_acl([AclEntry(PRODUCE, "x")])
    ring.put(second)
    assert (second.expires_ns, second.may(PRODUCE, "x")) == (100, True)
    assert list(ring.expiring.due(99, 10)) == []
    assert list(ring.expiring.due(100, 10)) == [second]
    assert list(ring.expiring.due(101, 10)) == []
