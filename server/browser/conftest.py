# SPDX-License-Identifier: AGPL-3.0-only
"""One browser, one busy broker with API keys, and one that anybody may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fila
from server.browser.scene import busy
from server.browser.window import WIDE, Window, window
from server.tests.broker_process import BrokerProcess

KEY = "bootstrap-key-of-the-browser-0123456789"
ON = {"FILA_HTTP__LISTEN_ADDR": "127.0.0.1:0"}


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    environment = {**ON, "FILA_AUTH__BOOTSTRAP_APIKEY": KEY}
    broker = BrokerProcess(tmp_path_factory.mktemp("guarded"), environment=environment)
    broker.start()
    yield broker
    broker.close()


@pytest.fixture(scope="session")
def client(guarded: BrokerProcess) -> Iterator[fila.Client]:
    """A client of the busy broker, and its traffic."""
    with busy(guarded.address, KEY) as client:
        yield client


@pytest.fixture(scope="session")
def open_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("open"), environment=ON)
    broker.start()
    yield broker
    broker.close()


@pytest.fixture(scope="session")
def driver() -> Iterator[Window]:
    with window() as found:
        yield found


@pytest.fixture
def browser(driver: Window) -> Iterator[Window]:
    """The browser without cookies; a page that breaks its own policy fails the test."""
    driver.driver.delete_all_cookies()
    driver.size(*WIDE)
    driver.colours("light")
    yield driver
    assert driver.wrongs() == []
    assert driver.run("return window.hacked ?? null") is None
    driver.driver.delete_all_cookies()
    driver.open("about:blank")


@pytest.fixture
def enter(browser: Window, guarded: BrokerProcess, client: fila.Client) -> Callable[..., Window]:
    """Log in with a key, and go somewhere."""

    def run(where: str = "#/", key: str = KEY) -> Window:
        browser.open(f"http://{guarded.http_address}/{where}")
        browser.fill("#key", key)
        browser.click("button", "Log in")
        browser.until(lambda: browser.run("return !document.getElementById('nav').hidden"))
        return browser

    return run


@pytest.fixture
def new_key(client: fila.Client) -> Callable[..., Any]:
    def create(*acl: str) -> Any:
        entries = [fila.AclEntry(*entry.split(":")) for entry in acl]
        return client.create_api_key("visitor", entries)

    return create
