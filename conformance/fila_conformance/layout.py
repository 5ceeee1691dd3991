# SPDX-License-Identifier: AGPL-3.0-only
"""Where things are: in the checkout, and in the user's cache for what is built."""

import os
from pathlib import Path

CONFORMANCE = Path(__file__).resolve().parent.parent
ROOT = CONFORMANCE.parent
CASES = CONFORMANCE / "cases"
SCHEMA = CONFORMANCE / "schema"
CERTS = CONFORMANCE / "certs"
DRIVERS = CONFORMANCE / "drivers"
KNOWN_FAILURES = CONFORMANCE / "known_failures"
MUTANTS = CONFORMANCE / "mutants"
REPORT = ROOT / "report"
DOCS_PAGE = ROOT / "docs" / "conformance.md"

# Outside the checkout, so that it holds nothing but its own files.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fila" / "conformance"
