# SPDX-License-Identifier: AGPL-3.0-only
"""Brokers to be watched: one in good health, one with every trouble that can be made in seconds,
one whose volume has no room, and one that is gone. Each is a real process; what they are asked to
do is known, so what a scrape of them shows is known too.
"""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import fila
from fila import EnqueueMessage
from server.rules.engine import Recording
from server.tests.broker_process import BrokerProcess

KEY = "bootstrap-key-of-the-ward-0123456789"
# One scrape is a minute of the recording for alerts, so that ten minutes go by.
SCRAPES = 18
_PATIENCE_S = 60
# A page is made at most once a second.
_BETWEEN_S = 1.05
_TICK_S = 0.05
# Between two scrapes everybody works so often, however busy the machine is.
_ROUNDS = 5
_REFUSED = 15  # in a round: more than one a second, where a scrape is a minute

HOOK = """
function on_enqueue(msg)
  return { fairness_key = msg.headers.tenant, weight = 1, throttle_keys = { "mailgun" } }
end
"""
BROKEN_HOOK = 'function on_enqueue(msg) error("no") end'
TENANTS = {"acme": 3, "globex": 1}

_ON = {"FILA_HTTP__LISTEN_ADDR": "127.0.0.1:0", "FILA_SERVER__LOG_LEVEL": "error"}
_SETTINGS: dict[str, dict[str, str]] = {
    "healthy": {},
    "ill": {"FILA_AUTH__BOOTSTRAP_APIKEY": KEY},
    "full": {"FILA_STORAGE__MIN_FREE_BYTES": str(1 << 40)},  # more than any volume here has
    "gone": {},
}


def _furnish_healthy(client: fila.Client) -> None:
    client.create_queue("orders")


def _work_healthy(client: fila.Client) -> None:
    client.enqueue_many([EnqueueMessage("orders", fairness_key=key) for key in TENANTS])
    client.ack_many(client.receive("orders", 10))


def _furnish_ill(client: fila.Client) -> None:
    client.create_queue("orders")
    client.create_queue("mail", max_attempts=1, on_enqueue_script=HOOK)
    client.create_queue("broken", on_enqueue_script=BROKEN_HOOK)
    client.create_queue("slow", visibility_timeout_ms=1000)
    client.create_queue("alone")
    client.create_queue("patient")
    client.set_config_all(
        {
            "throttle:stripe:rate": "1",
            "throttle:bank:rate": "0.001",
            "throttle:mailgun:rate": "1000",
            "concurrency:warehouse:limit": "1",
        }
    )
    client.enqueue_many([EnqueueMessage("alone") for _ in range(5)])
    client.enqueue_many([EnqueueMessage("slow") for _ in range(400)])
    # More than is taken, so that keys take turns from the first scrape to the last.
    for _ in range(50):
        client.enqueue_many(
            EnqueueMessage("orders", fairness_key=key, weight=weight)
            for key, weight in TENANTS.items()
            for _ in range(20)
        )
    for key, limit in (("held", "stripe"), ("frozen", "bank")):
        message = EnqueueMessage("orders", fairness_key=key, throttle_keys=[limit])
        client.enqueue_many([message] * 100)


def _work_ill(client: fila.Client) -> None:
    client.enqueue_many(EnqueueMessage("orders", fairness_key=key) for key in TENANTS)
    messages = client.receive("orders", 6)
    client.ack_many(messages[1:])
    for message in messages[:1]:
        message.nack("not today")
    client.enqueue("mail", {"tenant": "acme"})
    for message in client.receive("mail", 5):
        message.nack("no such address")  # its only attempt
    client.enqueue("broken")
    client.ack_many(client.receive("broken", 5))
    client.receive("slow", 3)  # and never a word of them again
    _wait_for_everything(client)


def _wait_for_everything(client: fila.Client) -> None:
    """Let messages wait for what no other queue lets them wait for."""
    client.pause("patient")
    client.enqueue("patient")
    client.resume("patient")
    _ack_one(client)
    client.enqueue_many([EnqueueMessage("patient", throttle_keys=["warehouse"])] * 2)
    (first,) = client.receive("patient", 2)
    client.ack_many([first])
    _ack_one(client)
    client.enqueue("patient", delay_ms=5)
    _ack_one(client)


def _ack_one(client: fila.Client) -> None:
    (message,) = client.receive("patient", wait_ms=10_000)
    client.ack_many([message])


class Ward:
    """The brokers, and what works on them."""

    def __init__(self, folder: Path) -> None:
        self._brokers: dict[str, BrokerProcess] = {}
        for name, settings in _SETTINGS.items():
            (folder / name).mkdir()
            self._brokers[name] = BrokerProcess(folder / name, environment={**_ON, **settings})
        self._addresses: dict[str, str] = {}
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._rounds: dict[str, int] = {}
        self._turn = threading.Condition()  # so that no scrape finds work half done

    @contextmanager
    def open(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, broker in self._brokers.items():
                stack.callback(broker.close)
                broker.start()
                self._addresses[name] = broker.http_address
            self._brokers["gone"].terminate()
            healthy = stack.enter_context(fila.Client(self._brokers["healthy"].address))
            ill = stack.enter_context(fila.Client(self._brokers["ill"].address, api_key=KEY))
            _furnish_healthy(healthy)
            _furnish_ill(ill)
            for name, work in (
                ("healthy", lambda: _work_healthy(healthy)),
                ("ill", lambda: _work_ill(ill)),
                ("stranger", self._knock),
            ):
                self._rounds[name] = 0
                thread = threading.Thread(target=self._again, args=(name, work))
                thread.start()
                stack.callback(thread.join)
            stack.callback(self._stop.set)
            yield
        if self._failures:
            raise self._failures[0]

    def _again(self, name: str, work: Callable[[], None]) -> None:
        try:
            while not self._stop.wait(_TICK_S):
                with self._turn:
                    work()
                    self._rounds[name] += 1
                    self._turn.notify_all()
        except BaseException as failure:
            self._failures.append(failure)
            self._stop.set()

    def _knock(self) -> None:
        """Call with keys that nobody gave out."""
        with fila.Client(self._brokers["ill"].address, api_key="nobody-gave-me-this") as client:
            for _ in range(_REFUSED):
                try:
                    client.list_queues()
                except fila.UnauthenticatedError:
                    continue
                raise AssertionError("a bad key was taken")

    def pages(self) -> dict[str, str | None]:
        """Scrape all of them, when everybody has worked a while."""

        def is_time() -> bool:
            return self._stop.is_set() or min(self._rounds.values()) >= _ROUNDS

        with self._turn:
            assert self._turn.wait_for(is_time, _PATIENCE_S) and not self._failures, self._failures
            self._rounds = dict.fromkeys(self._rounds, 0)
            return {name: self._page(name) for name in self._addresses}

    def _page(self, name: str) -> str | None:
        headers = {"authorization": f"Bearer {KEY}"} if name == "ill" else {}
        request = urllib.request.Request(f"http://{self._addresses[name]}/metrics", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return str(answer.read().decode())
        except OSError:
            assert name == "gone", f"{name} does not answer"
            return None


def record(folder: Path) -> Recording:
    """Watch all brokers for a while."""
    ward = Ward(folder)
    recording = Recording()
    pause = threading.Event()
    with ward.open():
        for _ in range(SCRAPES):
            pause.wait(_BETWEEN_S)
            recording.add(ward.pages())
    return recording
