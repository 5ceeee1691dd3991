# SPDX-License-Identifier: AGPL-3.0-only
"""`fila consume --exec`: a command for each message, settled by its exit code.

    0          ack
    75         put off: comes back later, no attempt counted (EX_TEMPFAIL of sysexits.h)
    126, 127   the shell cannot run the command: the message is given back and nothing more starts
    other      nack, with the last line of standard error as the error

No more messages are leased than commands run, and a lease is extended while its command runs, so a
message never waits here and never comes back because its command is slow. Commands run in process
groups of their own: Ctrl-C at the terminal reaches this process alone, which lets them finish.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import IO, TYPE_CHECKING

import click

from fila_server.cli import failures, render
from fila_server.cli.consume import give_back
from fila_server.cli.session import Session
from fila_server.cli.words import counted, duration, one_line, shell_word

if TYPE_CHECKING:
    from fila import Client, ConsumeMessage

_TEMPFAIL = 75
_CANNOT_RUN = (126, 127)
# The end of standard error that is looked at for its last line, and how much of that is sent: the
# broker keeps 256 bytes of it in the history, and 4 KiB as the last error.
_TAIL_BYTES = 8 * 1024
_ERROR_CHARS = 1_000
# A lease is extended when a third of it is over, so that two extensions may fail.
_EXTENSIONS_PER_LEASE = 3
# How soon a stop is noticed while no message comes.
_WAIT_SLICE_S = 0.5


class Work:
    """Runs one command per message until the messages, the wait or the patience are over."""

    def __init__(
        self,
        session: Session,
        queue: str,
        command: str,
        concurrency: int,
        retry_after_ms: int,
        lease_ms: int,
    ) -> None:
        self._session = session
        self._queue = queue
        self._command = command
        self._concurrency = concurrency
        self._retry_after_ms = retry_after_ms
        self._lease_ms = lease_ms
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_cut_short = False
        self._idle = threading.Semaphore(concurrency)
        self._settled = {"ack": 0, "nack": 0, "retry": 0, "back": 0}
        # What ends the run: the first thing that was not the command's own failure.
        self._failure: Exception | None = None

    def run(self, count: int, wait_s: float | None) -> None:
        """Leases and runs until told to stop, or `count` messages are done; 0 is without end."""
        with self._session.client() as client, self._stopped_by_signals() as stopped:
            with ThreadPoolExecutor(self._concurrency) as pool:
                started = self._feed(client, pool, count, wait_s)
            self._report(started, wait_s)
        if self._failure is not None:
            raise self._failure
        if stopped.is_set():
            raise KeyboardInterrupt

    def _feed(
        self, client: "Client", pool: ThreadPoolExecutor, count: int, wait_s: float | None
    ) -> int:
        started = 0
        try:
            while not self._stopping.is_set() and (count == 0 or started < count):
                free = self._free(count - started if count else self._concurrency)
                batch = self._receive(client, free, wait_s) if free else []
                for _ in range(free - len(batch)):
                    self._idle.release()
                if not batch:
                    break
                for message in batch:
                    pool.submit(self._handle, client, message)
                started += len(batch)
        except Exception as error:
            self._fail(error)
        return started

    def _free(self, most: int) -> int:
        """Takes as many idle places as there are, waiting for the first; none after a stop."""
        while not self._idle.acquire(timeout=_WAIT_SLICE_S):
            if self._stopping.is_set():
                return 0
        taken = 1
        while taken < most and self._idle.acquire(blocking=False):
            taken += 1
        return taken

    def _receive(
        self, client: "Client", count: int, wait_s: float | None
    ) -> "list[ConsumeMessage]":
        deadline = None if wait_s is None else time.monotonic() + wait_s
        while not self._stopping.is_set():
            left_s = _WAIT_SLICE_S if deadline is None else deadline - time.monotonic()
            slice_ms = round(max(0.0, min(left_s, _WAIT_SLICE_S)) * 1_000)
            batch = client.receive(
                self._queue, count, wait_ms=slice_ms, visibility_timeout_ms=self._lease_ms
            )
            if batch or (deadline is not None and time.monotonic() >= deadline):
                return batch
        return []

    def _handle(self, client: "Client", message: "ConsumeMessage") -> None:
        try:
            if self._stopping.is_set() and (self._is_cut_short or self._failure is not None):
                self._settle(client, message, None, "")
                return
            code, error = self._execute(client, message)
            self._settle(client, message, None if self._is_cut_short and code else code, error)
        except Exception as error:  # the broker's refusal, or a process that cannot be started
            self._fail(error)
        finally:
            self._idle.release()

    def _execute(self, client: "Client", message: "ConsumeMessage") -> tuple[int, str]:
        """Runs the command; returns its exit code and the last line that it complained with."""
        with _readable(message.payload) as payload:
            process = subprocess.Popen(
                self._command,
                shell=True,
                stdin=payload,
                stdout=sys.stderr.fileno() if self._session.json else None,
                stderr=subprocess.PIPE,
                env=self._environment(message),
                process_group=0,
            )
        with self._lock:
            self._running.add(process)
        tail = _Tail(process)
        try:
            self._await(client, message, process)
        finally:
            with self._lock:
                self._running.discard(process)
            tail.close()
        return process.returncode, tail.last_line()

    def _await(
        self, client: "Client", message: "ConsumeMessage", process: "subprocess.Popen[bytes]"
    ) -> None:
        from fila import FilaError

        # By this machine's own clock: the end that the broker names is on another one.
        every_s = self._lease_ms / 1_000 / _EXTENSIONS_PER_LEASE
        while True:
            try:
                process.wait(every_s)
                return
            except subprocess.TimeoutExpired:
                pass
            try:
                message.extend(self._lease_ms)
            except FilaError as error:
                # Lost or out of reach; what the command does may still be settled in time.
                render.note(f"lease of {message.id} not extended: {one_line(error.message)}")
                process.wait()
                return

    def _settle(
        self, client: "Client", message: "ConsumeMessage", code: int | None, error: str
    ) -> None:
        """Tells the broker what the exit code means; None gives the message back."""
        how = _meaning(code)
        if how == "ack":
            message.ack()
        elif how == "retry":
            message.nack(error, retry_after_ms=self._retry_after_ms)
        elif how == "nack":
            assert code is not None
            error = error or _exit_words(code)
            message.nack(error)
        else:
            give_back(client, [message])
            if code is not None:
                self._fail(click.ClickException(failures.cannot_run(self._command, error)))
        with self._lock:
            self._settled[how] += 1
        if self._session.json:
            answer = {"queue": self._queue, "message_id": message.id, "settled": how}
            render.print_json_line({**answer, "exit_code": code, "error": error})

    def _environment(self, message: "ConsumeMessage") -> dict[str, str]:
        headers = message.headers
        mine = {
            f"FILA_HEADER_{_variable(name)}": value
            for name, value in sorted(headers.items())
            if "\0" not in value
        }
        enqueued_at = message.enqueued_at
        mine |= {
            "FILA_ADDR": self._session.addr,
            "FILA_QUEUE": message.queue,
            "FILA_MESSAGE_ID": message.id,
            "FILA_LEASE_TOKEN": message.lease_token,
            "FILA_FAIRNESS_KEY": message.fairness_key.replace("\0", ""),
            "FILA_ATTEMPT_COUNT": str(message.attempt_count),
            "FILA_ENQUEUED_AT": "" if enqueued_at is None else enqueued_at.isoformat(),
            "FILA_HEADERS": json.dumps(headers, sort_keys=True),
        }
        return {**os.environ, **mine}

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._failure = self._failure or error
        self._stopping.set()

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[threading.Event]:
        """The first Ctrl-C or SIGTERM lets commands finish, the second ends them."""
        stopped = threading.Event()

        def stop(number: int, frame: FrameType | None) -> None:
            if stopped.is_set():
                self._is_cut_short = True
                # No lock: the thread that this interrupts may hold it.
                for process in list(self._running):
                    _end(process)
            stopped.set()
            self._stopping.set()

        if threading.current_thread() is not threading.main_thread():
            yield stopped
            return
        before = {it: signal.signal(it, stop) for it in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield stopped
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _report(self, started: int, wait_s: float | None) -> None:
        if not started and self._failure is None and not self._stopping.is_set():
            see = f"see why with: fila stats {shell_word(self._queue)}"
            waited = duration((wait_s or 0) * 1_000)
            render.note(f"No message became ready within {waited}; {see}")
        elif started:
            it = self._settled
            render.note(
                f"Ran {counted(started, 'message')}: {it['ack']:,} acked, {it['nack']:,} nacked, "
                f"{it['retry']:,} put off, {it['back']:,} given back"
            )


class _Tail:
    """Passes a command's standard error on, and keeps its end."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._end = b""
        assert process.stderr is not None
        self._stream = process.stderr
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()

    def _pump(self) -> None:
        while chunk := os.read(self._stream.fileno(), 65_536):
            sys.stderr.buffer.write(chunk)
            sys.stderr.flush()
            self._end = (self._end + chunk)[-_TAIL_BYTES:]

    def close(self) -> None:
        # A command may leave something behind that holds the pipe; it is not waited for.
        self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._stream.close()

    def last_line(self) -> str:
        lines = self._end.decode(errors="replace").strip().splitlines()
        return one_line(lines[-1].strip())[:_ERROR_CHARS] if lines else ""


@contextmanager
def _readable(payload: bytes) -> Iterator[IO[bytes]]:
    """The payload as a file without a name: a command that reads none of it blocks nobody."""
    with tempfile.TemporaryFile() as file:
        file.write(payload)
        file.seek(0)
        yield file


def _meaning(code: int | None) -> str:
    if code is None or code in _CANNOT_RUN:
        return "back"
    return {0: "ack", _TEMPFAIL: "retry"}.get(code, "nack")


def _exit_words(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"ended by signal {-code}"


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass


def _variable(name: str) -> str:
    return "".join(char if char.isalnum() and char.isascii() else "_" for char in name).upper()
