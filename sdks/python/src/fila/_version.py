# SPDX-License-Identifier: AGPL-3.0-only
"""This package's version. Written down, because reading it from the package's metadata takes longer
than importing the rest of this package; `nox -s tidy` holds it to the manifest.
"""

__version__ = "0.1.0"
