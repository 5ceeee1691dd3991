# SPDX-License-Identifier: AGPL-3.0-only
"""Metrics on their way out: pushed to a collector every so often, and scraped by Prometheus.

Reading happens on the owner's thread, a little at a time. What is made of a reading (text,
protobuf) is made on another thread, so that it holds up nobody for longer than the interpreter lets
it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from fila_server.config import TelemetryConfig
from fila_server.runtime.readings import Readings

if TYPE_CHECKING:
    from fila_server.telemetry.otlp import Push

log = logging.getLogger(__name__)

# However many scrape, the broker is read once in so long.
_SCRAPE_S = 1.0


class Metrics:
    """Reads the broker for whoever wants its metrics."""

    def __init__(self, telemetry: TelemetryConfig, readings: Readings) -> None:
        self._telemetry = telemetry
        self._readings = readings
        self._scraping = asyncio.Lock()
        self._scraped_s = 0.0
        self._scrape = b""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Push from now on, if there is a collector to push to."""
        if self._telemetry.otlp_endpoint:
            from fila_server.telemetry.otlp import Push  # OpenTelemetry is not loaded for nothing

            log.info("sending metrics to %s", self._telemetry.otlp_endpoint)
            self._task = asyncio.ensure_future(self._push(Push(self._telemetry)))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def scrape(self) -> bytes:
        """Return what Prometheus reads."""
        from fila_server.telemetry.prometheus import render

        async with self._scraping:
            if time.monotonic() - self._scraped_s > _SCRAPE_S:
                rows = await self._readings.read()
                self._scrape = await asyncio.to_thread(render, rows)
                self._scraped_s = time.monotonic()
            return self._scrape

    async def _push(self, push: Push) -> None:
        try:
            while True:
                await asyncio.sleep(self._telemetry.metrics_interval_ms / 1000)
                try:
                    await asyncio.to_thread(push.send, await self._readings.read())
                except Exception:
                    log.exception("a defect in the metrics; the broker goes on")
        finally:
            await asyncio.to_thread(push.close)
