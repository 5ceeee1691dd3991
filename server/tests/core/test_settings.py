# SPDX-License-Identifier: AGPL-3.0-only
"""Runtime settings: what a name means, what a value may be, and what follows for a key."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from fila.v1 import admin_pb2 as pb
from fila_server.core import settings
from fila_server.core.commands import Admin
from fila_server.core.settings import Setting, Settings
from fila_server.core.turn import SLICE
from fila_server.core.wire.records import BUCKET
from fila_server.errors import ConfigNotFound, InvalidArgument, Overloaded
from fila_server.storage.api import Column
from server.tests.core.harness import Harness, check_consistent


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create("q")
    return harness


def weight_of(known: Settings, queue: str, key: str) -> int:
    return known.weights[queue](key) if queue in known.weights else 0


def weight(h: Harness, key: str) -> int:
    return h.broker.state.queues["q"].keys[key].weight


# --- Names and values -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "setting"),
    [
        ("throttle:mail:rate", Setting("rate", "mail")),
        ("throttle:mail:burst", Setting("burst", "mail")),
        ("throttle:a:b:c:rate", Setting("rate", "a:b:c")),
        ("throttle.mail", Setting("both", "mail")),
        ("throttle.a.b:c", Setting("both", "a.b:c")),
        ("concurrency:a:b:limit", Setting("limit", "a:b")),
        ("weight:orders:a:b", Setting("weight", "a:b", "orders")),
        ("throttled", None),
        ("anything else", None),
        ("", None),
    ],
)
def test_what_a_key_sets(key: str, setting: Setting | None) -> None:
    assert settings.parse(key) == setting


@pytest.mark.parametrize(
    "key", ["throttle:mail", "throttle:", "throttle:mail:Rate", "concurrency:mail", "concurrency:"]
)
def test_keys_that_almost_mean_something(key: str) -> None:
    with pytest.raises(InvalidArgument, match="must end in"):
        settings.parse(key)


@pytest.mark.parametrize(
    "key", ["throttle::rate", "throttle.", "concurrency::limit", "weight:orders:", "weight:orders"]
)
def test_a_name_must_say_whose_setting_it_is(key: str) -> None:
    with pytest.raises(InvalidArgument, match="names no key"):
        settings.parse(key)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("throttle:k:rate", "0.5"),
        ("throttle:k:rate", "1e9"),
        ("throttle:k:rate", "0.000001"),
        ("throttle:k:burst", "1"),
        ("throttle:k:burst", "1000000000"),
        ("throttle.k", "5"),
        ("throttle.k", "5,10"),
        ("concurrency:k:limit", "1"),
        ("concurrency:k:limit", "2147483648"),
        ("weight:q:k", "1000"),
    ],
)
def test_good_values(key: str, value: str) -> None:
    h = Harness()
    h.create("q")
    h.admin(pb.SetConfigRequest(key=key, value=value))
    h.enqueue("q", throttle_keys=["k"], fairness_key="k")
    assert len(h.receive("q")) == 1
    h.restart()
    assert h.admin(pb.GetConfigRequest(key=key)).value == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("throttle:k:rate", "0"),
        ("throttle:k:rate", "-1"),
        ("throttle:k:rate", "1e10"),
        ("throttle:k:rate", "1e-7"),
        ("throttle:k:rate", "nan"),
        ("throttle:k:rate", "inf"),
        ("throttle:k:rate", "5/s"),
        ("throttle:k:burst", "0"),
        ("throttle:k:burst", "0.99"),
        ("throttle.k", "5,"),
        ("throttle.k", ",5"),
        ("throttle.k", "5,5,5"),
        ("concurrency:k:limit", "0"),
        ("concurrency:k:limit", "1.5"),
        ("concurrency:k:limit", "²"),
        ("concurrency:k:limit", "9" * 5000),
        ("weight:q:k", "0"),
        ("weight:q:k", "1001"),
        ("weight:q:k", "-5"),
    ],
)
def test_bad_values(key: str, value: str) -> None:
    h = Harness()
    with pytest.raises(InvalidArgument, match=key.replace(".", r"\.")):
        h.admin(pb.SetConfigRequest(key=key, value=value))
    assert h.broker.state.settings.values == {}


def test_a_tiny_rate_with_a_large_burst_can_be_stored(h: Harness) -> None:
    """The time at which such a bucket is full again is beyond all that fits 64 bits."""
    h.set("throttle.k", "0.000001,1000000000")
    for _ in range(3):
        h.enqueue("q", throttle_keys=["k"], throttle_cost=1_000_000)
    assert len(h.receive("q", 3)) == 3
    h.restart()
    h.enqueue("q", throttle_keys=["k"])
    assert len(h.receive("q")) == 1


# --- What follows for a key -----------------------------------------------------------------------


def test_nothing_is_set() -> None:
    assert Settings().throttle("k") == (0, 0, 0, "")
    assert weight_of(Settings(), "q", "k") == 0


def test_both_spellings_mean_the_same_bucket_and_the_long_one_wins() -> None:
    known = Settings()
    for name, value, terms in (
        ("throttle.a:b.c", "2,7", (2, 7)),
        ("throttle:a:b.c:rate", "5", (5, 7)),
        ("throttle:a:b.c:burst", "9", (5, 9)),
        ("throttle:a:b.c:rate", None, (2, 9)),
        ("throttle.a:b.c", "3", (3, 9)),
        ("throttle:a:b.c:burst", None, (3, 3)),
        ("throttle.a:b.c", "0.5", (0.5, 1)),
        ("throttle.a:b.c", None, (0, 0)),
    ):
        known.put(name, value)
        assert known.throttle("a:b.c")[:2] == terms, name


def test_a_setting_of_its_own_wins_over_patterns_and_a_longer_pattern_over_a_shorter() -> None:
    known = Settings()
    known.put("throttle.*", "1")
    known.put("throttle.stripe:*", "2,20")
    known.put("throttle:stripe:eu:*:rate", "3")
    known.put("throttle.stripe:eu:acme", "4,40")
    assert known.throttle("mail") == (1, 1, 0, "*")
    assert known.throttle("stripe:us") == (2, 20, 0, "stripe:*")
    assert known.throttle("stripe:") == (2, 20, 0, "stripe:*")
    assert known.throttle("stripe") == (1, 1, 0, "*")
    assert known.throttle("stripe:eu:globex")[0] == 3
    assert known.throttle("stripe:eu:globex")[3] == "stripe:eu:*"
    assert known.throttle("stripe:eu:acme") == (4, 40, 0, "")
    known.put("throttle.stripe:eu:acme", None)
    known.put("throttle:stripe:eu:*:rate", None)
    assert known.throttle("stripe:eu:acme") == (2, 20, 0, "stripe:*")


def test_each_field_follows_its_own_most_specific_setting() -> None:
    known = Settings()
    known.put("throttle.stripe:*", "10,20")
    known.put("concurrency:*:limit", "5")
    assert known.throttle("stripe:a") == (10, 20, 5, "stripe:*")
    assert known.throttle("mail") == (0, 0, 5, "*")
    known.put("throttle:stripe:a:burst", "50")  # its own bucket size, the rate of all
    assert known.throttle("stripe:a")[:3] == (10, 50, 5)
    known.put("concurrency:stripe:a:limit", "1")
    assert known.throttle("stripe:a")[:3] == (10, 50, 1)
    assert known.throttle("stripe:b")[:3] == (10, 20, 5)


def test_weights_follow_patterns_of_their_queue() -> None:
    known = Settings()
    known.put("weight:orders:*", "2")
    known.put("weight:orders:free-*", "1")
    known.put("weight:orders:free-but-loved", "9")
    assert weight_of(known, "orders", "acme") == 2
    assert weight_of(known, "orders", "free-1") == 1
    assert weight_of(known, "orders", "free-but-loved") == 9
    assert weight_of(known, "mail", "acme") == 0


names = st.text("ab", max_size=4)
entries = st.tuples(names, st.booleans(), st.one_of(st.none(), st.integers(1, 9)))


@given(st.lists(entries, max_size=30), st.lists(names, min_size=1, max_size=8))
def test_patterns_against_a_model(program: list[tuple[str, bool, int | None]], keys: Any) -> None:
    """The model looks at every setting; the broker at one per length of pattern."""
    known = Settings()
    model: dict[str, int] = {}
    for name, is_pattern, value in program:
        key = name + "*" if is_pattern else name or "x"
        known.put(f"weight:q:{key}", None if value is None else str(value))
        model.pop(key, None)
        if value is not None:
            model[key] = value
    for key in keys:
        patterns = [it for it in model if it.endswith("*") and key.startswith(it[:-1])]
        best = key if key in model else max(patterns, key=len, default=None)
        assert weight_of(known, "q", key) == (model[best] if best is not None else 0)


# --- As operators set them ------------------------------------------------------------------------


def test_a_weight_of_a_queue_to_come_waits_for_it() -> None:
    h = Harness()
    h.admin(pb.SetConfigRequest(key="weight:later:gold", value="9"))
    h.create("later")
    h.enqueue("later", fairness_key="gold", weight=2)
    (row,) = h.stats("later").per_key_stats
    assert row.weight == 9
    h.restart()
    (row,) = h.stats("later").per_key_stats
    assert row.weight == 9


def test_entries_are_set_listed_removed_and_kept(h: Harness) -> None:
    for key, value in (("b", "2"), ("a.x", "1"), ("a.y", "2")):
        h.set(key, value)
    h.set("b", "3")
    h.restart()
    assert h.admin(pb.GetConfigRequest(key="b")).value == "3"
    listed = h.admin(pb.ListConfigRequest())
    assert [entry.key for entry in listed.entries] == ["a.x", "a.y", "b"]
    assert h.admin(pb.ListConfigRequest(prefix="a.")).total_count == 2
    h.admin(pb.DeleteConfigRequest(key="b"))
    h.restart()
    for request in (pb.GetConfigRequest(key="b"), pb.DeleteConfigRequest(key="b")):
        with pytest.raises(ConfigNotFound, match='no configuration entry "b"'):
            h.admin(request)


def test_entries_reach_the_hooks() -> None:
    class Hooks:
        has_on_enqueue = has_on_failure = False
        spent_ns = 0

        def __init__(self, config: dict[str, str]) -> None:
            self.config = dict(config)

        def set_config(self, key: str, value: str | None) -> None:
            self.config[key] = str(value)

    made: list[Hooks] = []

    def compile_hooks(name: str, config: Any, settings: dict[str, str], strict: bool) -> Hooks:
        made.append(Hooks(settings))
        return made[-1]

    h = Harness(compile_hooks=compile_hooks)
    h.admin(pb.SetConfigRequest(key="before", value="1"))
    h.create("q")
    h.admin(pb.SetConfigRequest(key="after", value="2"))
    h.admin(pb.DeleteConfigRequest(key="before"))
    assert made[0].config == {"before": "None", "after": "2"}
    made.clear()
    h.restart()
    assert made[0].config == {"after": "2"}


def test_an_empty_value_removes_a_setting(h: Harness) -> None:
    h.set("throttle.mail", "1,1")
    h.enqueue_many("q", 5, throttle_keys=["mail"])
    h.set("throttle.mail", "")
    assert len(h.receive("q", 5)) == 5
    h.set("never:was", "")
    h.restart()
    assert h.admin(pb.ListConfigRequest()).total_count == 0


def test_entries_are_set_together_or_not_at_all(h: Harness) -> None:
    h.set("concurrency:mail:limit", "3")

    def together(*entries: tuple[str, str]) -> None:
        rows = [pb.ConfigEntry(key=key, value=value) for key, value in entries]
        h.admin(pb.SetConfigRequest(entries=rows))

    with pytest.raises(InvalidArgument, match="throttle:mail:burst"):
        together(("throttle:mail:rate", "5"), ("throttle:mail:burst", "none"))
    with pytest.raises(InvalidArgument, match="throttle:mail"):
        together(("throttle:mail:rate", "5"), ("throttle:mail", ""))
    assert h.broker.state.settings.values == {"concurrency:mail:limit": "3"}
    together(
        ("throttle:mail:rate", "5"), ("throttle:mail:burst", "9"), ("concurrency:mail:limit", "")
    )
    assert h.broker.state.settings.throttle("mail") == (5, 9, 0, "")
    with pytest.raises(InvalidArgument, match="1001 entries in one request; up to 1000"):
        together(*((f"k{n}", "v") for n in range(1001)))
    with pytest.raises(InvalidArgument, match="either key and value, or entries"):
        h.admin(pb.SetConfigRequest(key="a", value="b", entries=[pb.ConfigEntry(key="c")]))
    h.restart()
    assert h.broker.state.settings.throttle("mail") == (5, 9, 0, "")


def test_every_key_of_a_pattern_has_a_bucket_of_its_own(h: Harness) -> None:
    """Also keys that waited before anybody set it, and keys that come later."""
    for tenant in ("acme", "globex"):
        h.enqueue_many("q", 5, throttle_keys=[f"stripe:{tenant}"])
    h.set("throttle.stripe:*", "1,2")
    h.enqueue_many("q", 5, throttle_keys=["stripe:initech"])
    h.enqueue_many("q", 1, throttle_keys=["mail"])
    taken = Counter(message.metadata.throttle_keys[0] for message in h.receive("q", 50))
    assert taken == {"stripe:acme": 2, "stripe:globex": 2, "stripe:initech": 2, "mail": 1}
    rows = {row.key: row for row in h.admin(pb.ListThrottlesRequest()).throttles}
    assert {row.pattern for key, row in rows.items() if key != "mail"} == {"stripe:*"}
    h.set("throttle.stripe:acme", "100,100")
    h.clock.advance(1)
    assert len(h.receive("q", 50)) == 3 + 1 + 1
    h.set("throttle.stripe:*", "")
    assert len(h.receive("q", 50)) == 4
    check_consistent(h)


def test_weights_of_a_pattern_act_on_what_waits(h: Harness) -> None:
    h.enqueue_many("q", 20, keys=["free-1", "paid-1"], weight=2)
    h.set("weight:q:free-*", "1")
    h.set("weight:q:*", "5")
    assert (weight(h, "free-1"), weight(h, "paid-1")) == (1, 5)
    h.set("weight:q:free-1", "3")
    assert weight(h, "free-1") == 3
    for name in ("weight:q:free-1", "weight:q:free-*", "weight:q:*"):
        h.admin(pb.DeleteConfigRequest(key=name))
    assert (weight(h, "free-1"), weight(h, "paid-1")) == (2, 2)


def test_a_weight_that_is_removed_gives_what_a_restart_would(h: Harness) -> None:
    h.enqueue("q", fairness_key="a", weight=5)
    h.set("weight:q:a", "2")
    assert weight(h, "a") == 2
    h.admin(pb.DeleteConfigRequest(key="weight:q:a"))
    assert weight(h, "a") == 5
    h.restart()
    assert weight(h, "a") == 5


def test_the_number_of_settings_is_bounded() -> None:
    h = Harness()
    h.config = replace(h.config, limits=replace(h.config.limits, max_config_entries=2))
    h.restart()
    for key in ("a", "b", "a"):
        h.set(key, "1")
    with pytest.raises(Overloaded, match="2 runtime settings"):
        h.set("c", "1")
    h.set("b", "")
    h.set("c", "1")


def test_a_pattern_that_takes_turns_leaves_alone_what_was_forgotten_meanwhile(h: Harness) -> None:
    """A limiter that is gone must not be stored over the one that took its place."""
    count = 4 * SLICE
    last = f"p:{count - 1}"
    h.set("throttle:p:*:rate", "1000")
    names = [f"p:{n}" for n in range(count)]
    ids = [h.enqueue("q", fairness_key=name, throttle_keys=[name]) for name in names]
    old = h.broker.state.throttles.limiters[last]
    h.turn(Admin(0, pb.SetConfigRequest(key="throttle:p:*:burst", value="5000")))
    assert h.last.more
    h.turn(Admin(1, pb.CancelMessageRequest(queue="q", message_id=ids[-1])))
    state = h.broker.state
    state.places.forget_rested(state.queues["q"], 10)
    for limiter in state.throttles.forgotten(h.clock.now().mono_ns, 10):
        assert limiter is old
    assert last not in state.throttles.limiters and h.last.more
    while h.last.more:
        h.turn()
    assert old not in state.throttles.idle and old.burst == 1000
    stored = [key for key, _ in h.storage.scan(Column.STATE, BUCKET, BUCKET + b"\xff")]
    assert BUCKET + last.encode() not in stored
    check_consistent(h)
