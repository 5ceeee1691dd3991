# SPDX-License-Identifier: AGPL-3.0-only
"""The dashboard in a real browser; `nox -s browser` runs these."""
