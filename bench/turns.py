# SPDX-License-Identifier: AGPL-3.0-only
"""The largest turn of every command and timer against a large queue: how long all others wait.

The core runs alone on a dict. A turn is one call of it; its work is counted in units, and its time
is the processor's, so that neighbours on the machine do not show. Where a command takes several
turns, the largest of them counts.
"""

import argparse
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.core import BATCH, QUEUE, Core, Shelf, Turn, acks
from bench.report import Report
from fila.v1 import admin_pb2 as admin
from fila.v1 import service_pb2 as service
from fila.v1.messages_pb2 import Message
from fila_server.core.commands import (
    Admin,
    CloseConsumer,
    Command,
    Extend,
    Nack,
    SettleGrants,
)

LETTERS = QUEUE + ".dlq"
HOUR_MS = 3_600_000
S = 10**9


class Size(NamedTuple):
    """How large the queue is. Most cases take a part of it, and say which."""

    messages: int

    @property
    def keys(self) -> int:
        return self.messages // 10

    def part(self, divisor: int) -> int:
        return max(1, self.messages // divisor)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--messages",
        type=int,
        default=1_000_000,
        help="in the queue, of a tenth as many keys, each with a lane of its own (1000000)",
    )
    parser.add_argument(
        "--most", type=int, default=0, help="fail if a turn does more units of work than this"
    )
    parser.add_argument("--only", default="", help="only groups whose name contains this")


@dataclass
class Meter:
    """Measures what is asked of a core, and notes the largest turn of each."""

    report: Report
    most: int = 0
    excesses: list[str] = field(default_factory=list)
    count: int = 0

    def __call__(self, what: str, core: Core, *commands: Command, waits_ns: int = 0) -> None:
        """Handle the commands, or let time pass, and all that follows from it."""
        core.advance(waits_ns)
        self.record(what, core.turns(*commands))

    def series(self, what: str, core: Core, steps: int, step_ns: int) -> None:
        """Let time pass in steps."""

        def turns() -> Iterator[Turn]:
            for _ in range(steps):
                core.advance(step_ns)
                yield from core.turns()

        self.record(what, turns())

    def record(self, what: str, turns: Iterable[Turn]) -> None:
        gc.collect()
        gc.disable()
        worst_ns = worst_units = total_ns = count = 0
        for turn in turns:
            worst_ns = max(worst_ns, turn.cpu_ns)
            worst_units = max(worst_units, turn.units)
            total_ns += turn.cpu_ns
            count += 1
        gc.enable()
        self.add(what, worst_ns, worst_units, total_ns, count)

    def add(self, what: str, worst_ns: int, units: int, total_ns: int, count: int) -> None:
        self.count += 1
        if self.most and units > self.most:
            self.excesses.append(f"{what}: {units:,} units")
        shown = f"{units:,}" if units else "-"
        text = f"{shown:>8}  {worst_ns / 1e6:10,.1f} ms"
        rest = f"{total_ns / 1e6:,.1f} ms in {count:,} turns"
        row = {"units": units, "ms": worst_ns / 1e6, "total_ms": total_ns / 1e6, "turns": count}
        self.report.add(what, text, rest, **{what: row})
        self.report.progress(f"{what}: {' '.join(text.split())}")


def run(chosen: argparse.Namespace) -> None:
    size = Size(chosen.messages)
    title = f"turns: {size.messages:,} messages, {size.keys:,} keys, {size.keys:,} lanes"
    report = Report(title, chosen.json, ("largest turn", "units and time of it", "in all"))
    meter = Meter(report, chosen.most)
    for group in GROUPS:
        if chosen.only in group.__name__:
            group(meter, size)
            gc.collect()
    report.note("Processor time of the core alone; what the store takes to read is not in it.")
    report.show()
    if chosen.most:
        failed = len(meter.excesses)
        print(f"turns: {meter.count - failed} passed, {failed} failed")
    if meter.excesses:
        raise SystemExit(f"more than {chosen.most:,} units: {'; '.join(meter.excesses)}")


def names(count: int, keys: int) -> list[str]:
    return [f"tenant-{n % keys}" for n in range(count)]


def wide(size: Size) -> tuple[Core, list[str]]:
    """A queue of many keys, each with one lane of its own throttle key that nobody configured."""
    core = Core(Shelf())
    core.create(visibility_timeout_ms=HOUR_MS)
    ids: list[str] = []
    requests = []
    for n in range(size.messages):
        key = n % size.keys
        requests.append(
            service.EnqueueRequest(
                queue=QUEUE,
                payload=b"x",
                fairness_key=f"tenant-{key}",
                throttle_keys=[f"account-{key}"],
            )
        )
        if len(requests) == BATCH:
            command = core.drafts(requests)
            ids += core.ask(command)
            requests = []
    return core, ids


# --- One large queue ------------------------------------------------------------------------------


