# SPDX-License-Identifier: AGPL-3.0-only
"""Where brokers run: in containers where an engine can be had, as processes where none can.

    1. an engine that answers where DOCKER_HOST says, or at the usual socket
    2. one of our own, if we are root and dockerd is installed: all its files are in the cache, and
       it is stopped at the end unless another run uses it
    3. none: brokers are processes

The first line of a run says which, and why.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import docker
import docker.errors

from fila_conformance import image
from fila_conformance.broker import Broker, ProcessBroker
from fila_conformance.layout import CACHE

_FOLDER = CACHE / "engine"
_SOCKET = _FOLDER / "docker.sock"
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_POLL_S = 0.1
# Builds and removals can take their time on a busy machine.
_REQUEST_TIMEOUT_S = 600

Say = Callable[[str], None]


class EngineError(Exception):
    """There is no container engine, and why."""


@dataclass(frozen=True, slots=True)
class Place:
    """How to make a broker of a kind, and the sentence that says where it runs."""

    sentence: str
    broker: Callable[[str], Broker]


@contextmanager
def find_place(mode: str, say: Say) -> Iterator[Place]:
    """Where to run brokers. Raises EngineError where containers were asked for in vain."""
    if mode == "process":
        yield Place("process mode: brokers run as processes, as asked", ProcessBroker)
        return
    # The side container that testcontainers cleans up with comes from a registry, which need not be
    # in reach; the run removes its containers itself.
    os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"
    why_not: str
    try:
        with _engine() as (client, where):
            name = image.ensure(client, say)
            # Only now, because what it imports looks at the environment.
            from fila_conformance.container import ContainerBroker

            yield Place(
                f"container mode: brokers run from {name} on {where}",
                lambda kind: ContainerBroker(kind, name),
            )
            return
    except (EngineError, image.ImageError) as error:
        if mode == "container":
            raise EngineError(str(error)) from error
        why_not = str(error)
    yield Place(f"process mode: no containers, because {why_not}", ProcessBroker)


@contextmanager
def _engine() -> Iterator[tuple[docker.DockerClient, str]]:
    client = _reached()
    if client is not None:
        yield client, f"the engine at {os.environ.get('DOCKER_HOST', 'the usual socket')}"
        client.close()
        return
    with _own_engine() as client:
        yield client, "an engine of its own, because none was running"
        # What builds left behind; in somebody else's engine that is not ours to remove.
        client.images.prune({"dangling": True})


def _reached() -> docker.DockerClient | None:
    """An engine that answers, or None."""
    client = None
    try:
        client = docker.from_env(timeout=_REQUEST_TIMEOUT_S)
        client.ping()
        return client
    except docker.errors.DockerException:
        if client is not None:
            client.close()
        return None


@contextmanager
def _own_engine() -> Iterator[docker.DockerClient]:
    if os.geteuid() != 0:
        raise EngineError("no engine answers, and starting one takes root")
    if shutil.which("dockerd") is None:
        raise EngineError("no engine answers, and dockerd is not installed")
    _FOLDER.mkdir(parents=True, exist_ok=True)
    before = os.environ.get("DOCKER_HOST")
    os.environ["DOCKER_HOST"] = f"unix://{_SOCKET}"
    with (_FOLDER / "lock").open("w") as lock:
        try:
            client = _started(lock)
            try:
                yield client
            finally:
                client.close()
                _stop_if_last(lock)
        finally:
            if before is None:
                del os.environ["DOCKER_HOST"]
            else:
                os.environ["DOCKER_HOST"] = before


def _started(lock: TextIO) -> docker.DockerClient:
    """The engine of this cache, which runs already or is started. Leaves the lock shared."""
    fcntl.flock(lock, fcntl.LOCK_EX)
    client = _reached()
    if client is None:
        _start()
        client = _reached()
        assert client is not None
        # What a run that was killed left behind.
        for container in client.containers.list(all=True):
            container.remove(force=True, v=True)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return client


def _start() -> None:
    # A pid file of a daemon that was killed would keep the next one from starting.
    _pid_file().unlink(missing_ok=True)
    with (_FOLDER / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("dockerd", "--data-root", str(_FOLDER / "data")),
                *("--exec-root", str(_FOLDER / "exec"), "--pidfile", str(_pid_file())),
                *("--host", f"unix://{_SOCKET}"),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal is for the run, which then stops the engine in order.
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        client = _reached()
        if client is not None:
            client.close()
            return
        time.sleep(_POLL_S)
    if process.poll() is None:
        process.terminate()
        process.wait()
    said = (_FOLDER / "dockerd.log").read_text(encoding="utf-8", errors="replace").splitlines()
    raise EngineError(f"dockerd does not start: {said[-1] if said else 'it said nothing'}")


def _pid_file() -> Path:
    return _FOLDER / "docker.pid"


def _stop_if_last(lock: TextIO) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # Another run uses it; the last one stops it.
    client = _reached()
    if client is None:
        return  # It is gone, and its number may be another's by now.
    client.close()
    try:
        pid = int(_pid_file().read_text())
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        return
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while time.monotonic() < deadline and _is_alive(pid):
        time.sleep(_POLL_S)


def _is_alive(pid: int) -> bool:
    try:
        # Reaps it where it is our child; elsewhere signal 0 only asks.
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    except ChildProcessError:
        pass
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
