# SPDX-License-Identifier: AGPL-3.0-only
"""Logs on stderr: text for a terminal, one JSON object a line otherwise. Never a payload or a
header value.

A record may carry `facts`: names and values that programs look for. They are fields of the JSON
object, and follow the message in a text.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime

# gRPC writes lines of its own to stderr, one for each handshake that a stranger spoils. It looks at
# this when it is imported, which is after this module: "log" sorts before "rpc".
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _Text(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "facts", {})
        rest = [f"{name}={json.dumps(value)}" for name, value in facts.items()]
        return " ".join((super().formatMessage(record), *rest))


def configure_logging(level: str, form: str) -> None:
    """Send the broker's logs to stderr. `form` is text, json, or auto: text on a terminal."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json" or (form == "auto" and not sys.stderr.isatty()):
        handler.setFormatter(_Json())
    else:
        handler.setFormatter(_Text("%(asctime)s %(levelname)-7s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def set_level(level: str) -> None:
    """Say more or less from now on."""
    logging.getLogger().setLevel(level.upper())
