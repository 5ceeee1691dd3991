# SPDX-License-Identifier: AGPL-3.0-only
"""Brokers with settings of the test's own."""

from server.tests.rpc.conftest import start

__all__ = ["start"]
