# SPDX-License-Identifier: AGPL-3.0-only
"""Runs attacks in a process of its own, so that a hang or an abort kills this one and no other.

Reads a JSON list of {name, script} on standard input. For each attack it writes one JSON line
before and one after: {"start": name}, then {"name", "ends": [...], "worst_ms"}. An end is the text
of an error, or "answer". After every attack an innocent queue must still get its own answers.
"""

import json
import sys
from time import thread_time

from fila_server.errors import FilaError
from fila_server.hooks.hook import QueueHooks

CALLS = 3
HEADERS = {"tenant": "acme", "region": "eu"}
INNOCENT = "function on_enqueue(msg) return { fairness_key = msg.headers.tenant } end"


def say(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


def run(script: str) -> dict[str, object]:
    ends: list[str] = []
    worst = 0.0
    hooks = None
    for call in range(CALLS):
        started = thread_time()
        try:
            if hooks is None:
                hooks = QueueHooks(
                    "hostile",
                    on_enqueue_script=script,
                    on_hook_error="reject",
                    breaker_threshold=1000,
                )
            hooks.on_enqueue(HEADERS, 10, call)
            ends.append("answer")
        except FilaError as error:
            ends.append(error.message)
        worst = max(worst, thread_time() - started)
    return {"ends": ends, "worst_ms": worst * 1000}


def main() -> None:
    innocent = QueueHooks("innocent", on_enqueue_script=INNOCENT, on_hook_error="reject")
    for attack in json.load(sys.stdin):
        say({"start": attack["name"]})
        result = run(attack["script"])
        decision = innocent.on_enqueue(HEADERS, 10, 0)
        result["innocent"] = decision is not None and decision.fairness_key == "acme"
        say({"name": attack["name"], **result})


if __name__ == "__main__":
    main()
