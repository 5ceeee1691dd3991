# SPDX-License-Identifier: AGPL-3.0-only
"""The broker and its command line. Holds the version: reading it from the package's metadata takes
longer than the rest of `fila --version`. `nox -s tidy` holds it to the manifest.
"""

__version__ = "0.1.0"
