# SPDX-License-Identifier: AGPL-3.0-only
"""How the edge ends a call that is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fila_server.errors import FilaError
from fila_server.rpc.status import STATUS

if TYPE_CHECKING:
    from fila_edge import Edge


def code(error: FilaError) -> int:
    """Return an error's status as a number."""
    number: int = STATUS[error.reason].value[0]
    return number


def refuse(edge: Edge, call: int, error: FilaError) -> None:
    """End the call with the error's status, its text and its reason."""
    edge.end(call, code(error), error.message, error.reason)
