# SPDX-License-Identifier: AGPL-3.0-only
"""What the nox sessions run. Each script is `python -m tools.<name>` from the root of the tree."""
