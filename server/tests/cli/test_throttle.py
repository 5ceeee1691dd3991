# SPDX-License-Identifier: AGPL-3.0-only
"""`fila throttle ...` from the outside."""

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Fila

HEAD = ["THROTTLE", "KEY", "SOURCE", "RATE/S", "TOKENS", "IN", "FLIGHT", "WAITING"]
RATES = ["PASSED/S", "BLOCKED/S"]


@pytest.fixture
def key(new_name: Callable[[], str]) -> str:
    """The beginning of throttle keys that nothing else uses."""
    return f"api:{new_name()}:"


def row(fila: Fila, key: str, *options: str) -> dict[str, Any]:
    (found,) = fila("throttle", "list", key, "--json", *options).json()["throttles"]
    assert found["throttle_key"] == key
    return found  # type: ignore[no-any-return]


def test_set_list_delete(fila: Fila, key: str) -> None:
    answer = fila("throttle", "set", key, "--rate", "2.5", "--burst", "20").ok()
    assert answer == f'Throttled "{key}": 2.5/s, burst 20\n'
    answer = fila("throttle", "set", key, "--concurrency", "4").ok()
    assert answer == f'Throttled "{key}": 2.5/s, burst 20, 4 at a time\n'
    assert fila("config", "get", f"throttle:{key}:rate").ok() == "2.5\n"
    lines = fila("throttle", "list", key).ok().splitlines()
    assert lines[0].split() == [*HEAD, *RATES]
    assert lines[1].split() == [key, "exact", "2.5", "20", "0/4", "0", "0", "0"]
    found = row(fila, key)
    assert (found["source"], found["rate_per_second"], found["burst"]) == ("exact", 2.5, 20)
    assert (found["concurrency_limit"], found["paused"], found["unset"]) == (4, False, False)
    answer = fila("throttle", "delete", key, "--json").json()
    names = [f"concurrency:{key}:limit", f"throttle:{key}:burst", f"throttle:{key}:rate"]
    assert answer == {"throttle_key": key, "deleted": True, "config_keys": names}
    error = fila("throttle", "delete", key).error()
    assert error == f'no throttle is set for "{key}"; list them with: fila throttle list'


def test_all_or_none_is_set(fila: Fila, new_name: Callable[[], str]) -> None:
    """The names of settings have a limit of their own, which one of three may reach."""
    key = new_name() + "k" * 500
    assert fila("throttle", "set", key, "--rate", "1", "--concurrency", "1").code == 1
    assert fila("config", "list", "--prefix", f"throttle:{key}", "--json").json()["entries"] == {}


def test_the_compact_form_is_the_same_bucket(fila: Fila, key: str) -> None:
    fila("config", "set", f"throttle.{key}", "10,5").ok()
    found = row(fila, key)
    assert (found["rate_per_second"], found["burst"], found["source"]) == (10, 5, "exact")
    answer = fila("throttle", "set", key, "--concurrency", "4").ok()
    assert answer == f'Throttled "{key}": 10/s, burst 5, 4 at a time\n'
    fila("throttle", "delete", key).ok()
    assert fila("throttle", "list", key, "--json").json()["throttles"] == []


def test_a_pattern_limits_each_key_that_matches(fila: Fila, key: str, queue: str) -> None:
    answer = fila("throttle", "set", f"{key}*", "--rate", "25", "--concurrency", "3").ok()
    assert answer == f'Throttled "{key}*": 25/s, 3 at a time for each key that matches\n'
    fila("throttle", "set", f"{key}own", "--rate", "7").ok()
    for name in ("acme", "own"):
        fila("enqueue", queue, "--throttle-key", f"{key}{name}").ok()
    document = fila("throttle", "list", key, "--json").json()
    limits = {"rate_per_second": 25, "burst": None, "concurrency_limit": 3}
    assert document["patterns"] == [{"throttle_key": f"{key}*", **limits}]
    found = {it["throttle_key"].removeprefix(key): it for it in document["throttles"]}
    assert (found["acme"]["source"], found["acme"]["pattern"]) == ("pattern", f"{key}*")
    assert (found["acme"]["rate_per_second"], found["acme"]["waiting"]) == (25, 1)
    assert (found["own"]["source"], found["own"]["rate_per_second"]) == ("exact", 7)
    lines = [line.split() for line in fila("throttle", "list", key).ok().splitlines()]
    assert lines[0] == ["PATTERN", "RATE/S", "BURST", "CONCURRENCY"]
    assert lines[1] == [f"{key}*", "25", "-", "3"]
    assert [f"{key}acme", f"{key}*", "25", "25", "0/3", "1", "0", "0"] in lines
    fila("throttle", "delete", f"{key}*").ok()
    assert row(fila, f"{key}acme")["source"] == "unset"


