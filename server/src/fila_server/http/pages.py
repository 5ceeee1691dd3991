# SPDX-License-Identifier: AGPL-3.0-only
"""The page's files, read once, and the headers that keep it to itself."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).parent / "assets"
_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
INDEX = "index.html"

# Nothing from elsewhere, nothing inline, in nobody's frame.
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Asset(NamedTuple):
    """One file, and what tells this version from others."""

    body: bytes
    content_type: str
    etag: str


def load() -> dict[str, Asset]:
    """Return the page's files by path."""
    assets = {}
    for path in sorted(_FOLDER.rglob("*")):
        if path.is_file() and path.suffix in _TYPES:
            body = path.read_bytes()
            etag = hashlib.sha256(body).hexdigest()[:32]
            name = path.relative_to(_FOLDER).as_posix()
            assets[name] = Asset(body, _TYPES[path.suffix], etag)
    return assets
