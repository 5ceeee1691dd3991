# SPDX-License-Identifier: AGPL-3.0-only
"""What stands around a case: brokers that live for the whole run, and what one case adds.

Brokers are few and are shared: one per kind for cases that leave it alone, one per kind for those
that kill, freeze or restart it. Every case has a queue of its own, so they need not be emptied.
"""

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from fila_conformance import scripted
from fila_conformance.admin import Admin, AdminError
from fila_conformance.broker import API_KEY, Broker
from fila_conformance.cases import Case
from fila_conformance.layout import CERTS
from fila_conformance.ports import LOOPBACK, LOOPBACK_IPV6
from fila_conformance.proxy import Proxy
from fila_conformance.values import resolve
from fila_conformance.wiretap import RecordingServer, Wiretap

_NOT_IN_QUEUE_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


class Brokers:
    """Every broker of a run, started when first asked for."""

    def __init__(self, make: Callable[[str], Broker]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._brokers: dict[tuple[str, bool], tuple[Broker, Admin]] = {}

    def get(self, kind: str, *, is_exclusive: bool) -> tuple[Broker, Admin]:
        """A broker that runs, and a way to administer it. Raises BrokerError."""
        with self._lock:
            if (kind, is_exclusive) not in self._brokers:
                broker = self._make(kind)
                try:
                    broker.start()
                except BaseException:
                    broker.close()
                    raise
                self._brokers[kind, is_exclusive] = broker, Admin(broker)
            broker, admin = self._brokers[kind, is_exclusive]
            broker.ready()
            return broker, admin

    def check(self) -> None:
        """Looks at brokers that nobody disturbed. Raises BrokerError."""
        for (_, is_exclusive), (broker, _) in self._brokers.items():
            if not is_exclusive:
                broker.check()

    def close(self) -> None:
        for broker, admin in self._brokers.values():
            admin.close()
            broker.close()
        self._brokers.clear()


class Stage:
    """One case's surroundings, from set-up to clean-up."""

    def __init__(self, case: Case, subject: str, brokers: Brokers) -> None:
        self.case = case
        self.broker: Broker | None = None
        self.admin: Admin | None = None
        self.wiretap: RecordingServer | None = None
        self.proxy: Proxy | None = None
        self._forward: Wiretap | None = None
        self.queue = queue_name(subject, case)
        self.variables: dict[str, Any] = {
            "queue": self.queue,
            "each": dict(case.each),
            "api_key": API_KEY,
            "certs": {path.name.replace(".", "_"): str(path) for path in CERTS.glob("*.*")},
        }
        try:
            self._set_up(brokers)
        except BaseException:
            self.close()
            raise

    def _set_up(self, brokers: Brokers) -> None:
        case = self.case
        if case.mode == "scripted":
            script = scripted.Script(resolve(case.script, self.variables))
            self.wiretap = RecordingServer(script, scripted.credentials_of(case.tls))
            target = self.wiretap.target
        else:
            self.broker, self.admin = brokers.get(
                case.broker, is_exclusive=case.mode == "exclusive"
            )
            target = self.broker.target
            if case.has_wiretap:
                self._forward = Wiretap(self.broker)
                loopback = LOOPBACK_IPV6 if case.feature == "ipv6" else LOOPBACK
                self.wiretap = RecordingServer(self._forward, loopback=loopback)
                target = self.wiretap.target
        if case.has_proxy:
            self.proxy = Proxy(target)
            target = self.proxy.target
        # Clients connect to the outermost of these unless they say otherwise.
        self.variables["target"] = target
        if self.admin is not None and case.queue is not None:
            settings = resolve(case.queue, self.variables)
            self.admin.call("create_queue", {"name": self.queue, "config": settings})

    def close(self) -> None:
        """Takes down what the case added. The broker stays."""
        if self.proxy is not None:
            self.proxy.close()
        if self.wiretap is not None:
            self.wiretap.stop()
        if self._forward is not None:
            self._forward.close()
        if self.broker is not None and self.admin is not None:
            self.broker.ready()
            for name in self._queues_left():
                self.admin.call("delete_queue", {"queue": name})

    def _queues_left(self) -> list[str]:
        assert self.admin is not None
        try:
            listed: list[Mapping[str, Any]] = self.admin.call("list_queues", {})["queues"]
        except AdminError:
            return []
        names = (row["name"] for row in listed if not row["dead_letter_of"])
        return [n for n in names if n == self.queue or n.startswith(self.queue + ".")]


def queue_name(subject: str, case: Case) -> str:
    """A name that no other case of the run has. Others that a case creates begin with it."""
    return _NOT_IN_QUEUE_NAMES.sub("-", f"c.{subject}.{case.suite}.{case.name}").rstrip("-")