def reads(meter: Meter, size: Size) -> None:
    core, ids = wide(size)
    for n in range(size.part(1000)):
        core.create(f"other-{n}")
    meter(f"list {2 * size.part(1000) + 2:,} queues", core, Admin(0, admin.ListQueuesRequest()))
    meter("stats", core, Admin(0, admin.GetStatsRequest(queue=QUEUE)))
    every = admin.GetStatsRequest(queue=QUEUE, max_keys=2**32 - 1)
    meter("stats of all keys", core, Admin(0, every))
    key = admin.ExplainRequest(queue=QUEUE, fairness_key="tenant-7")
    meter("explain a key", core, Admin(0, key))
    last = admin.ExplainRequest(queue=QUEUE, message_id=ids[-1])
    meter("explain the last message", core, Admin(0, last))
    meter("peek 1,000", core, Admin(0, admin.PeekRequest(queue=QUEUE, limit=1000)))
    rare = admin.PeekRequest(queue=QUEUE, limit=1000, fairness_key="nobody")
    meter("peek a key that has nothing", core, Admin(0, rare))


def traffic(meter: Meter, size: Size) -> None:
    core, _ = wide(size)
    batch = core.config.limits.max_batch_messages
    requests = [
        service.EnqueueRequest(queue=QUEUE, payload=b"x", fairness_key=f"new-{n}")
        for n in range(batch)
    ]
    meter(f"enqueue a batch of {batch:,}, as many new keys", core, core.drafts(requests))
    credit = min(core.config.limits.max_in_flight, size.messages // 2)
    found = core.lease(3 * batch)
    parts = [found[start : start + batch] for start in range(0, 3 * batch, batch)]
    meter(f"ack a batch of {batch:,}", core, acks(parts[0]))
    meter(f"nack a batch of {batch:,}", core, nacks(parts[1], error="no"))
    meter(f"extend a batch of {batch:,}", core, extensions(parts[2]))
    for what, action in (
        ("ack", {"ack": service.GrantAck()}),
        ("nack", {"nack": service.GrantNack(error="no")}),
        ("extend", {"extend": service.GrantExtension()}),
    ):
        found = core.lease(BATCH)
        settlement = service.GrantSettlement(
            queue=QUEUE, lease_token=found[0].metadata.lease_token, **action
        )
        meter(f"{what} a grant of {len(found):,}", core, SettleGrants(0, [settlement]))
    consumer, turn = core.open(credit, BATCH)
    unsent = [grant for _, grant, _ in turn.effects.frames]
    meter.record(f"deliver to a stream with credit {credit:,}", [turn])
    meter("close it with its frames unsent", core, CloseConsumer(consumer, unsent))


def removal(meter: Meter, size: Size) -> None:
    core, ids = wide(size)
    middle = admin.CancelMessageRequest(queue=QUEUE, message_id=ids[size.messages // 2])
    meter("cancel one message", core, Admin(0, middle))
    one = admin.PurgeRequest(queue=QUEUE, fairness_key="tenant-5")
    meter("purge one key", core, Admin(0, one))
    meter("purge", core, Admin(0, admin.PurgeRequest(queue=QUEUE)))
    del core, ids
    gc.collect()
    core, _ = wide(size)
    meter("delete the queue", core, Admin(0, admin.DeleteQueueRequest(queue=QUEUE)))


def settings(meter: Meter, size: Size) -> None:
    core, _ = wide(size)
    pairs = (
        ("set a rate pattern over all lanes", "throttle.account-*", "10,10"),
        ("change it", "throttle.account-*", "20,20"),
        ("set a concurrency pattern over all lanes", "concurrency:account-*:limit", "3"),
        ("set a weight pattern over all keys", f"weight:{QUEUE}:tenant-*", "3"),
    )
    for what, key, value in pairs:
        meter(what, core, Admin(0, admin.SetConfigRequest(key=key, value=value)))
    meter("remove the rate pattern", core, Admin(0, admin.DeleteConfigRequest(key=pairs[0][1])))


# --- One long lane --------------------------------------------------------------------------------


def long_lane(meter: Meter, size: Size) -> None:
    core = Core(Shelf())
    core.create(visibility_timeout_ms=HOUR_MS, retry_delay_ms=5000)
    core.enqueue(["one"] * (size.messages // 2), size=1)
    found = core.lease(50)
    for message in found:
        core.turn([nacks([message], error="no")])
        core.advance(S // 100)
    core.enqueue(["one"] * (size.messages // 2), size=1)
    core.advance(4 * S + 4 * S // 10)
    meter.series("50 delayed retries into a lane of all", core, 60, S // 100)
    ids = core.enqueue(["one"] * size.part(1000), ttl_ms=10_000, size=1)
    last = Admin(0, admin.ExplainRequest(queue=QUEUE, message_id=ids[0]))
    meter("explain a message at the end of it", core, last)
    meter(f"TTL of {len(ids):,} behind it", core, waits_ns=11 * S)


# --- Everything at once ---------------------------------------------------------------------------


def storms(meter: Meter, size: Size) -> None:
    many = size.messages * 3 // 10
    keys = names(many, size.part(1000))
    for what, delay_ms, ttl_ms in (("delayed", 10_000, 0), ("with one TTL", 0, 10_000)):
        core = Core(Shelf())
        core.create()
        core.enqueue(keys, size=1, delay_ms=delay_ms, ttl_ms=ttl_ms)
        meter(f"{many:,} {what}, due at once", core, waits_ns=11 * S)
    core = Core(Shelf())
    core.create(visibility_timeout_ms=10_000)
    core.enqueue(keys, size=1)
    for _ in range(0, many, 50_000):
        core.lease(50_000)
    meter(f"{many:,} leases, expired at once", core, waits_ns=11 * S)
    core = Core(Shelf())
    core.create(idempotency_window_ms=1000)
    fill_idempotent(core, many)
    meter.series(f"idempotency sweep over {many:,} keys, a minute of it", core, 6, 10 * S + 1)


def fill_idempotent(core: Core, count: int) -> None:
    for start in range(0, count, BATCH):
        command = core.drafts(
            [
                service.EnqueueRequest(queue=QUEUE, payload=b"x", idempotency_key=f"once-{n}")
                for n in range(start, min(count, start + BATCH))
            ]
        )
        core.ask(command)


# --- Dead letters ---------------------------------------------------------------------------------


def letters(meter: Meter, size: Size) -> None:
    many = size.messages // 5
    core = Core(Shelf())
    core.create(max_attempts=1)
    core.enqueue(names(many, size.part(500)), size=1)
    taken: list[Message] = []
    while len(taken) < many:
        found = core.lease(10_000)
        core.turn([nacks(found, error="provider said no")])
        taken += found
    filtered = admin.RedriveRequest(dlq_queue=LETTERS, error_contains="nothing says this")
    meter(f"redrive by a filter that fits none of {many:,}", core, Admin(0, filtered))
    one = admin.RedriveRequest(dlq_queue=LETTERS, message_ids=[taken[-1].id])
    meter("redrive one by its id", core, Admin(0, one))
    meter(f"redrive all {many:,}", core, Admin(0, admin.RedriveRequest(dlq_queue=LETTERS)))


# --- Limits ---------------------------------------------------------------------------------------


def limits(meter: Meter, size: Size) -> None:
    core = Core(Shelf())
    core.create()
    core.create("other")
    core.enqueue(names(size.keys, size.keys), queue="other", size=1)
    for n in range(200):
        core.enqueue(["one"], throttle_keys=[f"customer-{n}"])
    found = core.lease(200)
    items = [
        service.NackRequest(
            queue=QUEUE,
            message_id=message.id,
            retry_after_ms=1000,
            throttle_key=message.metadata.throttle_keys[0],
        )
        for message in found
    ]
    meter("backpressure on 200 new throttle keys", core, Nack(0, items))
    core = Core(Shelf())
    core.create(visibility_timeout_ms=12 * HOUR_MS)
    served = size.keys // 10
    core.enqueue(names(2 * size.keys, size.keys), throttle_keys=["provider"], size=1)
    first = admin.SetConfigRequest(key="throttle.provider", value=f"1,{served}")
    meter("set the first rate of a key that all lanes carry", core, Admin(0, first))
    core.lease(served)  # these stand at the end of the line now
    parked = 2 * size.keys - served
    meter(f"purge {parked:,} parked lanes' messages", core, purge_all())


def purge_all() -> Command:
    return Admin(0, admin.PurgeRequest(queue=QUEUE))


def recovery(meter: Meter, size: Size) -> None:
    core = Core(Shelf())
    core.create(visibility_timeout_ms=HOUR_MS)
    limiters, leased = size.part(200), size.part(50)
    for n in range(limiters):
        core.admin(admin.SetConfigRequest(key=f"throttle.account-{n}", value="1000,1000"))
    core.enqueue(names(leased, 100), throttle_keys=["free"], size=1)
    core.lease(leased)
    spent = core.recover()
    meter.add(f"recovery, {limiters:,} limiters, {leased:,} leases", spent, 0, spent, 1)
    core, _ = wide(size)
    spent = core.recover()
    meter.add("recovery of the whole queue", spent, 0, spent, 1)


def nacks(messages: Sequence[Message], error: str) -> Nack:
    items = [service.NackRequest(queue=QUEUE, message_id=it.id, error=error) for it in messages]
    return Nack(0, items)


def extensions(messages: Sequence[Message]) -> Extend:
    items = [
        service.LeaseExtension(queue=QUEUE, message_id=it.id, extend_ms=HOUR_MS) for it in messages
    ]
    return Extend(0, items)


GROUPS: tuple[Callable[[Meter, Size], None], ...] = (
    reads,
    traffic,
    removal,
    settings,
    long_lane,
    storms,
    letters,
    limits,
    recovery,
)
