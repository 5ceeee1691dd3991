# SPDX-License-Identifier: AGPL-3.0-only
"""Fila beside other brokers, on one machine in one run: `nox -s bench -- peers`."""
