# SPDX-License-Identifier: AGPL-3.0-only
"""What telemetry costs: lifecycles through a broker with it off and one with it on, in turn.

On means: metrics are read, encoded and sent to a collector every ten seconds, /metrics is scraped
every five, and spans are made of the calls that are sampled.
The measure is the broker's processor time per message, so that neighbours on the machine count
little; rounds alternate, and medians are compared.
"""

import argparse
import asyncio
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import fila
from bench.broker import Measured, serving
from bench.lifecycle import both
from bench.report import Report

SCRAPE_S = 5.0


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=100_000, help="per round (100000)")
    parser.add_argument("--rounds", type=int, default=5, help="of each kind (5)")
    parser.add_argument("--keys", type=int, default=1000, help="fairness keys (1000)")
    parser.add_argument(
        "--sample-ratio", type=float, default=0.0, help="of calls that get a span (0)"
    )
    parser.set_defaults(batch=500, size=256)


def run(chosen: argparse.Namespace) -> None:
    report = Report(f"telemetry: {chosen.messages:,} messages, {chosen.keys:,} keys", chosen.json)
    with _collector() as endpoint, serving() as (off, _):
        settings = {
            "FILA_TELEMETRY__OTLP_ENDPOINT": endpoint,
            "FILA_TELEMETRY__SAMPLE_RATIO": str(chosen.sample_ratio),
        }
        with serving(**settings) as (on, http_address), _scraping(http_address):
            spent: dict[str, list[float]] = {"off": [], "on": []}
            for number in range(chosen.rounds + 1):
                for name, broker in (("off", off), ("on", on)):
                    cost = asyncio.run(_round(broker, f"round-{number}", chosen))
                    report.progress(f"{name}: {cost:.2f} us of the broker's time per message")
                    if number:  # the first of each warms up
                        spent[name].append(cost)
    before, after = median(spent["off"]), median(spent["on"])
    report.add("off", f"{before:.2f} us per message", off_us=before)
    report.add("on", f"{after:.2f} us per message", on_us=after)
    cost = after / before - 1
    report.add("cost", f"{cost:+.1%}", "under 3 %", cost=cost)
    report.show()


async def _round(broker: Measured, queue: str, chosen: argparse.Namespace) -> float:
    """Return the broker's microseconds for a message's whole life."""
    async with fila.AsyncClient(broker.address, timeout=60) as client:
        await client.create_queue(queue)
        began = broker.cpu_s()
        await both(client, queue, chosen.messages, chosen)
        spent: float = broker.cpu_s() - began
        count: int = chosen.messages
        return spent * 1e6 / count


@contextmanager
def _scraping(address: str) -> Iterator[None]:
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(SCRAPE_S):
            urllib.request.urlopen(f"http://{address}/metrics", timeout=30).read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _collector() -> Iterator[str]:
    """A collector that takes everything in and forgets it, in this process."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as pb

    def accept(request: bytes, context: object) -> bytes:
        return pb.ExportMetricsServiceResponse().SerializeToString()

    server = grpc.server(ThreadPoolExecutor(1))
    export = grpc.unary_unary_rpc_method_handler(accept)
    service = "opentelemetry.proto.collector.metrics.v1.MetricsService"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"Export": export}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
