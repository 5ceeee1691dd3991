# SPDX-License-Identifier: AGPL-3.0-only
"""Who is logged in to the dashboard, and how often somebody may try.

A session is a random token in the browser and, here, its hash and the id of the API key that
opened it. Whether the key still works, and what it may do, the keyring is asked each time.
Everything is in memory: a restart logs everybody out.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

# Some browsers of some hundred people.
_SESSIONS_MAX = 1000
# Of one key, so that nobody pushes others out.
_SESSIONS_OF_KEY_MAX = 100
# However busy its person is. A working day.
_LIFETIME_S = 12 * 3600.0

# More than a person who mistypes, far less than it takes to guess.
_FAILURES_MAX = 10
_FAILURES_S = 60.0
# Addresses that are remembered, and failures of all of them: beyond it nobody can log in for a
# minute, since somebody with many addresses is guessing.
_ADDRESSES_MAX = 1000
_ALL_FAILURES_MAX = 1000

Clock = Callable[[], float]


@dataclass(slots=True)
class Session:
    """One browser that is logged in."""

    key_id: str  # empty for the key of the configuration
    csrf: str
    lasts_until_s: float
    idle_until_s: float

    def is_over(self, now_s: float) -> bool:
        return now_s >= min(self.lasts_until_s, self.idle_until_s)


class Sessions:
    """All sessions, least recently used first."""

    def __init__(self, idle_s: float, clock: Clock = time.monotonic) -> None:
        self._idle_s = idle_s
        self._clock = clock
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def open(self, key_id: str) -> tuple[str, Session]:
        """Return a new session and the token that only its browser has."""
        self._make_room(key_id)
        now_s = self._clock()
        token = secrets.token_urlsafe(32)
        session = Session(
            key_id, secrets.token_urlsafe(32), now_s + _LIFETIME_S, now_s + self._idle_s
        )
        self._sessions[_hash(token)] = session
        return token, session

    def find(self, token: str, is_active: bool) -> Session | None:
        """Return the session of a token; one whose person is active lasts longer."""
        name = _hash(token)
        session = self._sessions.get(name)
        if session is None:
            return None
        now_s = self._clock()
        if session.is_over(now_s):
            del self._sessions[name]
            return None
        if is_active:
            session.idle_until_s = now_s + self._idle_s
            self._sessions.move_to_end(name)
        return session

    def close(self, token: str) -> None:
        self._sessions.pop(_hash(token), None)

    def __len__(self) -> int:
        return len(self._sessions)

    def _make_room(self, key_id: str) -> None:
        now_s = self._clock()
        for name in [name for name, it in self._sessions.items() if it.is_over(now_s)]:
            del self._sessions[name]
        own = [name for name, it in self._sessions.items() if it.key_id == key_id]
        if len(own) >= _SESSIONS_OF_KEY_MAX:
            del self._sessions[own[0]]
        elif len(self._sessions) >= _SESSIONS_MAX:
            self._sessions.popitem(last=False)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


class Attempts:
    """Failed logins of the last minute, by address."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, int] = {}
        self._count = 0
        self._ends_s = 0.0

    def wait_s(self, address: str) -> float:
        """Return how long an address has to wait before its next attempt; 0 for not at all."""
        now_s = self._clock()
        if now_s >= self._ends_s:
            self._failures.clear()
            self._count = 0
            self._ends_s = now_s + _FAILURES_S
        is_over = self._failures.get(_network(address), 0) >= _FAILURES_MAX
        return self._ends_s - now_s if is_over or self._count >= _ALL_FAILURES_MAX else 0.0

    def failed(self, address: str) -> None:
        self._count += 1
        network = _network(address)
        if network in self._failures or len(self._failures) < _ADDRESSES_MAX:
            self._failures[network] = self._failures.get(network, 0) + 1


def _network(address: str) -> str:
    """Return whom an address belongs to: one host of IPv4, a /64 of IPv6."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return ""
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    return str(ipaddress.IPv6Network((int(ip) >> 64 << 64, 64)))
