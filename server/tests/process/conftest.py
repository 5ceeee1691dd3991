# SPDX-License-Identifier: AGPL-3.0-only
"""Brokers for the tests of the process as a whole."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server.tests.broker_process import BrokerProcess


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Make a broker that is ended with the test; options are those of BrokerProcess."""
    made: list[BrokerProcess] = []

    def make(**options: Any) -> BrokerProcess:
        directory = tmp_path / f"broker{len(made)}"
        directory.mkdir()
        made.append(BrokerProcess(directory, **options))
        return made[-1]

    yield make
    for broker in made:
        broker.close()
