# SPDX-License-Identifier: AGPL-3.0-only
"""What all tests share: the disk that fails on demand, the log, and how Hypothesis runs."""

import logging
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from server.tests.preload import FAULTFS, compiled

# A loaded machine may take any time for an example.
settings.register_profile("fila", deadline=None)
settings.load_profile("fila")

# A shell's background job ignores Ctrl-C, and so would the processes that tests send it to.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def faultfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the disk that fails, and return the library to preload."""
    return compiled(FAULTFS, tmp_path_factory.mktemp("faultfs"))


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[logging.LogRecord]]:
    """What the broker's own code has logged so far; gRPC and other tests' clients log as well."""
    return lambda: [row for row in caplog.records if row.name.startswith("fila_server")]
