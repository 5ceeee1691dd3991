# SPDX-License-Identifier: AGPL-3.0-only
"""One recording of all brokers for all questions about it."""

import pytest

from server.rules.engine import Recording
from server.rules.ward import record


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record(tmp_path_factory.mktemp("ward"))
