# SPDX-License-Identifier: AGPL-3.0-only
"""Answers as HTTP has them: JSON, the headers of every answer, and statuses of errors."""

from __future__ import annotations

from typing import Any

import grpc
from aiohttp import web

from fila_server.errors import FilaError
from fila_server.http.pages import SECURITY_HEADERS
from fila_server.http.views import encode
from fila_server.rpc.status import STATUS

CSRF_HEADER = "x-fila-csrf"

_HTTP = {
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 503,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.INTERNAL: 500,
}


def reply(content: bytes | dict[str, Any], status: int = 200) -> web.Response:
    """Return JSON that nobody keeps."""
    body = content if isinstance(content, bytes) else encode(content)
    headers = {"Cache-Control": "no-store"}
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def failure(error: FilaError) -> web.Response:
    """Return what the broker said, and why as clients of gRPC see it."""
    content = {"error": {"reason": error.reason, "message": error.message}}
    return reply(content, _HTTP[STATUS[error.reason]])


def with_headers(response: web.StreamResponse) -> web.StreamResponse:
    if not response.prepared:
        response.headers.update(SECURITY_HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
    return response
