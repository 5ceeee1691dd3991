# SPDX-License-Identifier: AGPL-3.0-only
"""What a page may ask for: calls of FilaAdmin as JSON, each with a bound on its answer.

Whether the caller may is decided where gRPC's calls are, and by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError

from fila.v1 import admin_pb2 as pb
from fila_server.core.names import shown
from fila_server.errors import InvalidArgument
from fila_server.http import views
from fila_server.rpc.admin import perform
from fila_server.runtime.engine import Engine

View = Callable[[Any], views.Json]

# How each answer is shown.
_CALLS: dict[str, View] = {
    "Peek": views.peeked,
    "Explain": views.explained,
    "ListConfig": views.settings,
    "ListThrottles": views.throttles,
    "ListApiKeys": views.api_keys,
    "CancelMessage": views.plain,
    "CreateApiKey": views.plain,
    "DeleteConfig": views.plain,
    "Pause": views.plain,
    "Redrive": views.plain,
    "Resume": views.plain,
    "RevokeApiKey": views.plain,
    "SetAcl": views.plain,
    "SetConfig": views.plain,
}


# What protobuf raises for JSON that does not fit a request: the last two for an infinite number
# where an enum is wanted, and for half of a surrogate pair.
_UNREADABLE = (ParseError, RecursionError, OverflowError, SystemError)


async def call(engine: Engine, method: str, body: Any) -> views.Json:
    """Make a call for the caller and return its answer. Raises FilaError."""
    view = _CALLS.get(method)
    if view is None:
        raise InvalidArgument(f"pages do not use the call {shown(method)}")
    request = getattr(pb, f"{method}Request")()
    try:
        ParseDict(body, request)
    except _UNREADABLE as error:
        raise InvalidArgument(f"the request cannot be read: {shown(str(error))}") from None
    _bound(request)
    return view(await perform(engine, method, request))


def _bound(request: Any) -> None:
    """Ask for no more than is shown."""
    if isinstance(request, pb.PeekRequest):
        request.limit = min(request.limit or views.MESSAGES_MAX, views.MESSAGES_MAX)
        if request.limit > 1:
            request.exclude_payload = True
    elif isinstance(request, pb.ListThrottlesRequest):
        request.limit = min(request.limit or views.THROTTLES_MAX, views.THROTTLES_MAX)
