# SPDX-License-Identifier: AGPL-3.0-only
"""What the HTTP port answers: probes, metrics, the page and what it asks for.

Every request passes the rim below, which knows who calls, turns errors into answers and adds the
headers. `port.py` decides who gets as far as here.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from fila_server.config import Config, TlsConfig
from fila_server.core.access import ADMIN, ApiKey
from fila_server.errors import FilaError, InvalidArgument, PermissionDenied, Unauthenticated
from fila_server.http import pages
from fila_server.http.calls import call
from fila_server.http.hosts import Hosts
from fila_server.http.live import Live
from fila_server.http.port import Port, tls_context
from fila_server.http.replies import CSRF_HEADER, failure, reply, with_headers
from fila_server.http.sessions import Attempts, Session, Sessions
from fila_server.rpc.audit import Refusals
from fila_server.rpc.auth import CALLER, Authenticator
from fila_server.runtime.engine import Engine

log = logging.getLogger(__name__)

# A key, or a selection of some hundred messages.
_BODY_BYTES = 64 * 1024
_BODY_S = 10.0
# For answers on their way at a stop; the broker has given others their time before.
_STOP_S = 1.0
# A cookie belongs to a host, not to a port: two brokers on one machine must not share it.
_COOKIE = "fila_session_{}"
# Browsers take this one from the host itself only, and under TLS only.
_TLS_COOKIE = "__Host-" + _COOKIE
# Sent while a person does something, not by polls of a page that nobody looks at.
_ACTIVE_HEADER = "x-fila-active"

# aiohttp tells at length of requests that it cannot read, and quotes them, keys included. Defects
# of ours are logged at the rim.
_UNHEARD = logging.Logger("aiohttp", logging.CRITICAL)

Metrics = Callable[[], Awaitable[bytes]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """Probes, metrics and the dashboard."""

    def __init__(self, config: Config, engine: Engine, metrics: Metrics | None = None) -> None:
        self._config = config
        self._engine = engine
        self._metrics = metrics
        bootstrap = config.auth.bootstrap_apikey
        self._authenticator = Authenticator(engine.keyring, bootstrap) if bootstrap else None
        self._refusals = Refusals()
        self._sessions = Sessions(config.http.session_ms / 1000)
        self._attempts = Attempts()
        self._hosts = Hosts(config.http)
        self._live = Live(engine)
        self._assets = pages.load()
        self._port = Port(config.http.max_connections, tls_context(config.tls))
        self._cookie = ""
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            logger=_UNHEARD,
            handle_signals=False,
            auto_decompress=False,
            lingering_time=1.0,
            shutdown_timeout=_STOP_S,
        )

    async def start(self) -> str:
        """Listen, and return the address with the real port. Raises OSError."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        address = await self._port.listen(self._config.http.listen_addr, server)
        name = _TLS_COOKIE if self._port.tls is not None else _COOKIE
        self._cookie = name.format(address.rpartition(":")[2])
        return address

    async def stop(self) -> None:
        self._live.close()
        self._port.close()
        await self._runner.cleanup()

    def reload_certificates(self, tls: TlsConfig) -> None:
        """Shake hands with what the files hold now. They have been checked."""
        if self._port.tls is not None:
            self._port.tls = tls_context(tls)

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._rim], client_max_size=_BODY_BYTES)
        application.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics_page),
                web.get("/", self._index),
                web.get("/assets/{name:.+}", self._asset),
                web.get("/api/session", self._session_now),
                web.post("/api/login", self._login),
                web.post("/api/logout", self._logout),
                web.get("/api/overview", self._overview),
                web.get("/api/queue", self._queue),
                web.post("/api/call/{method}", self._call),
            ]
        )
        return application

    @web.middleware
    async def _rim(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        self._port.asked(transport)
        caller = CALLER.set(None)
        try:
            response = await handler(request)
        except FilaError as error:
            response = failure(error)
        except web.HTTPException as error:
            response = reply({"error": {"reason": "HTTP", "message": error.reason}}, error.status)
        except Exception:
            log.exception("a defect in %s", request.path[:100])
            response = failure(FilaError("internal error; the broker's log has the details"))
        finally:
            CALLER.reset(caller)
            self._port.answered(transport)
        return with_headers(response)

    # --- Probes -----------------------------------------------------------------------------------

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        why = self._engine.unready
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    async def _metrics_page(self, request: web.Request) -> web.Response:
        if self._authenticator is not None:
            try:
                key = self._authenticator.caller(
                    (("authorization", request.headers.get("authorization", "")),)
                )
            except Unauthenticated as error:
                self._refusals.tell("GET /metrics", error)
                raise
            if not key.may_everywhere(ADMIN):
                raise PermissionDenied(
                    f'the API key "{key.name}" has no admin permission on all queues, which metrics'
                    ' need; "*" gives it'
                )
        if self._metrics is None:
            return web.Response(text="this broker collects no metrics\n", status=404)
        body = await self._metrics()
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    # --- The page ---------------------------------------------------------------------------------

    async def _index(self, request: web.Request) -> web.Response:
        return self._file(request, pages.INDEX)

    async def _asset(self, request: web.Request) -> web.Response:
        return self._file(request, request.match_info["name"])

    def _file(self, request: web.Request, name: str) -> web.Response:
        asset = self._assets.get(name)
        if asset is None:
            raise web.HTTPNotFound
        headers = {"ETag": f'"{asset.etag}"', "Cache-Control": "no-cache"}
        if any(tag.value == asset.etag for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(
            body=asset.body, content_type=asset.content_type, charset="utf-8", headers=headers
        )

    # --- Who calls --------------------------------------------------------------------------------

    def _enter(self, request: web.Request) -> Session | None:
        """Let a request act as its session's key. Raises Unauthenticated, PermissionDenied.

        Returns None while API keys are off.
        """
        if self._authenticator is None:
            self._hosts.check(request)
            return None
        session = self._sessions.find(
            request.cookies.get(self._cookie, ""), _ACTIVE_HEADER in request.headers
        )
        if session is None:
            raise Unauthenticated("you are not logged in, or your session has ended")
        CALLER.set(self._engine.keyring.caller(session.key_id, time.time_ns()))
        return session

    def _enter_to_change(self, request: web.Request) -> Session | None:
        """Do the same for a request that another site must not be able to make."""
        self._hosts.check_origin(request)
        session = self._enter(request)
        sent = request.headers.get(CSRF_HEADER, "")
        wanted = session.csrf if session is not None else "none"
        if not hmac.compare_digest(sent.encode(errors="replace"), wanted.encode()):
            raise PermissionDenied(f"the request does not carry this page's {CSRF_HEADER}")
        return session

    def _described(self, session: Session | None) -> dict[str, Any]:
        key: ApiKey | None = CALLER.get()
        return {
            "needs_login": False,
            "csrf": session.csrf if session is not None else "none",
            "name": key.name if key is not None else "",
            "uses_keys": key is not None,
            "administers_all": key is None or key.may_everywhere(ADMIN),
            "is_superadmin": key is None or key.is_superadmin,
            "acl": [] if key is None else [str(entry) for entry in key.acl],
        }

    async def _session_now(self, request: web.Request) -> web.Response:
        try:
            session = self._enter(request)
        except Unauthenticated:
            return reply({"needs_login": True})
        return reply(self._described(session))

    async def _login(self, request: web.Request) -> web.Response:
        self._hosts.check_origin(request)
        if CSRF_HEADER not in request.headers:
            raise PermissionDenied(f"the request does not carry {CSRF_HEADER}")
        if self._authenticator is None:
            return reply(self._described(None))
        address = request.remote or ""
        wait_s = self._attempts.wait_s(address)
        if wait_s:
            response = reply(
                {"error": {"reason": "OVERLOADED", "message": "too many failed logins; wait"}}, 429
            )
            response.headers["Retry-After"] = str(int(wait_s) + 1)
            return response
        body = await self._body(request)
        presented = body.get("key")
        try:
            if not isinstance(presented, str):
                raise InvalidArgument("the login needs a key")
            key = self._authenticator.caller((("authorization", f"Bearer {presented}"),))
        except Unauthenticated as error:
            self._attempts.failed(address)
            self._refusals.tell("POST /api/login", error)
            raise
        token, session = self._sessions.open(key.key_id)
        CALLER.set(key)
        response = reply(self._described(session))
        is_tls = self._port.tls is not None
        response.set_cookie(
            self._cookie, token, httponly=True, samesite="Strict", secure=is_tls, path="/"
        )
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        self._enter_to_change(request)
        self._sessions.close(request.cookies.get(self._cookie, ""))
        response = reply({"needs_login": self._authenticator is not None})
        response.del_cookie(self._cookie, path="/", secure=self._port.tls is not None)
        return response

    async def _body(self, request: web.Request) -> dict[str, Any]:
        """Return the JSON object that a request carries. Raises InvalidArgument."""
        if request.content_type != "application/json" or "content-encoding" in request.headers:
            raise InvalidArgument("the body must be plain application/json")
        try:
            async with asyncio.timeout(_BODY_S):
                text = await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout from None
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidArgument("the body is not JSON") from None
        if not isinstance(body, dict):
            raise InvalidArgument("the body is not a JSON object")
        return body

    # --- What pages ask for -----------------------------------------------------------------------

    async def _overview(self, request: web.Request) -> web.Response:
        self._enter(request)
        return reply(await self._live.overview(request.query.get("match", "")))

    async def _queue(self, request: web.Request) -> web.Response:
        self._enter(request)
        return reply(await self._live.queue(request.query.get("name", "")))

    async def _call(self, request: web.Request) -> web.Response:
        self._enter_to_change(request)
        body = await self._body(request)
        return reply(await call(self._engine, request.match_info["method"], body))
