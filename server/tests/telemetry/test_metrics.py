# SPDX-License-Identifier: AGPL-3.0-only
"""Metrics of a known workload: what an engine counted is what Prometheus and a collector get."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
from prometheus_client.parser import text_string_to_metric_families

from fila.v1 import admin_pb2 as pb
from fila_server.config import TelemetryConfig
from fila_server.runtime.metrics import Metrics
from fila_server.runtime.readings import Readings
from fila_server.storage.memory import MemoryStorage
from fila_server.telemetry.instruments import INSTRUMENTS
from fila_server.telemetry.otlp import Push
from fila_server.telemetry.prometheus import prometheus_name, render
from fila_server.telemetry.rows import Distribution, Row
from server.tests.runtime.driver import Driver, eventually
from server.tests.telemetry.collector import collecting


class Refusing(MetricExporter):
    """What a collector that is away amounts to."""

    def export(self, *_: Any, **__: Any) -> MetricExportResult:
        return MetricExportResult.FAILURE

    def force_flush(self, *_: Any, **__: Any) -> bool:
        return True

    def shutdown(self, *_: Any, **__: Any) -> None:
        return None


def edge() -> list[Row]:
    return [("fila.connections", (), 3), ("fila.auth.refused", (), 2)]


@pytest.fixture
async def driver() -> AsyncIterator[Driver]:
    driver = Driver(MemoryStorage()).start()
    yield driver
    driver.engine.stop()


@pytest.fixture
def readings(driver: Driver) -> Readings:
    return Readings(driver.engine, edge)


def value(rows: list[Row], name: str, **labels: str) -> Any:
    found = [it for it in rows if it[0] == name and dict(it[1]) == labels]
    assert len(found) == 1, f"{name} {labels}: {found}"
    return found[0][2]


async def work(driver: Driver) -> None:
    """Ten messages of ann, five of bob: two acked, one nacked, one dead-lettered, one leased."""
    await driver.create("q", max_attempts=1)
    await driver.admin(pb.SetConfigRequest(key="throttle:mail:rate", value="1"))
    for number in range(15):
        key = "ann" if number % 3 else "bob"
        keys = ["mail"] if number == 14 else []
        await driver.enqueue("q", fairness_key=key, throttle_keys=keys)
    messages = await driver.receive("q", 4)
    for message in messages[:2]:
        await driver.ack("q", message.id)
    await driver.nack("q", messages[2].id, error="no")


async def test_readings_are_those_of_the_workload(driver: Driver, readings: Readings) -> None:
    await work(driver)
    rows = await readings.read()
    assert value(rows, "fila.messages.enqueued", queue_id="q") == 15
    assert value(rows, "fila.messages.leased", queue_id="q") == 4
    assert value(rows, "fila.messages.acked", queue_id="q") == 2
    assert value(rows, "fila.messages.nacked", queue_id="q") == 1
    assert value(rows, "fila.messages.dead_lettered", queue_id="q") == 1
    assert value(rows, "fila.queue.depth", queue_id="q") == 11
    assert value(rows, "fila.queue.depth", queue_id="q.dlq") == 1
    assert value(rows, "fila.leases.active", queue_id="q") == 1
    assert value(rows, "fila.scheduler.drr.active_keys", queue_id="q") == 2
    assert value(rows, "fila.scheduler.drr.rounds", queue_id="q") == 2
    assert value(rows, "fila.scheduler.drr.keys_processed", queue_id="q") == 4
    for key, enqueued in (("ann", 10), ("bob", 5)):
        assert value(rows, "fila.fairness.enqueued", queue_id="q", fairness_key=key) == enqueued
        assert value(rows, "fila.fairness.throughput", queue_id="q", fairness_key=key) == 2
    turn = value(rows, "fila.messages.wait", queue_id="q", cause="turn")
    assert sum(turn.counts) == 4
    assert value(rows, "fila.engine.fsync_duration").counts


async def test_names_and_labels_are_those_of_the_table(driver: Driver, readings: Readings) -> None:
    await work(driver)
    await driver.create("hooked", on_enqueue_script="function on_enqueue(m) return {} end")
    rows = await readings.read()
    for name, labels, found in rows:
        instrument = INSTRUMENTS[name]
        assert tuple(label for label, _ in labels) == instrument.labels, name
        assert isinstance(found, Distribution) == (instrument.kind == "histogram"), name
    # Hooks need an engine with Lua; the rest of the table is there.
    missing = INSTRUMENTS.keys() - {row[0] for row in rows}
    assert {name for name in missing if not name.startswith("fila.lua.")} <= {
        "fila.fairness.fair_share_ratio"
    }


async def test_shares_are_those_since_the_reading_before(
    driver: Driver, readings: Readings
) -> None:
    await driver.create("q")
    for number in range(60):
        await driver.enqueue("q", fairness_key="ab"[number % 2], weight=1 + 2 * (number % 2))
    driver.engine.state.queues["q"].active_weight = 4  # as the review finds it
    await readings.read()
    await driver.receive("q", 20)
    rows = await readings.read()
    for key in "ab":
        ratio = value(rows, "fila.fairness.fair_share_ratio", queue_id="q", fairness_key=key)
        assert 0.8 < ratio < 1.2


async def test_prometheus_gets_all_of_it(driver: Driver, readings: Readings) -> None:
    await work(driver)
    rows = await readings.read()
    text = render(rows).decode()
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["fila_messages_enqueued_total", (("queue_id", "q"),)] == 15
    assert samples["fila_queue_depth", (("queue_id", "q"),)] == 11
    labels = (("cause", "turn"), ("queue_id", "q"))
    assert samples["fila_messages_wait_seconds_count", labels] == 4
    last = (*labels[:1], ("le", "+Inf"), *labels[1:])
    assert samples["fila_messages_wait_seconds_bucket", last] == 4


def test_prometheus_names_end_in_their_unit_once() -> None:
    assert prometheus_name("fila.queue.oldest_ready_age") == "fila_queue_oldest_ready_age_seconds"
    assert prometheus_name("fila.storage.log_bytes") == "fila_storage_log_bytes"
    assert prometheus_name("fila.process.cpu_seconds") == "fila_process_cpu_seconds"
    assert prometheus_name("fila.lua.execution_duration_us") == "fila_lua_execution_duration_us"


async def test_many_scrapes_read_the_broker_once(driver: Driver, readings: Readings) -> None:
    metrics = Metrics(TelemetryConfig(), readings)
    first = await metrics.scrape()
    await driver.create("q")
    assert await metrics.scrape() is first


async def test_a_collector_gets_them(driver: Driver, readings: Readings) -> None:
    await work(driver)
    with collecting() as (collector, address):
        settings = TelemetryConfig(otlp_endpoint=address, metrics_interval_ms=100)
        metrics = Metrics(settings, readings)
        metrics.start()
        found = collector.of_metrics.metrics
        await eventually(lambda: "fila.messages.enqueued" in found)
        await metrics.stop()
    points = {
        point.attributes[0].value.string_value: point
        for point in found["fila.messages.enqueued"].sum.data_points
    }
    assert points["q"].as_int == 15
    assert found["fila.messages.enqueued"].sum.is_monotonic
    assert found["fila.messages.wait"].histogram.data_points
    assert collector.of_metrics.resource["service.name"] == "fila"


async def test_a_dead_collector_is_told_once(
    driver: Driver, readings: Readings, caplog: pytest.LogCaptureFixture
) -> None:
    push = Push(TelemetryConfig(otlp_endpoint="http://127.0.0.1:9"), Refusing())
    for _ in range(3):
        push.send(await readings.read())
    assert [it.message for it in caplog.records if "collector" in it.message] == [
        "the collector does not take metrics; they are sent again and again"
    ]


async def test_labels_are_bounded_under_many_keys(driver: Driver, readings: Readings) -> None:
    """Twenty thousand that wait; `nox -s turns` lets a million come and go."""
    await driver.create("q")
    limit = driver.config.telemetry.max_keys
    for start in range(0, 20_000, 1000):
        await driver.enqueue_many("q", 1000, [f"k{start + n}" for n in range(1000)])
    for number in range(300):
        await driver.enqueue("q", fairness_key="k0", throttle_keys=[f"t{number}"])
    await driver.receive("q", 10_000)
    rows = await readings.read()
    keys = {dict(labels).get("fairness_key") for _, labels, _ in rows} - {None}
    assert len(keys) == limit + 1
    total = sum(found for name, _, found in rows if name == "fila.fairness.enqueued")  # type: ignore[misc]
    assert total == 20_300
    assert value(rows, "fila.fairness.enqueued", queue_id="q", fairness_key="other") == 19_800
    limits = {dict(labels).get("throttle_key") for _, labels, _ in rows} - {None}
    assert len(limits) <= limit + 1
