# SPDX-License-Identifier: AGPL-3.0-only
"""`fila demo` and its parts: a broker of its own, the traffic, the score and the view."""

from fila_server.cli.demo.command import demo

__all__ = ["demo"]
