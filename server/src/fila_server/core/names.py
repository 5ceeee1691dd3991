# SPDX-License-Identifier: AGPL-3.0-only
"""Names that clients chose, and numbers of things, as texts of the broker may show them."""


def shown(text: str) -> str:
    """Return a name as an error text may show it: short, on one line."""
    text = text if len(text) <= 64 else text[:61] + "..."
    return text.encode("unicode_escape").decode("ascii").replace('"', '\\"')


def counted(number: int, noun: str) -> str:
    """Return `1 message` or `2,000 messages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
