# SPDX-License-Identifier: AGPL-3.0-only
"""A broker in a container, started through testcontainers; the other half of broker.py.

A restart keeps the container, and with it the volume and the port on the host. The engine is where
DOCKER_HOST says, on this machine; engine.py has seen to that.
"""

import logging
import time
from typing import Any, Literal

import docker.errors
from testcontainers.core.container import DockerContainer

from fila_conformance.broker import KINDS, Broker, BrokerError
from fila_conformance.layout import CERTS
from fila_conformance.ports import LOOPBACK, free_port

_PORT = 5555
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30
_HEALTHY_TIMEOUT_S = 60.0
_POLL_S = 0.1
_CERTS_IN_CONTAINER = "/certs"
# The HTTP port is on the container's own loopback, so it is asked from inside.
_LOOK_AT_PAGES = """
from urllib.request import urlopen
for path in ("/healthz", "/readyz", "/metrics", "/"):
    assert urlopen("http://127.0.0.1:5580" + path, timeout=10).read(), path
"""

# It tells of every image and container; the run has its own words for that.
logging.getLogger("testcontainers").setLevel(logging.WARNING)
logging.getLogger("testcontainers.core.container").setLevel(logging.WARNING)


class ContainerBroker(Broker):
    """A broker from an image."""

    def __init__(self, kind: str, image: str) -> None:
        super().__init__(kind)
        settings = KINDS[kind]
        self._container = DockerContainer(image)
        self._host_port = free_port()
        # Only on loopback: not everybody near this machine is to reach an open broker.
        bound: Any = (LOOPBACK, self._host_port)
        self._container.ports[str(_PORT)] = bound
        for name, value in settings.env.items():
            self._container.with_env(name, value)
        for name, file in settings.files.items():
            path = f"{_CERTS_IN_CONTAINER}/{file}"
            self._container.with_env(name, path)
            self._container.with_copy_into_container(CERTS / file, path)
        self._is_created = False
        self._starts = 0

    @property
    def target(self) -> str:
        return f"{LOOPBACK}:{self._host_port}"

    def has_ended(self) -> bool:
        self._container.reload()
        return self._container.status != "running"

    def log_tail(self, lines: int) -> list[str]:
        if not self._is_created:
            return []
        return self._logs(lines)

    def close(self) -> None:
        if self._is_created:
            self._container.stop()

    def check(self) -> None:
        """The image's own health check must be content."""
        deadline = time.monotonic() + _HEALTHY_TIMEOUT_S
        wrapped = self._container.get_wrapped_container()
        while time.monotonic() < deadline:
            wrapped.reload()
            if wrapped.health == "healthy":
                return self._check_pages(wrapped)
            time.sleep(_POLL_S)
        raise BrokerError(f"the container is {wrapped.health} after {_HEALTHY_TIMEOUT_S:g} s")

    def _check_pages(self, wrapped: Any) -> None:
        """An open broker's probes, metrics and dashboard must be there."""
        if self.kind != "plain":
            return
        code, said = wrapped.exec_run(["/opt/fila/bin/python3", "-c", _LOOK_AT_PAGES])
        if code != 0:
            raise BrokerError(f"the container's HTTP port does not answer: {said.decode()[-500:]}")

    def _logs(self, lines: Literal["all"] | int) -> list[str]:
        text = self._container.get_wrapped_container().logs(tail=lines)
        return bytes(text).decode("utf-8", "replace").splitlines()

    def _start(self) -> None:
        try:
            if self._is_created:
                self._container.get_wrapped_container().start()
            else:
                self._is_created = True
                self._container.start()
        except docker.errors.DockerException as error:
            raise BrokerError(
                f"the {self.kind} broker's container does not start: {error}"
            ) from error
        self._starts += 1
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            # The log is the container's, of all its runs.
            ready = sum(line.startswith("FILA READY ") for line in self._logs("all"))
            if ready >= self._starts:
                return
            if self.has_ended():
                break
            time.sleep(_POLL_S)
        last = "; ".join(self.log_tail(3)) or "it said nothing"
        raise BrokerError(f"the {self.kind} broker did not start: {last}")

    def _stop(self) -> None:
        wrapped = self._container.get_wrapped_container()
        wrapped.stop(timeout=_STOP_TIMEOUT_S)
        code = wrapped.wait()["StatusCode"]
        if code != 0:
            raise BrokerError(f"the broker stopped with exit code {code}")

    def _kill(self) -> None:
        wrapped = self._container.get_wrapped_container()
        wrapped.kill()
        wrapped.wait()

    def _freeze(self) -> None:
        self._container.get_wrapped_container().pause()

    def _thaw(self) -> None:
        self._container.get_wrapped_container().unpause()
