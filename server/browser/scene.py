# SPDX-License-Identifier: AGPL-3.0-only
"""A busy broker to look at: tenants of several weights, limits, a hook, dead letters, a queue that
nobody consumes, one that is paused, and names that are markup.

The traffic is paced: a few hundred messages a second, until it is told to stop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import fila
from fila import EnqueueMessage

ERRORS = (
    "card declined: insufficient funds",
    "HTTP 502 from the provider",
    "no such address: 550 5.1.1 user unknown",
)
# As strangers would write them.
HOSTILE = "<img src=x onerror=\"window.hacked='key'\">"
HOSTILE_ERROR = "<script>window.hacked='error'</script><b>'\"&lt; boom"

TENANTS = {"acme": 3, "globex": 1, "initech": 1, "umbrella": 2, HOSTILE: 1}
HOOK = """
function on_enqueue(msg)
  return { fairness_key = msg.headers.tenant, weight = 1, throttle_keys = { "mailgun" } }
end
"""
_TICK_S = 0.1


def furnish(client: fila.Client) -> None:
    """Make the queues, the limits and the dead letters."""
    client.create_queue("orders", max_attempts=3)
    client.create_queue("mail", max_attempts=1, on_enqueue_script=HOOK)
    for name in ("webhooks", "reports/daily", "exports"):
        client.create_queue(name)
    client.set_config_all(
        {
            "throttle:stripe:rate": "10",
            "throttle:stripe:burst": "20",
            "concurrency:warehouse:limit": "8",
            "throttle:mailgun:rate": "50",
            "weight:orders:acme": "3",
            "mail.footer": "Sent with care. " * 8,
        }
    )
    _kill_some(client)
    many = [EnqueueMessage("webhooks", payload=b"{}", fairness_key=f"shop-{n}") for n in range(40)]
    client.enqueue_many(many)
    client.enqueue("reports/daily", {}, b"pdf", fairness_key="finance")
    client.pause("reports/daily")


def _kill_some(client: fila.Client) -> None:
    """Let messages die of a few errors."""
    dying = [
        EnqueueMessage(
            "mail",
            headers={"tenant": tenant, "to": f"{HOSTILE}@example.com"},
            payload=f'{{"subject": "{HOSTILE}", "number": {number}}}'.encode(),
        )
        for number in range(8)
        for tenant in ("acme", "globex", HOSTILE)
    ]
    for result in client.enqueue_many(dying):
        result.unwrap()
    left = len(dying)
    while left:
        for message in client.receive("mail", left, wait_ms=1000):
            tenant = message.fairness_key
            error = HOSTILE_ERROR if tenant == HOSTILE else ERRORS[len(tenant) % len(ERRORS)]
            message.nack(error)
            left -= 1


class Traffic:
    """Threads that produce and consume until they are stopped."""

    def __init__(self, client: fila.Client) -> None:
        self._client = client
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._produce, self._consume_orders, self._consume_mail)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)

    def _produce(self) -> None:
        while not self._stop.wait(_TICK_S):
            batch = [
                EnqueueMessage(
                    "orders",
                    payload=b"order",
                    fairness_key=tenant,
                    weight=weight,
                    throttle_keys=_limits(tenant, number),
                )
                for number in range(8)
                for tenant, weight in TENANTS.items()
            ]
            batch += [
                EnqueueMessage("mail", headers={"tenant": tenant}, payload=b"mail")
                for tenant in ("acme", "globex", "initech")
            ]
            self._client.enqueue_many(batch)

    def _consume_orders(self) -> None:
        with self._client.consume("orders", max_in_flight=60, batch_size=20) as consumer:
            began = time.monotonic()
            held = []
            for done, message in enumerate(consumer):
                held.append(message)
                if self._stop.is_set():
                    return
                if len(held) == 20:
                    self._client.ack_many(held)
                    held = []
                    # 120 a second, far less than comes in.
                    time.sleep(max(0.0, began + done / 120 - time.monotonic()))

    def _consume_mail(self) -> None:
        while not self._stop.wait(_TICK_S):
            self._client.ack_many(self._client.receive("mail", 10, wait_ms=100))


def _limits(tenant: str, number: int) -> tuple[str, ...]:
    if tenant == "globex":
        return ("stripe",)
    return ("warehouse",) if tenant == "umbrella" and number % 2 else ()


@contextmanager
def busy(address: str, api_key: str | None = None) -> Iterator[fila.Client]:
    """Furnish a broker and keep it busy inside."""
    with fila.Client(address, api_key=api_key) as client:
        furnish(client)
        traffic = Traffic(client)
        traffic.start()
        try:
            yield client
        finally:
            traffic.stop()
