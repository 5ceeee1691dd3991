# SPDX-License-Identifier: AGPL-3.0-only
"""One driver process: requests out, replies in, matched by id. PROTOCOL.md is the contract.

Every request can be waited for on its own, so that a step can run while others do. A driver that
stops answering is ended by its owner and never reused.
"""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from fila_conformance.layout import SCHEMA

PROTOCOL = 1
# The slowest driver to start is a JVM on a busy machine with two cores.
_HELLO_TIMEOUT_S = 60.0
_STDERR_LINES_MAX = 200
_TRACE_LINES_MAX = 400
_TRACE_COLUMNS_MAX = 2000


@dataclass(frozen=True, slots=True)
class Launch:
    """A driver that can be started: its name in results, its command, and where that runs."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    # Those that its hello must declare, at least.
    features: frozenset[str] = frozenset()


class DriverError(Exception):
    """The driver is gone, silent or does not speak the protocol."""


class Pending:
    """A request that is under way."""

    def __init__(self, request_id: int, op: str) -> None:
        self.id = request_id
        self.op = op
        self._replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def settle(self, reply: dict[str, Any]) -> None:
        self._replies.put(reply)

    def wait(self, seconds: float) -> dict[str, Any]:
        """The reply. Raises DriverError when none comes."""
        try:
            reply = self._replies.get(timeout=seconds)
        except queue.Empty:
            raise DriverError(f"no reply to {self.op} within {seconds:g} s") from None
        if "gone" in reply:
            raise DriverError(f"the driver ended before it answered {self.op}: {reply['gone']}")
        return reply


class Driver:
    """A running driver."""

    def __init__(self, launch: Launch, *, is_strict: bool = False) -> None:
        self._is_strict = is_strict
        self._lock = threading.Lock()
        self._pending: dict[int, Pending] = {}
        self._next_id = 1
        self._gone: str | None = None
        self.stderr: deque[str] = deque(maxlen=_STDERR_LINES_MAX)
        self.trace: deque[str] = deque(maxlen=_TRACE_LINES_MAX)
        try:
            self._process = subprocess.Popen(
                launch.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **launch.env},
                cwd=launch.cwd,
            )
        except OSError as error:
            raise DriverError(f"cannot start {launch.command[0]}: {error.strerror}") from error
        for target in (self._read_replies, self._read_stderr):
            threading.Thread(target=target, daemon=True).start()

    @property
    def is_alive(self) -> bool:
        return self._gone is None and self._process.poll() is None

    def hello(self) -> dict[str, Any]:
        """Greets the driver and returns what it says of itself. Raises DriverError."""
        reply = self.send("hello", {"protocol": PROTOCOL}).wait(_HELLO_TIMEOUT_S)
        if "ok" not in reply:
            raise DriverError(f"the driver does not speak protocol {PROTOCOL}: {reply}")
        return dict(reply["ok"])

    def send(self, op: str, fields: Mapping[str, Any]) -> Pending:
        """Sends one request. Raises DriverError when the driver is gone."""
        with self._lock:
            pending = Pending(self._next_id, op)
            self._next_id += 1
            request = {"id": pending.id, "op": op, **fields}
            if self._is_strict:
                _check(f"requests/{op}", request, "the runner's request")
            self._pending[pending.id] = pending
            line = json.dumps(request, ensure_ascii=False, separators=(",", ":"))
            self.trace.append(f"-> {line[:_TRACE_COLUMNS_MAX]}")
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()
            except (OSError, ValueError) as error:
                raise DriverError(f"the driver takes no requests: {error}") from error
        return pending

    def end_input(self, seconds: float) -> dict[str, Any]:
        """Closes the driver's input and waits for its end. Raises DriverError if there is none."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.wait(seconds)

    def terminate(self, seconds: float) -> dict[str, Any]:
        self._process.send_signal(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float) -> dict[str, Any]:
        """Waits for the driver's end. Raises DriverError if there is none."""
        began = time.monotonic()
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise DriverError(f"the driver did not end within {seconds:g} s") from None
        return {"exit_code": code, "ms": round((time.monotonic() - began) * 1000)}

    def kill(self) -> None:
        """Ends the process, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass  # What was buffered for a process that is gone.

    def _read_replies(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._take(line.decode("utf-8", "replace").rstrip("\n"))
            self._end("end of output")
        except (ValueError, OSError) as error:
            self._end(str(error))

    def _take(self, line: str) -> None:
        self.trace.append(f"<- {line[:_TRACE_COLUMNS_MAX]}")
        try:
            reply = json.loads(line)
            pending = self._pending.pop(reply["id"])
        except (ValueError, KeyError, TypeError):
            # A print() in an SDK or a second reply: either way the driver broke its promise.
            self._end(f"not a reply to anything: {line[:200]}")
            return
        if self._is_strict:
            try:
                _check("reply", reply, f"the reply to {pending.op}")
                if "ok" in reply:
                    _check(f"results/{pending.op}", reply["ok"], f"the reply to {pending.op}")
            except DriverError as error:
                reply = {"id": reply["id"], "crashed": str(error)}
        pending.settle(reply)

    def _end(self, why: str) -> None:
        with self._lock:
            self._gone = self._gone or why
            left = list(self._pending.values())
            self._pending.clear()
        for pending in left:
            pending.settle({"gone": why})

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        try:
            for line in self._process.stderr:
                self.stderr.append(line.decode("utf-8", "replace").rstrip("\n"))
        except (ValueError, OSError):
            pass  # Closed by kill().


# --- The protocol's schema ---------------------------------------------------------------------

_SCHEMA_URI = "fila:protocol"


@cache
def protocol_schema() -> dict[str, Any]:
    return dict(json.loads((SCHEMA / "protocol.schema.json").read_text()))


@cache
def _validator(definition: str) -> Draft202012Validator:
    resource = DRAFT202012.create_resource(protocol_schema())
    registry: Registry[Any] = Registry().with_resource(_SCHEMA_URI, resource)
    return Draft202012Validator({"$ref": f"{_SCHEMA_URI}#/$defs/{definition}"}, registry=registry)


def _check(definition: str, value: Any, what: str) -> None:
    for error in _validator(definition).iter_errors(value):
        raise DriverError(f"{what} breaks the protocol at {error.json_path}: {error.message}")
