# SPDX-License-Identifier: AGPL-3.0-only
"""Pictures of every view, at both widths, light and dark: `python -m server.browser.shots DIR`."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from fila import AclEntry
from server.browser.scene import busy
from server.browser.window import NARROW, WIDE, window
from server.tests.broker_process import BrokerProcess

KEY = "a-key-for-pictures-0123456789"
VIEWS = {
    "overview": "#/",
    "queue": "#/queue/orders",
    "letters": f"#/letters/{quote('mail.dlq', safe='')}",
    "explain": "#/explain/orders?key=globex",
    "settings": "#/settings",
    "keys": "#/keys",
}
# So long a page is open before its picture is taken: curves need some looks.
_OPEN_S = 14


def main() -> None:
    folder = Path(sys.argv[1])
    wanted = sys.argv[2:] or list(VIEWS)
    folder.mkdir(parents=True, exist_ok=True)
    environment = {"FILA_HTTP__LISTEN_ADDR": "127.0.0.1:0", "FILA_AUTH__BOOTSTRAP_APIKEY": KEY}
    with tempfile.TemporaryDirectory() as directory:
        broker = BrokerProcess(Path(directory), environment=environment)
        broker.start()
        try:
            with busy(broker.address, KEY) as client, window() as browser:
                client.create_api_key(
                    "billing", [AclEntry("produce", "orders"), AclEntry("consume", "orders")]
                )
                client.create_api_key("platform team", superadmin=True)
                browser.open(f"http://{broker.http_address}/")
                browser.find("#key")
                browser.shot(folder / "login.png")
                browser.fill("#key", KEY)
                browser.click("button", "Log in")
                browser.sees("Overview")
                for name in wanted:
                    browser.run("location.hash = arguments[0]", VIEWS[name])
                    time.sleep(_OPEN_S if name in ("queue", "overview") else 2)
                    for width in (WIDE, NARROW):
                        browser.size(*width)
                        for scheme in ("light", "dark"):
                            browser.colours(scheme)
                            time.sleep(0.7)
                            browser.shot(folder / f"{name}-{width[0]}-{scheme}.png")
                    assert browser.wrongs() == [], name
        finally:
            broker.close()


if __name__ == "__main__":
    main()
