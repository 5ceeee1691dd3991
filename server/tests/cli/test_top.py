# SPDX-License-Identifier: AGPL-3.0-only
"""`fila top`: what is in trouble comes first, and who gets how much stands beside what is fair."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable
from typing import Any

import pytest

from fila import FairnessKeyStats, KeyTraffic, QueueCounters, QueueInfo
from fila.v1 import admin_pb2
from fila_server.cli.overview import rates, rows
from fila_server.cli.shares import Share, bar, shares

from .conftest import COMMAND, Fila
from .fake_broker import fake_broker

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def counters(**fields: int) -> QueueCounters:
    names = QueueCounters.__dataclass_fields__
    return QueueCounters(**{**dict.fromkeys(names, 0), **fields})


def info(name: str, **fields: Any) -> QueueInfo:
    nothing: dict[str, Any] = dict.fromkeys(QueueInfo.__dataclass_fields__, 0)
    nothing |= {"paused": False, "dead_letter_of": "", "counters": counters()}
    return QueueInfo(**{**nothing, "name": name, **fields})


def test_queues_in_trouble_come_first() -> None:
    busy = {"depth": 9, "active_consumers": 1}
    before = {
        name: info(name, counters=counters(enqueued=10, delivered=10))
        for name in ("fine", "growing", "failing", "stuck", "old")
    }
    after = [
        info("fine", **busy, counters=counters(enqueued=20, delivered=20)),
        info("failing", **busy, counters=counters(enqueued=12, delivered=14, dead_lettered=4)),
        info("failing.dlq", depth=3, delayed=1, dead_letter_of="failing"),
        info("growing", **busy, counters=counters(enqueued=30, delivered=20)),
        info("old", **busy, oldest_pending_age_ms=9, counters=counters(enqueued=20, delivered=20)),
        info("orphan.dlq", dead_letter_of="gone"),
        info("paused", depth=1, paused=True),
        info("stuck", depth=1, counters=counters(enqueued=10, delivered=10)),
    ]
    found = rows(before, after, 2.0)
    assert [(row.info.name, row.troubles, row.dead_letters) for row in found] == [
        ("stuck", ("nobody consumes",), 0),
        ("failing", ("dead letters grow",), 4),
        ("paused", ("paused",), 0),
        ("growing", ("backlog grows",), 0),
        ("old", (), 0),
        ("fine", (), 0),
        ("orphan.dlq", (), 0),
    ]
    assert found[3].rates is not None and found[3].rates.enqueued == 10.0


def test_there_are_no_rates_at_first_and_after_a_restart() -> None:
    assert rates(None, counters(delivered=5), 1.0) is None
    assert rates(counters(delivered=5), counters(delivered=1), 1.0) is None
    (row,) = rows({}, [info("q", depth=1)], 0.0)
    assert row.rates is None and row.troubles == ("nobody consumes",)


def key(name: str, pending: int, delivered: int, **fields: Any) -> FairnessKeyStats:
    nothing: dict[str, Any] = dict.fromkeys(FairnessKeyStats.__dataclass_fields__, 0)
    nothing |= {"weight": 1, "paused": False, "round_position": None, "traffic": None}
    nothing |= {"key": name, "pending_count": pending, "delivered": delivered}
    return FairnessKeyStats(**{**nothing, **fields})


def test_shares_stand_beside_what_weights_entitle_to() -> None:
    before = [key("noisy", 100, 10), key("premium", 100, 10, weight=3), key("quiet", 0, 0)]
    after = [
        key("noisy", 100, 32),
        key("premium", 100, 78, weight=3),
        key("quiet", 0, 10),
        key("held", 50, 0, throttled=50),
        key("stopped", 50, 0, paused=True),
        key("new", 1, 7),
    ]
    found = shares(before, after)
    # 90 of 100 deliveries are left when "quiet" has had its 10, 89 when "new" has had its one.
    assert (found["noisy"].share, found["premium"].share) == (0.22, 0.68)
    assert found["noisy"].entitled == pytest.approx(0.89 / 4)
    assert found["premium"].entitled == pytest.approx(0.89 * 3 / 4)
    assert found["quiet"] == Share(0.1, 0.1)
    assert found["held"] == found["stopped"] == Share(0.0, 0.0)
    # Delivered before it was first seen: nobody knows when.
    assert found["new"].share == 0.0
    assert shares(before, before) == {}


def test_a_counted_key_keeps_its_deliveries_when_it_drains() -> None:
    def traffic(delivered: int) -> KeyTraffic:
        return KeyTraffic(0, delivered, 0, 0, 0, 0, 0, 0)

    before = [key("a", 5, 3, traffic=traffic(100))]
    after = [key("a", 5, 1, traffic=traffic(104))]
    assert shares(before, after) == {"a": Share(1.0, 1.0)}


def test_bars_mark_the_entitlement() -> None:
    assert bar(0.5, 0.5, 1.0) == "█████│     "
    assert bar(0.25, 1.0, 1.0) == "██▌       │"


def test_every_look_is_a_document(fila: Fila, new_queue: Callable[..., str]) -> None:
    queue = new_queue()
    fila("enqueue", queue, "--key", "acme").ok()
    looks = fila("top", "--count", "2", "--interval", "0.1", "--json").json_lines()
    assert [list(look) for look in looks] == [["at", "queues"]] * 2
    (row,) = [it for it in looks[0]["queues"] if it["queue"] == queue]
    assert (row["depth"], row["enqueued_per_second"]) == (1, None)
    assert {"kind": "nobody_consumes"} in row["troubles"]
    (row,) = [it for it in looks[1]["queues"] if it["queue"] == queue]
    assert row["delivered_per_second"] == 0.0
    words = ("top", queue, "--count", "2", "--interval", "0.1")
    first, second = fila(*words, "--json").json_lines()
    assert (first["queue"], first["per_key_stats"][0]["fairness_key"]) == (queue, "acme")
    assert second["acked_per_second"] == 0.0


def test_in_a_pipe_there_is_a_line_per_queue_and_look(fila: Fila, queue: str) -> None:
    lines = fila("top", "--count", "2", "--interval", "0.1").ok().splitlines()
    mine = [line for line in lines if f" {queue} " in line]
    assert re.match(rf"\d\d:\d\d:\d\d {queue} waiting 0 in flight 0 oldest 0ms", mine[0])
    assert "delivered 0/s" in mine[1]
    lines = fila("top", queue, "--count", "2", "--interval", "0.1").ok().splitlines()
    assert len(lines) == 2 and "waiting 0 in flight 0" in lines[0]


def test_count_needs_watch(offline: Fila) -> None:
    assert "pass --watch" in offline("stats", "q", "--count", "2").error(2)


class Terminal:
    """A command on a terminal of its own, typed at and looked at."""

    def __init__(self, fila: Fila, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 110, 0, 0))
        self._process = subprocess.Popen(
            [*COMMAND, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=fila.environment(TERM="xterm-256color"),
            start_new_session=True,
        )
        # Kept open, to see what the terminal is set to when the command has gone.
        self.theirs = theirs
        self.shown = ""

    def until(self, text: str) -> None:
        while text not in ESCAPES.sub("", self.shown):
            self.shown += os.read(self._ours, 65_536).decode()

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait(self) -> int:
        code = self._process.wait(60)
        os.set_blocking(self._ours, False)
        try:
            self.shown += os.read(self._ours, 1 << 20).decode()
        except BlockingIOError:
            pass
        return code

    def close(self) -> None:
        os.close(self._ours)
        os.close(self.theirs)


@pytest.mark.parametrize(("keys", "code"), [("q", 0), ("xq", 0)])
def test_q_ends_the_view_and_the_terminal_is_as_it_was(
    fila: Fila, queue: str, keys: str, code: int
) -> None:
    fila("enqueue", queue, "--key", "acme").ok()
    terminal = Terminal(fila, "top", queue, "--interval", "0.2")
    before = termios.tcgetattr(terminal.theirs)[3]
    terminal.until("acme")
    assert "\x1b[?1049h" in terminal.shown
    terminal.type(keys)
    assert terminal.wait() == code
    assert terminal.shown.rstrip().endswith("\x1b[?25h") or "\x1b[?1049l" in terminal.shown
    assert termios.tcgetattr(terminal.theirs)[3] == before
    terminal.close()


def test_the_view_of_one_queue_shows_shares_waits_and_consumers() -> None:
    """From a service, because a test cannot make a broker busy at will."""
    looks = iter(range(1_000))

    def answer(_: Any) -> admin_pb2.GetStatsResponse:
        look = next(looks)

        def stats(name: str, weight: int, per_look: int) -> admin_pb2.PerFairnessKeyStats:
            traffic = admin_pb2.KeyTraffic(
                delivered=per_look * look, wait_p50_ms=40 * weight, wait_p95_ms=2_500
            )
            return admin_pb2.PerFairnessKeyStats(
                key=name, pending_count=500, weight=weight, traffic=traffic
            )

        return admin_pb2.GetStatsResponse(
            depth=1_000,
            active_fairness_keys=3,
            per_key_stats=[stats("noisy", 1, 25), stats("premium", 3, 75)],
            consumers=[admin_pb2.ConsumerStats(number=7, in_flight=3, credit=5, key_id="k1")],
            waits=[admin_pb2.WaitStats(cause="throttle", count=9, p50_ms=100, p95_ms=200)],
        )

    with fake_broker({"GetStats": answer}) as (address, _):
        terminal = Terminal(Fila(address), "top", "orders", "--interval", "0.2")
        terminal.until("75.0%     75.0%")
        terminal.type("q")
        assert terminal.wait() == 0
        terminal.close()
        document = Fila(address)("top", "orders", "--count", "2", "--interval", "0.1", "--json")
    plain = ESCAPES.sub("", terminal.shown)
    for text in ("40ms", "2.5s", "Waited for: throttle 100ms (p95 200ms, 9x)", "CONSUMER", "k1"):
        assert text in plain, text
    assert "... and 1 more key with fewer waiting" in plain
    keys = json.loads(document.out.splitlines()[1])["per_key_stats"]
    assert [(it["share"], it["entitled_share"]) for it in keys] == [(0.25, 0.25), (0.75, 0.75)]


def test_a_broker_that_goes_away_is_waited_for() -> None:
    answer = admin_pb2.ListQueuesResponse(queues=[admin_pb2.QueueInfo(name="orders")])
    with fake_broker({"ListQueues": lambda _: answer}) as (address, _):
        terminal = Terminal(Fila(address), "top", "--interval", "0.2")
        terminal.until("orders")
    terminal.until("NO ANSWER, trying again")
    terminal.type("q")
    assert terminal.wait() == 0
    terminal.close()


def test_a_first_look_that_fails_is_an_error_on_the_first_screen(offline: Fila) -> None:
    terminal = Terminal(offline, "top")
    assert terminal.wait() == 1
    assert "\x1b[?1049h" not in terminal.shown
    assert "no broker answers at 127.0.0.1:1" in terminal.shown
    terminal.close()
