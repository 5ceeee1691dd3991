# SPDX-License-Identifier: AGPL-3.0-only
"""What all tests share: the disk that fails on demand, and how Hypothesis runs."""

import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

# A loaded machine may take any time for an example.
settings.register_profile("fila", deadline=None)
settings.load_profile("fila")

# A shell's background job ignores Ctrl-C, and so would the processes that tests send it to.
signal.signal(signal.SIGINT, signal.default_int_handler)

SOURCE = Path(__file__).parent / "storage" / "faultfs.c"


@pytest.fixture(scope="session")
def faultfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the disk that fails, and return the library to preload."""
    library = tmp_path_factory.mktemp("faultfs") / "faultfs.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(SOURCE), "-ldl"], check=True)
    return library
