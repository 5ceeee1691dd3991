# SPDX-License-Identifier: AGPL-3.0-only
"""A real broker that can be killed, frozen and restarted on the same port with the same data.

`ProcessBroker` runs it from this Python environment; container.py runs it from its image. Cases see
no difference. What a broker of a kind is configured with is in KINDS.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fila_conformance.layout import CERTS
from fila_conformance.ports import LOOPBACK, free_port
from fila_conformance.values import PAYLOAD_BYTES_MAX

_START_TIMEOUT_S = 60.0
# The broker's own grace for calls under way is 10 s.
_STOP_TIMEOUT_S = 30.0
_LOG_LINES_MAX = 200

# A key for tests, like the private keys beside it.
API_KEY = "conformance-bootstrap-key"


class BrokerError(Exception):
    """The broker did not start, stop or answer."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a broker is configured: settings, and settings that name a file of certs/."""

    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


_COMMON = {"FILA_LIMITS__MAX_PAYLOAD_BYTES": str(PAYLOAD_BYTES_MAX)}
_CERTIFICATE = {"FILA_TLS__CERT_FILE": "server.pem", "FILA_TLS__KEY_FILE": "server.key"}

KINDS: Mapping[str, Kind] = {
    "plain": Kind(_COMMON),
    "tls": Kind(_COMMON, _CERTIFICATE),
    "mtls": Kind(_COMMON, {**_CERTIFICATE, "FILA_TLS__CA_FILE": "ca.pem"}),
    "auth": Kind({**_COMMON, "FILA_AUTH__BOOTSTRAP_APIKEY": API_KEY}),
}


class Broker(ABC):
    """What cases do to a broker. Every action returns when it has taken effect."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.is_running = False
        self.is_frozen = False

    @property
    @abstractmethod
    def target(self) -> str:
        """Where clients connect, host:port."""

    def start(self) -> None:
        assert not self.is_running
        self._start()
        self.is_running = True

    def stop(self) -> None:
        """Asks it to end (TERM) and waits until it has."""
        self._stop()
        self.is_running = False

    def kill(self) -> None:
        """Ends it at once (KILL)."""
        self._kill()
        self.is_running = self.is_frozen = False

    def freeze(self) -> None:
        """Stops it in its tracks: connections stay open, nothing answers."""
        self._freeze()
        self.is_frozen = True

    def thaw(self) -> None:
        self._thaw()
        self.is_frozen = False

    def restart(self) -> None:
        self.stop()
        self.start()

    def ready(self) -> None:
        """Brings it back to where every case begins."""
        if self.is_frozen:
            self.thaw()
        if self.is_running and self.has_ended():
            self.is_running = False
        if not self.is_running:
            self.start()

    def check(self) -> None:  # noqa: B027 - a process has nothing of its own to check
        """Looks at what only this way of running a broker has. Raises BrokerError."""

    @abstractmethod
    def has_ended(self) -> bool: ...

    @abstractmethod
    def log_tail(self, lines: int) -> list[str]: ...

    @abstractmethod
    def close(self) -> None:
        """Ends it and removes its data."""

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _stop(self) -> None: ...

    @abstractmethod
    def _kill(self) -> None: ...

    @abstractmethod
    def _freeze(self) -> None: ...

    @abstractmethod
    def _thaw(self) -> None: ...


class ProcessBroker(Broker):
    """A broker as a child process of the runner."""

    def __init__(self, kind: str, command: Sequence[str] | None = None) -> None:
        super().__init__(kind)
        self._command = command or (sys.executable, "-m", "fila_server.main")
        self._port = free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="fila-conformance-")
        self._process: subprocess.Popen[bytes] | None = None
        self._log: deque[str] = deque(maxlen=_LOG_LINES_MAX)

    @property
    def target(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def log_tail(self, lines: int) -> list[str]:
        return list(self._log)[-lines:]

    def close(self) -> None:
        if not self.has_ended():
            self._kill()
        self._folder.cleanup()

    def _start(self) -> None:
        settings = KINDS[self.kind]
        files = {name: str(CERTS / file) for name, file in settings.files.items()}
        self._process = subprocess.Popen(
            [
                *(*self._command, "--listen", self.target),
                *("--data-dir", str(Path(self._folder.name) / "data")),
            ],
            env={**os.environ, **settings.env, **files},
            cwd=self._folder.name,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        is_ready: queue.SimpleQueue[bool] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self._process, is_ready), daemon=True).start()
        try:
            if is_ready.get(timeout=_START_TIMEOUT_S):
                return
        except queue.Empty:
            self._kill()
        last = "; ".join(self.log_tail(3)) or "it said nothing"
        raise BrokerError(f"the {self.kind} broker did not start: {last}")

    def _read(
        self, process: "subprocess.Popen[bytes]", is_ready: "queue.SimpleQueue[bool]"
    ) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                text = line.decode("utf-8", "replace").rstrip("\n")
                self._log.append(text)
                if text.startswith("FILA READY "):
                    assert json.loads(text.removeprefix("FILA READY "))["address"] == self.target
                    is_ready.put(True)
        is_ready.put(False)

    def _stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise BrokerError(f"the broker did not stop within {_STOP_TIMEOUT_S:g} s") from None
        if code != 0:
            raise BrokerError(f"the broker stopped with exit code {code}")

    def _kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def _thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
