# SPDX-License-Identifier: AGPL-3.0-only
"""Measurements of Fila. Each prints ratios within one run: machines differ and are noisy."""
