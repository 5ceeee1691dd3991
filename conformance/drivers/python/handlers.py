# SPDX-License-Identifier: AGPL-3.0-only
"""What the driver's workers do with a message: what its payload says. Written for both clients."""

import asyncio
import inspect
import json
import os
import threading
import time
from typing import Any

import fila

_EXIT_STATUS = 9


class Workshop:
    """One worker of the runner's, and a record of its handlings."""

    def __init__(self) -> None:
        self.worker: Any = None
        self.run: Any = None  # what `stop_worker` waits for
        self._changed = threading.Condition()
        self._handled: list[dict[str, Any]] = []
        self._batches: list[int] = []
        self._running = 0
        self._most_running = 0

    def handle(self, given: Any) -> None:
        """A handler that blocks."""
        orders = self._begin(given)
        try:
            time.sleep(orders.get("sleep_ms", 0) / 1000)
            self._finish(given, orders)
        finally:
            self._end(given)

    async def handle_async(self, given: Any) -> None:
        """A handler that awaits."""
        orders = self._begin(given)
        try:
            await asyncio.sleep(orders.get("sleep_ms", 0) / 1000)
            done = self._finish(given, orders)
            if inspect.isawaitable(done):
                await done
        finally:
            self._end(given)

    def _begin(self, given: Any) -> dict[str, Any]:
        with self._changed:
            self._running += 1
            self._most_running = max(self._most_running, self._running)
        payload = (given[0] if isinstance(given, list) else given).payload
        return dict(json.loads(payload)) if payload else {}

    def _finish(self, given: Any, orders: dict[str, Any]) -> Any:
        how, text = orders.get("then", "return"), orders.get("text", "")
        if how == "fail":
            raise RuntimeError(text)
        if how == "dead_letter":
            raise fila.DeadLetter(text)
        if how == "backpressure":
            raise fila.Backpressure(orders["retry_after_ms"] / 1000, orders.get("throttle_key"))
        if how == "ack":
            return (given[0] if isinstance(given, list) else given).ack()
        if how == "exit":
            os._exit(_EXIT_STATUS)
        return None

    def _end(self, given: Any) -> None:
        batch = given if isinstance(given, list) else [given]
        with self._changed:
            self._running -= 1
            self._batches.append(len(batch))
            self._handled += [
                {
                    "message_id": message.id,
                    "payload": message.payload,
                    "attempt_count": message.attempt_count,
                }
                for message in batch
            ]
            self._changed.notify_all()

    def wait(self, count: int, seconds: float) -> dict[str, Any]:
        """What was handled, once `count` have ended or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._handled) >= count, seconds)
            return {
                "handled": list(self._handled),
                "running": self._running,
                "most_running": self._most_running,
                "batches": list(self._batches),
            }
