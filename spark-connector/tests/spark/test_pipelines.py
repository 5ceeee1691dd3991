# SPDX-License-Identifier: AGPL-3.0-only
"""The examples, end to end."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from broker import Queue, texts
from examples import backfill, dlq_triage, drain_to_parquet, enrich_stream
from pyspark.sql import SparkSession

import fila

pytestmark = pytest.mark.spark

LIMIT_S = 200.0


def test_backfill_stores_every_row_once_and_starves_nobody(
    spark: SparkSession, queue: Queue, report: Path
) -> None:
    rows = 20_000
    address = queue.options["address"]
    for part in (4, 3):  # the second time with other partitions, as another run would
        table = backfill.orders(spark, rows).repartition(part)
        backfill.backfill(table, address, queue.name, report)
    first, second = (json.loads(line) for line in report.read_text().splitlines())
    assert (first["done"], first["duplicate"]) == (rows, 0)
    assert (second["done"], second["duplicate"]) == (0, rows)
    stats = queue.client.stats(queue.name, max_keys=1000)
    assert {key.key: key.pending_count for key in stats.per_key_stats}["whale"] == rows // 2
    # A live message behind all of it is served in the first round.
    live = queue.client.enqueue(queue.name, payload=b"live", fairness_key="quiet")
    received = queue.client.receive(queue.name, 200)
    assert live in [message.id for message in received]


def test_drain_writes_each_message_and_empties_the_queue(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    queue.fill(texts(500), "acme")
    address, folder = queue.options["address"], str(tmp_path)
    assert drain_to_parquet.drain(spark, address, queue.name, folder) == 500
    queue.fill(texts(40, "late"))
    assert drain_to_parquet.drain(spark, address, queue.name, folder) == 40
    assert queue.counts() == (0, 0)
    rows = spark.read.parquet(f"{folder}/messages").collect()
    found = Counter(bytes(row.payload).decode() for row in rows)
    assert found == Counter(texts(500) + texts(40, "late"))
    assert {row.fairness_key for row in rows} >= {"acme"}


def dead_letter(queue: Queue, tenant: str, error: str, count: int) -> set[str]:
    """Makes messages fail for the last time, and returns their ids."""
    queue.fill(texts(count, tenant), tenant)
    messages = queue.client.receive(queue.name, count)
    assert queue.client.nack_many(messages, error) == [None] * count
    return {message.id for message in messages}


def test_triage_counts_by_error_and_tenant_and_redrives_the_selection(
    spark: SparkSession, make_queue: Callable[..., Queue]
) -> None:
    queue = make_queue(max_attempts=1)
    address, dlq = queue.options["address"], f"{queue.name}.dlq"
    repairable = dead_letter(queue, "acme", "timeout after 5 s", 30)
    repairable |= dead_letter(queue, "beta", "timeout after 9 s", 10)
    dead_letter(queue, "beta", "no such user", 20)
    letters = dlq_triage.dead_letters(spark, address, dlq)
    found = [(row.error, row.tenant, row.messages) for row in dlq_triage.summary(letters).collect()]
    assert found == [
        ("timeout after 5 s", "acme", 30),
        ("no such user", "beta", 20),
        ("timeout after 9 s", "beta", 10),
    ]
    chosen = letters.where("last_error LIKE 'timeout%'").cache()
    assert chosen.count() == 40
    for _ in range(2):
        dlq_triage.redrive(chosen, address)
    assert {each.message.id for each in queue.peek()} == repairable
    left = queue.client.peek(dlq, 1000).messages
    assert Counter(each.message.last_error for each in left) == Counter({"no such user": 20})


def test_enriched_messages_are_in_the_other_queue_once(
    spark: SparkSession, make_queue: Callable[..., Queue], tmp_path: Path
) -> None:
    source, target = make_queue(), make_queue()
    address = source.options["address"]
    people = ["ana", "bo", "zed"]
    orders = [{"order_id": n, "customer": people[n % 3], "amount": 10 * n} for n in range(120)]
    messages = [
        fila.EnqueueMessage(source.name, {"trace": "t"}, json.dumps(order).encode(), "acme")
        for order in orders
    ]
    assert all(not result.error for result in source.client.enqueue_many(messages))
    customers = spark.createDataFrame(
        [("ana", "PT"), ("bo", "SE")], "customer STRING, country STRING"
    )
    # As a query does that dies before its ack: half of the messages are in the other queue already.
    peeked = spark.read.format("fila").options(**source.options, maxMessages=60).load()
    before = enrich_stream.enriched(peeked, customers)
    before.write.format("fila").options(**target.options).mode("append").save()
    assert target.counts() == (60, 0)
    stream = spark.readStream.format("fila").options(**source.options).load()
    query = enrich_stream.start(
        enrich_stream.enriched(stream, customers),
        address,
        target.name,
        str(tmp_path / "checkpoint"),
        is_endless=False,
    )
    assert query.awaitTermination(LIMIT_S)
    assert source.counts() == (0, 0)
    found = [each.message for each in target.peek()]
    assert {(message.fairness_key, message.headers["trace"]) for message in found} == {
        ("acme", "t")
    }
    countries = {"ana": "PT", "bo": "SE"}
    wanted = Counter(
        (order["order_id"], order["amount"], countries.get(str(order["customer"])))
        for order in orders
    )
    got = [json.loads(message.payload) for message in found]
    assert Counter((row["order_id"], row["amount"], row.get("country")) for row in got) == wanted
