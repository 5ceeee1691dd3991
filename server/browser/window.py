# SPDX-License-Identifier: AGPL-3.0-only
"""A headless chromium, driven by selenium, that remembers what went wrong on the page."""

from __future__ import annotations

import base64
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

WAIT_S = 60.0
WIDE = (1280, 900)
NARROW = (390, 844)

_FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-background-networking
--disable-component-update --disable-sync --no-first-run --disable-dev-shm-usage
--hide-scrollbars""".split()
# Whatever the page did against its own policy, from the first line of its first script on.
_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(event.violatedDirective + " " + event.blockedURI);
});
window.addEventListener("error", (event) => window.violations.push("error " + event.message));
window.addEventListener("unhandledrejection",
  (event) => window.violations.push("rejection " + event.reason));
"""


class Window:
    """One browser window."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def colours(self, scheme: str) -> None:
        """Let the system prefer dark or light."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, url: str) -> None:
        self.driver.get(url)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, what: Callable[[], Any]) -> Any:
        """Wait until something is there, and return it."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                found = what()
            except (StaleElementReferenceException, WebDriverException):
                found = None  # the page was drawn anew meanwhile
            if found:
                return found
            assert time.monotonic() < deadline, f"never on the page:\n{self.text()}"
            time.sleep(0.05)

    def text(self) -> str:
        """All that a person can read."""
        return str(self.run("return document.body.innerText"))

    def sees(self, text: str) -> None:
        self.until(lambda: text in self.text())

    def find(self, selector: str, text: str = "") -> WebElement:
        """Return the first visible element with a text of its own, once it is there."""

        def look() -> WebElement | None:
            for element in self.driver.find_elements(By.CSS_SELECTOR, selector):
                if element.is_displayed() and text in element.text:
                    return element  # type: ignore[no-any-return]
            return None

        found: WebElement = self.until(look)
        return found

    def row(self, text: str, table: str = "") -> str:
        """Return a selector for the row of a table whose header cell holds a text."""

        def look() -> str:
            found: str = self.run(
                """
                const [text, table] = arguments;
                const rows = document.querySelectorAll(`table[aria-label^="${table}"] tbody tr`);
                const row = [...rows].find((it) =>
                  it.querySelector("th").textContent.includes(text));
                return row ? `tr[data-key="${CSS.escape(row.dataset.key)}"]` : "";
                """,
                text,
                table,
            )
            return found

        selector: str = self.until(look)
        return selector

    def click(self, selector: str, text: str = "") -> None:
        def press() -> bool:
            self.find(selector, text).click()
            return True

        self.until(press)

    def fill(self, selector: str, text: str) -> None:
        element = self.find(selector)
        element.clear()
        element.send_keys(text)

    def press(self, *keys: str) -> None:
        """Press keys as they come, wherever the focus is."""
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def focused(self) -> str:
        """What the focus is on is called. A box that scrolls can have it, too, and has no name:
        what stands inside of it is not its own.
        """
        return str(
            self.run(
                "const it = document.activeElement;"
                "const own = it.matches('a, button, summary') ? it.textContent : '';"
                "return it.getAttribute('aria-label') || own || it.id || it.tagName"
            )
        )

    def tab_to(self, text: str) -> None:
        """Press Tab until the focus is on something that is called so."""
        for _ in range(200):
            self.press(Keys.TAB)
            if text in self.focused():
                return
        raise AssertionError(f"no way to {text!r} with the Tab key")

    def wrongs(self) -> list[str]:
        """What went against the page's policy or failed in a script."""
        found: list[str] = self.run("return window.violations")
        return found

    def shot(self, path: Path) -> None:
        """Save a picture of the whole page."""
        height = self.run("return document.documentElement.scrollHeight")
        width = self.run("return innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, 4000), "scale": 1}
        taken = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
        )
        path.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def window() -> Iterator[Window]:
    """Open a browser of its own, and leave nothing of it behind."""
    profile = tempfile.mkdtemp(prefix="fila-browser-")
    options = Options()
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or "chromium"
    service = Service(executable_path=shutil.which("chromedriver") or "chromedriver")
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _WATCH})
        found = Window(driver)
        found.size(*WIDE)
        yield found
    finally:
        driver.quit()
        shutil.rmtree(profile, ignore_errors=True)
