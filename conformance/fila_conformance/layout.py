# SPDX-License-Identifier: AGPL-3.0-only
"""Where things are: in the checkout or the wheel, and in the user's cache for what is built."""

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# A wheel brings what cases are made of inside the package; everything else is the checkout's.
_DATA = _PACKAGE / "data"
CONFORMANCE = _DATA if _DATA.is_dir() else _PACKAGE.parent
PROTOCOL_PAGE = CONFORMANCE / "PROTOCOL.md"
ROOT = _PACKAGE.parent.parent
CASES = CONFORMANCE / "cases"
SCHEMA = CONFORMANCE / "schema"
CERTS = CONFORMANCE / "certs"
DRIVERS = CONFORMANCE / "drivers"
KNOWN_FAILURES = CONFORMANCE / "known_failures"
MUTANTS = CONFORMANCE / "mutants"
EXAMPLES = CONFORMANCE / "examples"
REPORT = ROOT / "report"
DOCS_PAGE = ROOT / "docs" / "conformance.md"

# Outside the checkout, so that it holds nothing but its own files.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fila" / "conformance"
