# SPDX-License-Identifier: AGPL-3.0-only
"""A browser without a window: cookies, the token of the page, JSON."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import Any

CALL_S = 60.0


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        assert self.status == 200, (self.status, self.body)
        return json.loads(self.body)

    def error(self) -> dict[str, str]:
        """What the broker said, of an answer that is none."""
        assert self.status >= 400, (self.status, self.body)
        found: dict[str, str] = json.loads(self.body)["error"]
        return found


class Web:
    """One browser at one address."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._tls = tls
        self.cookies: dict[str, str] = {}
        self.csrf = "none"

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        host, _, port = self.address.rpartition(":")
        connection: http.client.HTTPConnection
        if self._tls is None:
            connection = http.client.HTTPConnection(host, int(port), timeout=CALL_S)
        else:
            connection = http.client.HTTPSConnection(
                host, int(port), timeout=CALL_S, context=self._tls
            )
        sent = dict(headers or {})
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            reply = Reply(response.status, response.headers, response.read())
        finally:
            connection.close()
        for header in reply.headers.get_all("Set-Cookie") or []:
            for morsel in SimpleCookie(header).values():
                self.cookies[morsel.key] = morsel.value
        return reply

    def get(self, path: str, **headers: str) -> Reply:
        return self.send("GET", path, headers={_name(key): headers[key] for key in headers})

    def post(self, path: str, content: Any, **headers: str) -> Reply:
        sent = {"Content-Type": "application/json", "X-Fila-Csrf": self.csrf}
        sent |= {_name(key): headers[key] for key in headers}
        return self.send("POST", path, json.dumps(content).encode(), sent)

    def call(self, method: str, **fields: Any) -> Reply:
        return self.post(f"/api/call/{method}", fields)

    def login(self, key: str) -> Reply:
        reply = self.post("/api/login", {"key": key})
        if reply.status == 200:
            self.csrf = reply.json()["csrf"]
        return reply


def _name(key: str) -> str:
    return key.replace("_", "-")
