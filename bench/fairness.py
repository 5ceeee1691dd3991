# SPDX-License-Identifier: AGPL-3.0-only
"""What fairness, throttling and hooks cost and deliver, against plain FIFO in the same run.

The core runs alone, on a store that keeps nothing, so the figures are the scheduler's own. FIFO is
the same core with one fairness key for everybody and a turn as long as a frame.
"""

import argparse
import asyncio
import gc
import itertools
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import fila
from bench import lifecycle
from bench.broker import broker
from bench.core import QUEUE, Core, Turn, acks, messages_in
from bench.report import Report, percentile
from fila.v1 import admin_pb2
from fila.v1.messages_pb2 import Message
from fila_server.core.commands import CloseConsumer, Command, FrameTaken
from fila_server.core.schedule.limiter import Limiter
from fila_server.hooks.hook import QueueHooks

ROUNDS = 5
HOOK = """
function on_enqueue(msg)
  return { fairness_key = msg.headers.tenant, weight = 2, throttle_keys = { msg.headers.provider } }
end
function on_failure(msg, error, attempts)
  if attempts > 3 or error == "no such address" then return { action = "dlq" } end
  return { action = "retry", delay_ms = 1000 * 2 ^ attempts }
end
"""
MESSAGE_ID = "0190a5b0-0000-7000-8000-000000000001"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=100_000, help="per measurement (100000)")
    parser.add_argument(
        "--keys",
        type=int,
        nargs="+",
        default=[10, 1000, 100_000],
        help="numbers of fairness keys (10 1000 100000)",
    )


def run(chosen: argparse.Namespace) -> None:
    report = Report(f"fairness: {chosen.messages:,} messages", chosen.json)
    _cost(report, chosen.messages, chosen.keys)
    asyncio.run(_whole(report, chosen.messages))
    _shares(report, chosen.keys)
    _quiet_tenant(report)
    _overshoot(report)
    _parked(report, chosen.keys)
    _bucket_decision(report)
    _hook(report)
    report.note("Medians of rounds taken in turn. Core: without gRPC and disk; broker: with both.")
    report.show()


# --- The cost of fairness -------------------------------------------------------------------------


def _cost(report: Report, count: int, keys: list[int]) -> None:
    """Time for the whole lifecycle in the core with one key, and with many, in turn."""
    cases = {1: "FIFO (one key)", **{number: f"{number:,} keys" for number in keys}}
    times: dict[int, list[float]] = {number: [] for number in cases}
    for turn in range(ROUNDS):
        report.progress(f"cost of fair turns, round {turn + 1} of {ROUNDS}")
        for number in cases:
            many = max(count, 4 * number)  # keys with a backlog, not single messages
            times[number].append(_lifecycle_ns(many, number) / many)
    fifo = median(times[1])
    report.add("deliver and ack, core alone, FIFO", f"{fifo / 1000:.2f} us", fifo_ns=fifo)
    for number in keys:
        extra = median(each - base for each, base in zip(times[number], times[1], strict=True))
        text = f"{extra / 1000:+.2f} us"
        report.add(f"the same with {number:,} fair keys", text, "", **{f"extra_ns_{number}": extra})


def _lifecycle_ns(count: int, keys: int) -> int:
    """Deliver and ack a backlog; the enqueue is the same for all and is left out."""
    core = _core(quantum=1000 if keys == 1 else 0)
    names = [f"tenant-{number}" for number in range(keys)]
    core.enqueue(list(itertools.islice(itertools.cycle(names), count)))
    gc.collect()
    gc.disable()
    began = core.spent_ns
    for _ in _deliveries(core, 4000, 1000):
        pass
    spent = core.spent_ns - began
    gc.enable()
    return spent


def _core(quantum: int = 0) -> Core:
    core = Core()
    core.create(quantum=quantum)
    return core


def _deliveries(core: Core, credit: int, batch: int) -> Iterator[list[Message]]:
    """Yield the messages of one turn after the other until nothing more comes; acks as it goes."""
    consumer, turn = core.open(credit, batch)
    while turn.effects.frames:
        frames = [messages_in(frame) for _, _, frame in turn.effects.frames]
        yield [message for frame in frames for message in frame]
        commands: list[Command] = [acks(frame) for frame in frames]
        turn = core.turn([*commands, *(FrameTaken(consumer) for _ in frames)])
    core.turn([CloseConsumer(consumer, [])])


