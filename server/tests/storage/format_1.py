# SPDX-License-Identifier: AGPL-3.0-only
"""How server/tests/process/data/format-1.tar.gz was made, with the last broker of format 1.

    python -m server.tests.storage.format_1 FOLDER

leaves format-1.tar.gz and format-1.json, which says what the directory holds, in FOLDER. A broker
of a later format cannot make it again; for the next format write another, beside this one.
"""

import json
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from fila import Client, EnqueueMessage
from server.tests.broker_process import BrokerProcess

ADMIN_KEY = "bootstrap-key-of-the-fixture"
MINUTES_MS = 600_000
DAY_MS = 86_400_000
# The broker makes these anew.
LEFT_OUT = ("LOG", "LOCK", "fila.lock", "options", "OPTIONS-", "rocksdict-config.json")

ON_ENQUEUE = """
function on_enqueue(msg)
  return {fairness_key = msg.headers["tenant"], weight = 3, throttle_keys = {"mail"}}
end
"""
ON_FAILURE = """
function on_failure(msg, error, attempts)
  if attempts >= 2 then return {action = "dlq"} end
  return {action = "retry", delay_ms = 0}
end
"""


def first_life(client: Client) -> None:
    """What was written out to tables at a clean stop."""
    client.create_queue("orders", max_attempts=3, visibility_timeout_ms=MINUTES_MS)
    client.create_queue("slow", retry_delay_ms=MINUTES_MS)
    client.create_queue("hooked", on_enqueue_script=ON_ENQUEUE, on_failure_script=ON_FAILURE)
    client.create_queue("halted")
    client.create_queue("bulk")
    client.create_queue("gone")
    client.enqueue("gone", None, b"with its queue")
    client.delete_queue("gone")
    client.enqueue_many(
        EnqueueMessage("bulk", {"n": str(n)}, b"%d" % n, fairness_key=f"tenant-{n % 7}")
        for n in range(60)
    )
    assert client.ack_many(client.receive("bulk", 10)) == [None] * 10
    client.enqueue("orders", None, b"dies of nacks")
    for error in ("first error", "second error", "third error"):
        (message,) = client.receive("orders")
        message.nack(error)
    client.enqueue("hooked", {"tenant": "acme"}, b"dies of its hook")
    for error in ("refused", "refused again"):
        (message,) = client.receive("hooked")
        message.nack(error)
    client.set_config("weight:orders:gold", "7")
    client.set_config("throttle:mail:rate", "5")
    client.set_config("throttle:mail:burst", "50")
    client.set_config("throttle.stripe:eu", "2,4")
    client.set_config("concurrency:db:limit", "3")
    client.set_config("color", "blue")


def second_life(client: Client) -> dict[str, Any]:
    """What was only in the log when the broker was killed; returns what peeking does not show."""
    client.pause("orders", "frozen")
    client.pause("halted")
    client.enqueue("orders", {"k": "v", "empty": ""}, b"waits after a nack", fairness_key="gold")
    (message,) = client.receive("orders")
    message.nack("an error")
    (message,) = client.receive("orders")
    message.nack("and another", retry_after_ms=MINUTES_MS)
    client.enqueue_many([EnqueueMessage("orders", None, b"leased %d" % n) for n in range(3)])
    leased = client.receive("orders", 3)
    client.enqueue("orders", None, b"failed and back in its lane")
    (message,) = client.receive("orders")
    message.nack("try again")
    client.enqueue("slow", None, b"waits for its retry")
    (message,) = client.receive("slow")
    message.nack("slow down")
    client.enqueue("orders", None, b"delayed", delay_ms=MINUTES_MS)
    client.enqueue("orders", None, b"mortal", ttl_ms=DAY_MS)
    client.enqueue("orders", None, b"both", delay_ms=MINUTES_MS, ttl_ms=DAY_MS)
    client.enqueue("orders", None, b"frozen", fairness_key="frozen")
    client.enqueue("orders", None, b"throttled", throttle_keys=["stripe:eu", "db"], throttle_cost=2)
    client.enqueue("halted", None, b"halted")
    once = client.enqueue("orders", None, b"once", idempotency_key="order-1")
    client.enqueue("hooked", {"tenant": "umbrella"}, b"hooked")
    return {
        "leases": {message.id: message.lease_token for message in leased},
        "idempotent": {"key": "order-1", "id": once},
    }


def found(client: Client) -> dict[str, Any]:
    """What a client sees of the queues, the settings and the messages."""
    messages = []
    queues = sorted(queue.name for queue in client.list_queues())
    for queue in queues:
        position = 0
        while True:
            page = client.peek(queue, 1000, from_position=position)
            messages += [
                {
                    "queue": queue,
                    "id": row.message.id,
                    "payload": row.message.payload.decode(),
                    "headers": dict(row.message.headers),
                    "fairness_key": row.message.fairness_key,
                    "weight": row.message.weight,
                    "throttle_keys": list(row.message.throttle_keys),
                    "attempts": row.message.attempt_count,
                    "error": row.message.last_error,
                    "state": str(row.state),
                }
                for row in page.messages
            ]
            position = page.next_position
            if not position:
                break
    return {"queues": queues, "config": client.list_config(), "messages": messages}


def api_key(address: str, *arguments: str) -> str:
    """Create an API key with the command line, whose words outlive a change of the contract."""
    command = [sys.executable, "-m", "fila_server.cli.app", "--addr", address]
    command += ["--api-key", ADMIN_KEY, "--json", "auth", "create", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    secret: str = json.loads(done.stdout)["secret"]
    return secret


def build(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        broker = BrokerProcess(Path(scratch), config=f'[auth]\nbootstrap_apikey = "{ADMIN_KEY}"\n')
        try:
            broker.start()
            with Client(broker.address, api_key=ADMIN_KEY, timeout=60) as client:
                first_life(client)
            facts: dict[str, Any] = {
                "superadmin": api_key(broker.address, "operator", "--superadmin"),
                "limited": api_key(broker.address, "billing", "--allow", "produce:orders"),
            }
            assert broker.terminate() == 0
            broker.start()
            with Client(broker.address, api_key=ADMIN_KEY, timeout=60) as client:
                facts |= second_life(client)
                facts |= found(client)
            facts["wall_ns"] = time.time_ns()
            broker.kill()
        finally:
            broker.close()
        with tarfile.open(folder / "format-1.tar.gz", "w:gz") as archive:
            for path in sorted(broker.data.iterdir()):
                if not path.name.startswith(LEFT_OUT):
                    archive.add(path, path.name)
    (folder / "format-1.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
