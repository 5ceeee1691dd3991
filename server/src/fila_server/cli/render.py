# SPDX-License-Identifier: AGPL-3.0-only
"""How answers reach the terminal: tables for people, JSON for programs.

Nothing here knows what a queue is. Text from a broker goes through `one_line` before it is shown,
and rich's markup is off, so no payload or key can style, move or fake what a person reads. rich is
imported when something moves: that takes longer than most answers.
"""

import base64
import dataclasses
import enum
import json
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fila_server.cli.sheet import Part, drawn

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> "Console":
    """A console for what moves on stdout or stderr."""
    from rich.console import Console

    return Console(
        file=sys.stderr if stderr else sys.stdout,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=False,
    )


def is_terminal() -> bool:
    """Whether standard output is a terminal that a view can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def show(*parts: Part) -> None:
    """Prints tables and lines of text; a pipe gets them as wide as they are, and no styles."""
    has_styles = is_terminal()
    for line in drawn(parts, _width()):
        sys.stdout.write(line.encoded(has_styles=has_styles) + "\n")
    sys.stdout.flush()


def _width() -> int | None:
    """The characters of a line: what COLUMNS says, or the terminal; a pipe has no end."""
    said = os.environ.get("COLUMNS", "")
    if said.isdigit() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def say(text: str) -> None:
    """Prints one sentence, never wrapped."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Prints one sentence that is not part of the answer, on stderr."""
    sys.stderr.write(f"{text}\n")


def print_document(value: object) -> None:
    """Prints one JSON document."""
    say(json.dumps(plain(value), indent=2))


def print_json_line(value: object) -> None:
    """Prints one JSON document on one line, at once."""
    say(json.dumps(plain(value)))


def plain(value: object) -> Any:
    """The value in JSON's own types: dataclasses by field, times in ISO 8601, bytes in base64."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {
            field.name: plain(getattr(value, field.name))
            for field in fields
            if not field.name.startswith("_")
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value
