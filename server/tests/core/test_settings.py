# SPDX-License-Identifier: AGPL-3.0-only
"""Runtime configuration keys: what they mean, and which values they may have."""

import pytest

from fila.v1 import admin_pb2 as pb
from fila_server.core import settings
from fila_server.core.settings import Setting
from fila_server.errors import InvalidArgument
from server.tests.core.harness import Harness


@pytest.mark.parametrize(
    ("key", "setting"),
    [
        ("throttle:mail:rate", Setting("rate", "mail")),
        ("throttle:mail:burst", Setting("burst", "mail")),
        ("throttle:a:b:c:rate", Setting("rate", "a:b:c")),
        ("throttle::rate", Setting("rate", "")),
        ("throttle.mail", Setting("both", "mail")),
        ("throttle.a.b:c", Setting("both", "a.b:c")),
        ("concurrency:a:b:limit", Setting("limit", "a:b")),
        ("weight:orders:a:b", Setting("weight", "a:b", "orders")),
        ("weight:orders", Setting("weight", "", "orders")),
        ("throttled", None),
        ("anything else", None),
        ("", None),
    ],
)
def test_what_a_key_sets(key: str, setting: Setting | None) -> None:
    assert settings.parse_key(key) == setting


@pytest.mark.parametrize(
    "key", ["throttle:mail", "throttle:", "throttle:mail:Rate", "concurrency:mail", "concurrency:"]
)
def test_keys_that_almost_mean_something(key: str) -> None:
    with pytest.raises(InvalidArgument, match="must end in"):
        settings.parse_key(key)


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
        ("throttle:k:rate", ""),
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
    assert h.broker.state.config == {}


def test_a_tiny_rate_with_a_large_burst_can_be_stored() -> None:
    """The time at which such a bucket is full again is beyond all that fits 64 bits."""
    h = Harness()
    h.create("q")
    h.admin(pb.SetConfigRequest(key="throttle.k", value="0.000001,1000000000"))
    for _ in range(3):
        h.enqueue("q", throttle_keys=["k"], throttle_cost=1_000_000)
    assert len(h.receive("q", 3)) == 3
    h.restart()
    h.enqueue("q", throttle_keys=["k"])
    assert len(h.receive("q")) == 1


def test_the_long_spelling_wins_over_the_compact_one() -> None:
    h = Harness()
    h.create("q")
    h.admin(pb.SetConfigRequest(key="throttle.k", value="2,7"))
    limiter = h.broker.state.throttles.limiters["k"]
    assert (limiter.rate, limiter.burst) == (2, 7)
    h.admin(pb.SetConfigRequest(key="throttle:k:rate", value="5"))
    assert (limiter.rate, limiter.burst) == (5, 7)
    h.admin(pb.SetConfigRequest(key="throttle:k:burst", value="9"))
    h.admin(pb.DeleteConfigRequest(key="throttle:k:rate"))
    assert (limiter.rate, limiter.burst) == (2, 9)
    h.admin(pb.DeleteConfigRequest(key="throttle.k"))
    assert "k" not in h.broker.state.throttles.limiters


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
