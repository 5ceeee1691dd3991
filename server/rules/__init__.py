# SPDX-License-Identifier: AGPL-3.0-only
"""Alert rules and Grafana's queries, evaluated by Prometheus's own engine: `nox -s rules`."""
