# SPDX-License-Identifier: AGPL-3.0-only
"""The rules of `nox -s tidy`, one module per subject, each a function from a Tree to problems."""
