# SPDX-License-Identifier: AGPL-3.0-only
"""The HTTP port from the outside."""