async def _whole(report: Report, count: int) -> None:
    """What fair turns add to the broker's work on whole lifecycles, gRPC and disk included.

    With a backlog, where turns matter, and with a queue that is nearly empty all the time, where
    every key comes and goes with each of its messages.
    """
    settings = {"FIFO": (1, 1000), "fair": (1000, 0)}
    backlog: dict[str, list[float]] = {name: [] for name in settings}
    empty: dict[str, list[float]] = {name: [] for name in settings}
    with broker() as measured:
        async with fila.AsyncClient(measured.address, timeout=60) as client:
            for name, (_, quantum) in settings.items():
                await client.create_queue(name, quantum=quantum)
            for turn in range(ROUNDS + 1):
                report.progress(f"whole lifecycles, round {turn + 1} of {ROUNDS + 1}")
                for name, (keys, _) in settings.items():
                    chosen = argparse.Namespace(batch=1000, size=256, keys=keys)
                    before = measured.cpu_s()
                    await lifecycle.produce(client, name, count, chosen)
                    await lifecycle.consume(client, name, count, chosen)
                    between = measured.cpu_s()
                    backlog[name].append((between - before) / count * 1e6)
                    await lifecycle.both(client, name, count, chosen)
                    empty[name].append((measured.cpu_s() - between) / count * 1e6)
    for what, bar, spent in (
        ("with a backlog", "< 5 %", backlog),
        ("in an almost empty queue", "", empty),
    ):
        fifo, fair = (median(times[1:]) for times in spent.values())  # the first one warms up
        figure = what.split()[-1]
        text = f"{fifo:.1f} us"
        report.add(f"broker per lifecycle {what}, FIFO", text, "", **{f"fifo_us_{figure}": fifo})
        cost = fair / fifo - 1
        text = f"{cost:+.1%}"
        report.add(f"cost of 1,000 fair keys {what}", text, bar, **{f"cost_{figure}": cost})


# --- Shares ---------------------------------------------------------------------------------------


def _shares(report: Report, keys: list[int]) -> None:
    """The largest error of any key's share in a window of whole rounds, weights 1 to 4."""
    for number in keys:
        report.progress(f"shares of {number:,} keys")
        weights = {f"tenant-{n}": 1 + n % 4 for n in range(number)}
        core = _core()
        rounds = 40 if number <= 1000 else 2  # a round of 100,000 keys is 250,000 deliveries
        for weight in (1, 2, 3, 4):
            names = [name for name, own in weights.items() if own == weight]
            core.enqueue(names * (weight * (rounds + 1)), weight=weight)
        window = sum(weights.values()) * rounds
        served: dict[str, int] = dict.fromkeys(weights, 0)
        for message in itertools.islice(_messages(core, 1000, 100), window):
            served[message.metadata.fairness_key] += 1
        total = sum(weights.values())
        error = max(
            abs(served[name] / window / (weight / total) - 1) for name, weight in weights.items()
        )
        report.add(
            f"largest share error, {number:,} keys",
            f"{error:.1%}",
            "< 5 %",
            **{f"share_error_{number}": error},
        )


def _messages(core: Core, credit: int, batch: int) -> Iterator[Message]:
    return itertools.chain.from_iterable(_deliveries(core, credit, batch))


def _quiet_tenant(report: Report) -> None:
    """Deliveries before a lone message comes out behind 50 tenants with 10,000 messages each."""
    report.progress("a quiet tenant behind 500,000 messages")
    places = {}
    for name, noisy in (("FIFO", ["default"]), ("Fila", [f"noisy-{n}" for n in range(50)])):
        core = _core()
        core.enqueue(list(itertools.islice(itertools.cycle(noisy), 500_000)))
        core.enqueue(["default" if name == "FIFO" else "quiet"], headers={"quiet": "yes"})
        found = (n for n, message in enumerate(_messages(core, 100, 10), 1) if message.headers)
        places[name] = next(found)
    report.add(
        "a quiet tenant's message comes out as",
        f"number {places['Fila']:,}",
        f"a few dozen; FIFO: number {places['FIFO']:,}",
        quiet_place=places["Fila"],
        quiet_place_fifo=places["FIFO"],
    )


# --- Limits ---------------------------------------------------------------------------------------


