# SPDX-License-Identifier: AGPL-3.0-only
"""What people see of a broker that holds nothing yet: what to do first."""

from collections.abc import Iterator

import pytest

from server.tests.broker_process import BrokerProcess

from .conftest import Fila

BOOTSTRAP = "bootstrap-key-of-the-tests-0123456789"


@pytest.fixture(scope="module")
def fila(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fila]:
    environment = {"FILA_BOOTSTRAP_APIKEY": BOOTSTRAP}
    broker = BrokerProcess(tmp_path_factory.mktemp("empty"), environment=environment)
    broker.start()
    yield Fila(broker.address)
    broker.close()


@pytest.mark.parametrize(
    ("words", "text", "document"),
    [
        (
            ("queue", "list"),
            "No queues yet. Create one with: fila queue create NAME",
            {"queues": []},
        ),
        (
            ("config", "list"),
            "No entries yet. Set one with: fila config set KEY VALUE",
            {"entries": {}},
        ),
        (
            ("throttle", "list"),
            "No throttles yet. Set one with: fila throttle set KEY --rate 10",
            {"throttles": [], "total_count": 0, "patterns": []},
        ),
        (
            ("throttle", "list", "--unset"),
            "Every throttle key in use has a limit.",
            {"throttles": [], "total_count": 0, "patterns": []},
        ),
        (("auth", "list"), "No API keys yet. Create one with: fila auth create ", {"keys": []}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_empty_list_says_what_to_do(
    fila: Fila, words: tuple[str, ...], text: str, document: object
) -> None:
    assert fila(*words, FILA_API_KEY=BOOTSTRAP).ok().startswith(text)
    assert fila(*words, "--json", FILA_API_KEY=BOOTSTRAP).json() == document
