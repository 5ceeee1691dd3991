# SPDX-License-Identifier: AGPL-3.0-only
"""Small pieces of text for people: quoted names, counts, durations. No I/O and no styles."""

import shlex
from datetime import UTC, datetime

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))


def one_line(text: str) -> str:
    """The text with control characters spelled out, so that it cannot move a cursor."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def quoted(name: str) -> str:
    """The name in double quotes, harmless to a terminal."""
    return f'"{one_line(name)}"'


def shell_word(name: str) -> str:
    """The name as a shell takes it for one word, harmless to a terminal."""
    return shlex.quote(one_line(name))


def counted(number: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(count: int) -> str:
    """Bytes as people read them: 512 B, 1.5 MiB, 40 GiB."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.1f}".removesuffix(".0") + f" {unit}"
        amount /= 1024
    return f"{amount:.1f}".removesuffix(".0") + " TiB"


def duration(ms: float) -> str:
    """A duration with at most two units or two digits after the point: 250ms, 3.2s, 1h 5m."""
    if ms < 1_000:
        return f"{ms:.0f}ms"
    if ms < 60_000:
        return f"{ms / 1_000:.1f}".removesuffix(".0") + "s"
    parts = []
    rest = round(ms / 1_000) * 1_000
    for unit, size in _UNITS:
        amount, rest = divmod(rest, size)
        if amount:
            parts.append(f"{amount:.0f}{unit}")
    return " ".join(parts[:2])


def since(moment: datetime | None) -> str:
    """How long ago, on this machine's clock; never negative when the clocks differ."""
    if moment is None:
        return "-"
    return duration(max(0.0, (datetime.now(UTC) - moment).total_seconds() * 1_000))


def ago(moment: datetime | None) -> str:
    """How long ago, as the end of a sentence."""
    return "-" if moment is None else f"{since(moment)} ago"


def until(moment: datetime | None) -> str:
    """How long from now, on this machine's clock."""
    if moment is None:
        return "-"
    return duration(max(0.0, (moment - datetime.now(UTC)).total_seconds() * 1_000))


def preview(payload: bytes, limit: int) -> str:
    """The beginning of a payload: as text when it is text, else its size."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return f"<{counted(len(payload), 'byte')}, not text>"
    shown = one_line(text[:limit])
    return shown if len(text) <= limit else f"{shown[: limit - 1]}…"
