# SPDX-License-Identifier: AGPL-3.0-only
"""A driver that answers from a table in its first argument: op -> list of replies, the last stays.

A reply may also be "silence" (none comes), "exit" (the process ends), "garbage" (no JSON), or
{"after_ms": n, "then_exit": status, ...}.
"""

import json
import os
import sys
import threading
import time
from typing import Any

TABLE: dict[str, list[Any]] = json.loads(sys.argv[1])
COUNTS: dict[str, int] = {}
LOCK = threading.Lock()


def say(line: str) -> None:
    with LOCK:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def serve(request: dict[str, Any]) -> None:
    op = request["op"]
    replies = TABLE.get(op, [{"ok": {}}])
    with LOCK:
        number = COUNTS.get(op, 0)
        COUNTS[op] = number + 1
    reply = replies[min(number, len(replies) - 1)]
    if reply == "silence":
        return
    if reply == "exit":
        sys.stderr.write("goodbye\n")
        sys.stderr.flush()
        sys.exit(3)
    if reply == "garbage":
        say("this is not JSON")
        return
    time.sleep(reply.pop("after_ms", 0) / 1000)
    status = reply.pop("then_exit", None)
    if reply.get("ok") == "echo":
        reply = {"ok": request}
    say(json.dumps({"id": request["id"], **reply}))
    if status is not None:
        os._exit(status)


for line in sys.stdin:
    request = json.loads(line)
    if TABLE.get(request["op"]) == ["exit"]:
        serve(request)
    threading.Thread(target=serve, args=(request,), daemon=True).start()
