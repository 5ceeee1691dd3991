# SPDX-License-Identifier: AGPL-3.0-only
"""Under which names the page may be asked for, and from which pages it may be changed.

While API keys are off, whoever reaches the port may do everything, and a browser on this machine
reaches it for any page that its person looks at. Such a page cannot read answers of another origin,
unless its own name was made to point here. So unknown names are refused then.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from aiohttp import web

from fila_server.config import HttpConfig
from fila_server.core.names import shown
from fila_server.errors import PermissionDenied


class Hosts:
    def __init__(self, config: HttpConfig) -> None:
        given = (name.strip().lower() for name in config.host_names.split(","))
        listening = config.listen_addr.rpartition(":")[0].strip("[]").lower()
        self._names = {"localhost", listening, socket.gethostname().lower(), *filter(None, given)}

    def check(self, request: web.Request) -> None:
        """Raise PermissionDenied for a name that is not this broker's."""
        name = _host(request.headers.get("host", ""))
        if name not in self._names and not _is_address(name):
            raise PermissionDenied(
                f'this page is not known as "{shown(name)}"; use an address, add the name to'
                " http.host_names, or turn API keys on (auth.bootstrap_apikey)"
            )

    def check_origin(self, request: web.Request) -> None:
        """Raise PermissionDenied for a request that a page of another origin made."""
        origin = request.headers.get("origin")
        asked = request.headers.get("host", "").lower()
        is_other = origin is not None and (not asked or _netloc(origin) != asked)
        if is_other or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise PermissionDenied("the request comes from a page of another origin")


def _netloc(origin: str) -> str:
    """Return the host and port of an origin; empty for what is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _host(header: str) -> str:
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
