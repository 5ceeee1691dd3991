# SPDX-License-Identifier: AGPL-3.0-only
"""Writers as Spark uses them, without a JVM: made in one place, pickled, run in another."""

import json
import pickle
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from broker import Broker, Queue, texts
from fila_spark import READ_SCHEMA, ColumnError, FilaDataSource, OptionError
from fila_spark.report import PartitionReport
from fila_spark.sender import RejectedError
from fila_spark.writer import StaleLeaseError
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema

import fila

TEXT_MAP = pa.map_(pa.string(), pa.string())


class Write:
    """One write; `run` is one attempt at a partition."""

    def __init__(self, columns: pa.Schema, options: dict[str, str], **more: object) -> None:
        given = {**options, **{name: str(value) for name, value in more.items()}}
        source = FilaDataSource(given)
        self.writer: Any = source.writer(schema=from_arrow_schema(columns), overwrite=False)
        self.messages: list[WriterCommitMessage | None] = []

    def run(self, *batches: pa.RecordBatch) -> PartitionReport:
        copy = pickle.loads(pickle.dumps(self.writer))
        report: PartitionReport = copy.write(iter(batches))
        self.messages.append(pickle.loads(pickle.dumps(report)))
        return report

    def commit(self) -> None:
        pickle.loads(pickle.dumps(self.writer)).commit(self.messages)


def batch(payloads: list[str], **columns: list[Any]) -> pa.RecordBatch:
    kinds = {"headers": TEXT_MAP, "weight": pa.int32()}
    arrays = {"payload": pa.array(payloads, pa.string())}
    for name, values in columns.items():
        arrays[name] = pa.array(values, kinds.get(name))
    return pa.RecordBatch.from_pydict(arrays)


PAYLOAD = pa.schema([("payload", pa.string())])


def test_counts_say_what_became_of_the_rows(queue: Queue) -> None:
    write = Write(PAYLOAD, queue.options, batchRows=10)
    first = write.run(batch(texts(25)), batch(texts(25, "b")))
    assert (first.done, first.duplicate, first.rejected) == (50, 0, 0)
    assert first.queues == {queue.name: 50}
    assert first.payload_bytes == sum(len(text) for text in texts(25) + texts(25, "b"))
    second = write.run(batch(texts(25, "b")), batch(texts(25)))
    assert (second.done, second.duplicate) == (0, 50)
    assert queue.payloads() == Counter(texts(25) + texts(25, "b"))


def test_two_attempts_at_the_same_time_store_once(queue: Queue) -> None:
    write = Write(PAYLOAD, queue.options, batchRows=50)
    rows = texts(500) + texts(100)
    attempts = [
        threading.Thread(target=write.run, args=(batch(order),)) for order in (rows, rows[::-1])
    ]
    for attempt in attempts:
        attempt.start()
    for attempt in attempts:
        attempt.join()
    assert len(write.messages) == 2
    assert queue.payloads() == Counter(rows)


def test_two_writes_of_the_same_rows_are_two_writes(queue: Queue) -> None:
    for _ in range(2):
        Write(PAYLOAD, queue.options).run(batch(texts(5)))
    assert queue.payloads() == Counter(texts(5) * 2)


def test_a_column_of_keys_decides_where_it_is_not_null(queue: Queue) -> None:
    rows = batch(texts(3), idempotency_key=["k1", "k1", None])
    write = Write(rows.schema, queue.options)
    assert write.run(rows).done == 2
    assert Write(rows.schema, queue.options).run(rows).done == 1
    assert queue.payloads() == Counter({"m0": 1, "m2": 2})


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (batch([None]), 'column "payload" is null'),  # type: ignore[list-item]
        (batch(["a"], queue=pa.array([None], pa.string())), 'column "queue" is null'),
        (batch(["a"], headers=[[("x", None)]]), 'the value of "x" is null'),
        (batch(["a"], weight=[-1]), 'column "weight" is -1'),
        (batch(["a"], throttle_keys=[["p", None]]), 'column "throttle_keys" contains null'),
    ],
)
def test_a_row_that_cannot_be_a_message_names_its_column(
    broker: Broker, queue: Queue, rows: pa.RecordBatch, text: str
) -> None:
    options = {"address": broker.address} if "queue" in rows.schema.names else queue.options
    with pytest.raises(ColumnError) as caught:
        Write(rows.schema, options).run(rows)
    assert text in str(caught.value)


def test_a_queue_that_a_row_names_must_exist(broker: Broker) -> None:
    rows = batch(["a"], queue=["nowhere"])
    with pytest.raises(RejectedError, match='queue "nowhere"'):
        Write(rows.schema, {"address": broker.address}, onRejected="count").run(rows)


def test_a_full_queue_is_waited_for_and_then_reported(queue: Queue) -> None:
    queue.client.update_queue(queue.name, max_messages=10)
    write = Write(PAYLOAD, queue.options, batchRows=5, retryForMs=500)
    with pytest.raises(fila.QueueFullError):
        write.run(batch(texts(20)))
    assert queue.payloads().total() == 10

    def make_room() -> None:
        time.sleep(0.5)
        queue.client.update_queue(queue.name, max_messages=0)

    room = threading.Thread(target=make_room)
    room.start()
    patient = Write(PAYLOAD, queue.options, batchRows=5, retryForMs=60_000)
    report = patient.run(batch(texts(20, "p")))
    room.join()
    assert report.done == 20
    assert report.retries > 0


