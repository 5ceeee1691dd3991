# SPDX-License-Identifier: AGPL-3.0-only
"""What the command says of itself."""

import pytest

from bench.peers.command import told
from bench.peers.roster import PEERS


def test_command_on_the_page_names_no_file() -> None:
    given = ["peers", "--quick", "--json", "somewhere/all.json", "--plots=there", "--page"]
    assert told(given) == ["peers", "--quick", "--page"]


@pytest.mark.parametrize("name", ["redis", "beanstalkd", "rabbitmq"])
def test_broker_that_is_not_installed_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "is not installed" in (PEERS[name].missing() or "")
    assert PEERS[name].install.startswith("apt-get install ")