def _overshoot(report: Report) -> None:
    """Deliveries beyond rate x t + burst, over a simulated hour with 1,000 waiting tenants."""
    report.progress("a bucket for an hour")
    rate, burst = 50.0, 20
    core = _core()
    core.admin(admin_pb2.SetConfigRequest(key="throttle.provider", value=f"{rate},{burst}"))
    core.enqueue([f"tenant-{n % 1000}" for n in range(200_000)], throttle_keys=["provider"])
    times: list[int] = []
    consumer, turn = core.open(credit=1000, batch=100)
    end_ns = core.now().mono_ns + 3600 * 10**9
    while core.now().mono_ns < end_ns:
        frames = [messages_in(frame) for _, _, frame in turn.effects.frames]
        times += [core.now().mono_ns] * sum(map(len, frames))
        turn = _take(core, consumer, frames)
    lowest, worst = 0.0, 0.0
    for count, at in enumerate(times):
        level = count - rate * (at - times[0]) / 1e9
        lowest = min(lowest, level)
        worst = max(worst, level + 1 - lowest - burst)
    over = max(0.0, round(worst, 6))
    used = len(times) / (rate * 3600 + burst)
    report.add("bucket overshoot in any window", f"{over:g}", "none", overshoot=over)
    report.add("of what the bucket allows, used", f"{used:.1%}", "100 %", used=used)


def _take(core: Core, consumer: Any, frames: list[list[Message]]) -> Turn:
    """Settle what came, or wait for the next if nothing did."""
    if not frames:
        core.wait()
    commands = [each for frame in frames for each in (FrameTaken(consumer), acks(frame))]
    return core.turn(commands)


def _parked(report: Report, keys: list[int]) -> None:
    """What one delivery costs when so many tenants wait for one bucket: a token wakes one lane."""
    for number in keys:
        report.progress(f"{number:,} tenants that wait for one bucket")
        core = _core()
        core.admin(admin_pb2.SetConfigRequest(key="throttle.provider", value="1000,1"))
        core.enqueue([f"tenant-{n}" for n in range(number)] * 2, throttle_keys=["provider"])
        consumer, turn = core.open(credit=1000, batch=100)
        spent, woken = 0, 0
        while woken < min(number, 2000):
            frames = [messages_in(frame) for _, _, frame in turn.effects.frames]
            turn = _take(core, consumer, frames)
            spent += turn.cpu_ns
            woken += sum(len(messages_in(frame)) for _, _, frame in turn.effects.frames)
        each = spent / woken / 1000
        what = f"a delivery, {number:,} tenants parked on its bucket"
        report.add(what, f"{each:.0f} us", "", **{f"parked_us_{number}": each})


def _bucket_decision(report: Report) -> None:
    limiter = Limiter("provider")
    limiter.configure(1e6, 1e6, 0, "", 0)
    count = 200_000

    def decide() -> None:
        for now_ns in range(0, count * 1000, 1000):
            if not limiter.blocked_until(1, now_ns):
                limiter.take(1, now_ns)

    each = _best(decide) / count
    report.add("one bucket decision", f"{each:.0f} ns", "< 1 us", bucket_ns=each)


def _best(work: Callable[[], None]) -> int:
    """The shortest of several runs: on a shared machine the others measure the neighbours."""
    times = []
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        work()
        times.append(time.thread_time_ns() - began)
    return min(times)


# --- Hooks ----------------------------------------------------------------------------------------


def _hook(report: Report) -> None:
    report.progress("hooks")
    hooks = QueueHooks(QUEUE, on_enqueue_script=HOOK, on_failure_script=HOOK)
    headers = [
        {"tenant": f"tenant-{n % 100}", "provider": f"p{n % 7}", "kind": "mail"}
        for n in range(20_000)
    ]

    def enqueue(each: dict[str, str], now_ns: int) -> object:
        return hooks.on_enqueue(each, 64, now_ns)

    def fail(each: dict[str, str], now_ns: int) -> object:
        return hooks.on_failure(
            each, MESSAGE_ID, 2, "provider said no", "nack", now_ns, 64, "tenant-1", ("p1",)
        )

    for hook, call in (("on_enqueue", enqueue), ("on_failure", fail)):
        waits = _waits(call, headers)
        for name, part in (("p50", 0.5), ("p99", 0.99)):
            value = percentile(waits, part) / 1000
            bar = "< 50 us" if name == "p99" else "a few us"
            figure = {f"{hook}_{name}_us": value}
            report.add(f"{hook} call {name}", f"{value:.1f} us", bar, **figure)
    assert hooks.stats().failures == 0, hooks.stats()


def _waits(
    call: Callable[[dict[str, str], int], object], headers: list[dict[str, str]]
) -> list[int]:
    waits = []
    gc.collect()
    gc.disable()
    for each in headers:
        began = time.perf_counter_ns()
        assert call(each, began) is not None
        waits.append(time.perf_counter_ns() - began)
    gc.enable()
    return waits