def test_a_write_outlives_a_restart_of_the_broker(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.start()
    try:
        with fila.Client(broker.address, timeout=60) as client:
            queue = Queue(client, broker.address)
            options = {**queue.options, "timeoutMs": "2000"}
            write = Write(PAYLOAD, options, batchRows=20, maxInFlight=2, maxRatePerTask=200)
            attempt = threading.Thread(target=write.run, args=(batch(texts(600)),))
            attempt.start()
            time.sleep(0.5)
            broker.stop()
            broker.start()
            attempt.join(120)
            (report,) = write.messages
            assert isinstance(report, PartitionReport)
            assert report.done + report.duplicate == 600
            assert queue.payloads() == Counter(texts(600))
    finally:
        broker.stop()


def test_commit_says_and_writes_what_was_done(
    queue: Queue, report: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write = Write(PAYLOAD, queue.options, reportPath=report, runId="r7")
    write.run(batch(texts(3)))
    write.run(batch(texts(3)))
    write.commit()
    assert "fila: enqueued 3 messages, 3 were duplicates; run r7" in capfd.readouterr().err
    line = json.loads(report.read_text())
    assert (line["operation"], line["run_id"], line["batch_id"]) == ("enqueue", "r7", None)
    assert [part["done"] for part in line["partitions"]] == [3, 0]


def test_abort_says_what_is_left_behind(queue: Queue, capfd: pytest.CaptureFixture[str]) -> None:
    write = Write(PAYLOAD, queue.options)
    write.run(batch(texts(3)))
    write.writer.abort([write.messages[0], None])
    text = capfd.readouterr().err
    assert "the write failed; 1 of 2 partitions were complete: enqueued 3 messages" in text


def test_progress_is_told_in_a_long_write(queue: Queue, capfd: pytest.CaptureFixture[str]) -> None:
    write = Write(PAYLOAD, queue.options, progressSeconds=1, maxRatePerTask=20)
    write.run(batch(texts(60)))
    assert "fila: partition 0: enqueued 20 messages" in capfd.readouterr().err
    quiet = Write(PAYLOAD, queue.options, progressSeconds=0)
    quiet.run(batch(texts(60)))
    assert capfd.readouterr().err == ""


def leased(queue: Queue, count: int, **columns: list[str]) -> pa.RecordBatch:
    messages = queue.client.receive(queue.name, count)
    assert len(messages) == count
    return pa.RecordBatch.from_pydict(
        {
            "queue": [message.queue for message in messages],
            "message_id": [message.id for message in messages],
            "lease_token": [message.lease_token for message in messages],
            **columns,
        }
    )


def test_acks_are_counted_apart_from_what_was_gone_and_what_was_stale(queue: Queue) -> None:
    queue.fill(texts(6))
    rows = leased(queue, 6)
    ids, tokens = rows["message_id"].to_pylist(), rows["lease_token"].to_pylist()
    queue.client.ack(queue.name, ids[0], tokens[0])
    queue.client.nack(queue.name, ids[1], "", tokens[1])
    queue.client.nack(queue.name, ids[2], "", tokens[2])
    assert len(queue.client.receive(queue.name, 1)) == 1  # one of them is leased to another now
    write = Write(rows.schema, {"address": queue.options["address"]}, operation="ack", batchRows=2)
    report = write.run(rows)
    assert (report.done, report.duplicate, report.stale) == (3, 1, 2)
    assert report.queues == {queue.name: 3}
    with pytest.raises(StaleLeaseError, match="2 leases had ended"):
        write.commit()
    lenient = Write(rows.schema, queue.options, operation="ack", onStaleAck="count")
    lenient.messages = write.messages
    lenient.commit()


def test_nacks_keep_each_rows_error(queue: Queue) -> None:
    queue.fill(texts(3))
    rows = leased(queue, 3, error=["too slow", "too fast", "too slow"])
    assert Write(rows.schema, queue.options, operation="nack").run(rows).done == 3
    errors = Counter(each.message.last_error for each in queue.peek())
    assert errors == Counter({"too slow": 2, "too fast": 1})


def test_redrive_moves_the_chosen_and_no_others(make_queue: Any) -> None:
    queue = make_queue(max_attempts=1)
    queue.fill(texts(6))
    assert queue.client.nack_many(queue.client.receive(queue.name, 6), "bad") == [None] * 6
    dlq = f"{queue.name}.dlq"
    ids = [each.message.id for each in queue.client.peek(dlq, 10).messages]
    rows = pa.RecordBatch.from_pydict({"message_id": ids[:4]})
    options = {"address": queue.options["address"], "queue": dlq, "operation": "redrive"}
    write = Write(rows.schema, options)
    first, second = write.run(rows), write.run(rows)
    assert (first.done, first.duplicate, second.done, second.duplicate) == (4, 0, 0, 4)
    assert {each.message.id for each in queue.peek()} == set(ids[:4])


def test_a_stream_cannot_settle(queue: Queue) -> None:
    source = FilaDataSource({**queue.options, "operation": "ack"})
    with pytest.raises(OptionError, match="a streaming write cannot ack"):
        source.streamWriter(schema=READ_SCHEMA, overwrite=False)


def test_settling_names_the_column_that_is_null(queue: Queue) -> None:
    rows = pa.RecordBatch.from_pydict(
        {"message_id": pa.array([None], pa.string()), "lease_token": ["t"]}
    )
    with pytest.raises(ColumnError, match='column "message_id" is null'):
        Write(rows.schema, queue.options, operation="ack").run(rows)