def test_a_prefix_meets_patterns_on_both_sides_of_it(fila: Fila, key: str) -> None:
    for pattern in (f"{key}*", f"{key}a-*", f"{key}b-*"):
        fila("throttle", "set", pattern, "--rate", "1").ok()
    patterns = fila("throttle", "list", f"{key}a-b", "--json").json()["patterns"]
    assert [pattern["throttle_key"] for pattern in patterns] == [f"{key}*", f"{key}a-*"]
    patterns = fila("throttle", "list", f"{key}a", "--json").json()["patterns"]
    assert [pattern["throttle_key"] for pattern in patterns] == [f"{key}*", f"{key}a-*"]


def test_keys_that_nobody_limits_are_listed(fila: Fila, key: str, queue: str) -> None:
    fila("throttle", "set", f"{key}set", "--rate", "1").ok()
    for name in ("set", "unset"):
        fila("enqueue", queue, "--throttle-key", f"{key}{name}").ok()
    document = fila("throttle", "list", "--unset", key, "--json").json()
    assert [it["throttle_key"] for it in document["throttles"]] == [f"{key}unset"]
    assert (document["total_count"], document["throttles"][0]["source"]) == (1, "unset")
    lines = fila("throttle", "list", "--unset", key).ok().splitlines()
    assert lines[1].split() == [f"{key}unset", "unset", "-", "-", "0", "1", "0", "0"]
    assert row(fila, f"{key}unset")["unset"] is True
    fila("throttle", "set", f"{key}unset", "--concurrency", "1").ok()
    answer = fila("throttle", "list", "--unset", key).ok()
    assert answer == "Every throttle key in use has a limit.\n"


def test_a_paused_key_is_delivered_from_no_queue(
    fila: Fila, key: str, new_queue: Callable[..., str]
) -> None:
    queues = [new_queue(), new_queue()]
    answer = fila("throttle", "pause", key).ok()
    assert answer == (
        f'Paused throttle key "{key}" in all queues until it is resumed; '
        f"go on with: fila throttle resume {key}\n"
    )
    for queue in queues:
        fila("enqueue", queue, "--payload", "held", "--throttle-key", key).ok()
        assert fila("consume", queue, "--wait", "0").out == ""
    assert row(fila, key)["paused"] is True
    assert row(fila, key)["paused_until"] is None
    head, line = fila("throttle", "list", key).ok().splitlines()
    assert head.split() == [*HEAD, *RATES, "PAUSED"]
    assert line.endswith("until resumed")
    assert fila("throttle", "resume", key).ok() == f'Resumed throttle key "{key}"\n'
    for queue in queues:
        assert fila("consume", queue, "--ack", "--payload-only").ok() == "held\n"


def test_a_pause_may_end_by_itself(fila: Fila, key: str) -> None:
    document = fila("throttle", "pause", key, "--for", "2h", "--json").json()
    assert document == {"throttle_key": key, "paused": True, "duration_ms": 7_200_000}
    found = row(fila, key)
    assert found["paused"] is True and found["paused_until"].endswith("Z")
    assert fila("throttle", "list", key).ok().splitlines()[1].endswith(("1h 59m", "2h"))
    answer = fila("throttle", "pause", key, "--for", "10m").ok()
    assert answer.startswith(f'Paused throttle key "{key}" in all queues for 10m; ')
    document = fila("throttle", "resume", key, "--json").json()
    assert document == {"throttle_key": key, "paused": False}


def test_a_prefix_that_no_key_has(fila: Fila, key: str) -> None:
    answer = fila("throttle", "list", key).ok()
    assert answer == f'No throttle keys start with "{key}". See all with: fila throttle list\n'


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("set", "k"), "nothing to set"),
        (("set", "k", "--rate", "0"), "'--rate'"),
        (("set", "k", "--rate", "fast"), "'--rate'"),
        (("set", "k", "--rate", "nan"), "'--rate'"),
        (("set", "k", "--rate", "inf"), "'--rate'"),
        (("set", "k", "--burst", "0.5"), "'--burst'"),
        (("set", "k", "--concurrency", "0"), "'--concurrency'"),
        (("set", "k", "--concurrency", "1.5"), "'--concurrency'"),
        (("pause", "k", "--for", "0"), "--for is how long the pause lasts"),
        (("pause", "k", "--for", "soon"), '"soon" is not a duration'),
    ],
)
def test_nonsense_is_refused(offline: Fila, arguments: tuple[str, ...], text: str) -> None:
    assert text in offline("throttle", *arguments).error(2)
