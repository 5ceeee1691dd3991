# SPDX-License-Identifier: AGPL-3.0-only
"""The full lifecycle through the Python SDK: enqueue, deliver, ack.

One client process, batches, a durable broker beside it. Three parts, each on messages of its own:
enqueue alone, consume and ack alone, and both at once, which is the figure that counts. A fourth
compares frames that are acked whole with frames that are acked message by message.
"""

import argparse
import asyncio
import time

import fila
from bench.broker import Measured, broker
from bench.report import Report, percentile

PINGS = 200
ROUNDS = 4  # of each way to ack, in turn


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=200_000, help="per part (200000)")
    parser.add_argument("--batch", type=int, default=1000, help="messages per request (1000)")
    parser.add_argument("--size", type=int, default=256, help="payload bytes (256)")
    parser.add_argument("--keys", type=int, default=20, help="fairness keys (20)")
    parser.add_argument("--sync", default="always", choices=["always", "interval", "never"])


def run(chosen: argparse.Namespace) -> None:
    title = f"lifecycle: {chosen.messages:,} x {chosen.size} B, batches of {chosen.batch}"
    report = Report(f"{title}, sync = {chosen.sync}", chosen.json)
    with broker(sync=chosen.sync) as measured:
        rates = asyncio.run(_measure(measured, chosen, report))
    for name, rate in rates.items():
        bar = "40,000 at least, 100,000 the aim" if name == "lifecycle" else ""
        unit = "us" if name.startswith("latency") else "/s"
        report.add(name, f"{rate:,.0f} {unit}", bar, **{name.replace(" ", "_"): rate})
    _shares(report, measured.spent)
    report.show()


async def _measure(
    measured: Measured, chosen: argparse.Namespace, report: Report
) -> dict[str, float]:
    async with fila.AsyncClient(measured.address, timeout=60) as client:
        for queue in ("warm", "one", "two", "ping"):
            await client.create_queue(queue)
        report.progress("warming up")
        await both(client, "warm", min(20_000, chosen.messages), chosen)
        report.progress("enqueue")
        enqueued = await _timed(produce(client, "one", chosen.messages, chosen), chosen.messages)
        report.progress("consume and ack")
        consumed = await _timed(consume(client, "one", chosen.messages, chosen), chosen.messages)
        report.progress("both at once")
        lifecycle = await _timed(both(client, "two", chosen.messages, chosen), chosen.messages)
        report.progress("whole frames, and message by message")
        for way, (broker_us, client_us) in (await _settling(client, measured, chosen)).items():
            text = f"{broker_us:.1f} + {client_us:.1f} us"
            note = "processor time of broker and client per message"
            report.add(f"receive and ack, {way}", text, note, **{f"ack_{way}": broker_us})
        report.progress("one at a time")
        waits = await _latencies(client)
    return {
        "enqueue": enqueued,
        "consume and ack": consumed,
        "lifecycle": lifecycle,
        "latency p50": percentile(waits, 0.5) * 1e6,
        "latency p99": percentile(waits, 0.99) * 1e6,
    }


async def _timed(work: object, count: int) -> float:
    began = time.perf_counter()
    await work  # type: ignore[misc]
    return count / (time.perf_counter() - began)


async def both(
    client: fila.AsyncClient, queue: str, count: int, chosen: argparse.Namespace
) -> None:
    """Enqueue, deliver and ack so many messages."""
    await asyncio.gather(
        produce(client, queue, count, chosen), consume(client, queue, count, chosen)
    )


async def produce(
    client: fila.AsyncClient, queue: str, count: int, chosen: argparse.Namespace
) -> None:
    """Two loops, so that a request is under way while the next one is encoded."""
    payload = b"x" * chosen.size
    template = [
        fila.EnqueueMessage(queue, None, payload, fairness_key=f"tenant-{n % chosen.keys}")
        for n in range(chosen.batch)
    ]
    left = count

    async def loop() -> None:
        nonlocal left
        while left > 0:
            batch = template[: min(left, chosen.batch)]
            left -= len(batch)
            for result in await client.enqueue_many(batch):
                result.unwrap()

    await asyncio.gather(loop(), loop())


async def consume(
    client: fila.AsyncClient, queue: str, count: int, chosen: argparse.Namespace
) -> None:
    acks: set[asyncio.Task[list[fila.FilaError | None]]] = set()
    batch: list[fila.AsyncConsumeMessage] = []
    left = count
    credit = 4 * chosen.batch
    async with client.consume(queue, max_in_flight=credit, batch_size=chosen.batch) as consumer:
        async for message in consumer:
            batch.append(message)
            left -= 1
            if len(batch) == chosen.batch or left == 0:
                acks.add(asyncio.create_task(client.ack_many(batch)))
                batch = []
                if len(acks) > 2 or left == 0:
                    done, acks = await asyncio.wait(
                        acks,
                        return_when=asyncio.ALL_COMPLETED if left == 0 else "FIRST_COMPLETED",
                    )
                    assert not any(error for ack in done for error in ack.result())
            if left == 0:
                return


async def _settling(
    client: fila.AsyncClient, measured: Measured, chosen: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """Microseconds per message of broker and client, by the way in which frames are acked."""
    await client.create_queue("frames")
    frames = max(1, chosen.messages // (2 * ROUNDS * chosen.batch))
    spent = {"whole": (0.0, 0.0), "one by one": (0.0, 0.0)}
    for _ in range(ROUNDS):
        for way, (broker_s, client_s) in spent.items():
            await produce(client, "frames", frames * chosen.batch, chosen)
            began = measured.cpu_s(), time.process_time()
            await _receive_and_ack(client, frames * chosen.batch, chosen.batch, way == "whole")
            broker_s += measured.cpu_s() - began[0]
            client_s += time.process_time() - began[1]
            spent[way] = broker_s, client_s
    count = ROUNDS * frames * chosen.batch
    return {way: (a / count * 1e6, b / count * 1e6) for way, (a, b) in spent.items()}


async def _receive_and_ack(
    client: fila.AsyncClient, count: int, batch: int, is_whole: bool
) -> None:
    """A frame without its last message is acked one by one; those come at the end."""
    last = []
    while count:
        frame = await client.receive("frames", batch, wait_ms=5000)
        count -= len(frame)
        if not is_whole:
            last.append(frame.pop())
        assert not any(await client.ack_many(frame))
    assert not any(await client.ack_many(last))


async def _latencies(client: fila.AsyncClient) -> list[float]:
    """Seconds from the call of enqueue to the message in a waiting consumer's hands."""
    waits = []
    async with client.consume("ping") as consumer:
        for _ in range(PINGS):
            began = time.perf_counter()
            enqueued = asyncio.create_task(client.enqueue("ping", payload=b"x"))
            message = await anext(consumer)
            waits.append(time.perf_counter() - began)
            await enqueued
            await message.ack()
    return waits


def _shares(report: Report, spent: dict[str, float]) -> None:
    if not spent:
        return
    cpu = spent["cpu_s"]
    core, storage = spent["core_s"], spent["storage_s"]
    for name, seconds in (("core", core), ("storage", storage), ("gRPC", cpu - core - storage)):
        share = seconds / cpu
        report.add(f"server time in {name}", f"{share:.0%}", "", **{f"share_{name.lower()}": share})
    per_group = spent["items"] / max(1, spent["groups"])
    report.add("items per group commit", f"{per_group:,.0f}", items_per_group=per_group)
    report.note(f"The broker's core is {'compiled' if spent['is_compiled'] else 'in Python'}.")
    report.note("One client process and the broker share the machine's cores; fsync as configured.")
