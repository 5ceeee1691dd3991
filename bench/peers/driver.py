# SPDX-License-Identifier: AGPL-3.0-only
"""A Python client process: `python -m bench.peers.driver SPEC`. The Go program has the same face.

It takes a workload as JSON, says READY when all is imported and connected, begins when it reads a
line, and prints one JSON object of results.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.peers import tenants
from bench.peers.openloop import OpenLoop
from bench.peers.peer import Client, Outgoing, Peer
from bench.peers.roster import PEERS

READY = "READY"
SENDERS = 16  # blocked calls that an open loop survives before its own lateness is what it measures


def main() -> None:
    spec = json.loads(sys.argv[1])
    workload = WORKLOADS[spec["what"]]
    peer = PEERS[spec["peer"]]
    client = peer.client(spec["address"])
    print(READY, flush=True)
    sys.stdin.readline()
    began_cpu = time.process_time()
    result = workload(peer, client, spec)
    result["client_cpu_s"] = time.process_time() - began_cpu
    print(json.dumps(result), flush=True)
    client.close()


def lifecycle(peer: Peer, client: Client, spec: dict[str, Any]) -> dict[str, Any]:
    """Enqueue all, then receive and ack all; or one of both, where another process has the rest."""
    queue, count, window = spec["queue"], spec["messages"], spec["window"]
    result: dict[str, Any] = {"messages": count}
    if spec["role"] != "consume":
        payload = b"x" * spec["bytes"]
        distinct = [Outgoing(payload, f"tenant-{number}") for number in range(spec["keys"])]
        messages = (distinct * (count // len(distinct) + 1))[:count]
        began = time.perf_counter()
        if spec["is_single"]:
            client.send_singly(queue, messages, window)
        else:
            client.produce(queue, messages, window)
        result["enqueue_s"] = time.perf_counter() - began
    if spec["role"] != "produce":
        began = time.perf_counter()
        received = client.consume(queue, count, window)
        result["consume_s"] = time.perf_counter() - began
        if received != count * spec["bytes"]:
            raise RuntimeError(f"{count} messages came with {received} bytes of payload in all")
    return result


def latency(peer: Peer, client: Client, spec: dict[str, Any]) -> dict[str, Any]:
    """An open loop: messages leave when they are due, however long others take."""
    senders = [peer.client(spec["address"]) for _ in range(SENDERS)]
    loop = OpenLoop(client, senders, spec)
    loop.run()
    for sender in senders:
        sender.close()
    return {"delivered": loop.delivered.encoded(), "confirmed": loop.confirmed.encoded()}


WORKLOADS: dict[str, Callable[[Peer, Client, dict[str, Any]], dict[str, Any]]] = {
    "lifecycle": lifecycle,
    "latency": latency,
    "quiet": tenants.quiet,
    "shares": tenants.shares,
    "limit": tenants.limit,
}

if __name__ == "__main__":
    main()
