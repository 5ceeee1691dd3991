# SPDX-License-Identifier: AGPL-3.0-only
"""Every view and what can be done in it, in a real browser on a busy broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from selenium.webdriver.common.keys import Keys

import fila
from server.browser.conftest import KEY
from server.browser.scene import ERRORS, HOSTILE, HOSTILE_ERROR
from server.browser.window import NARROW, Window
from server.tests.broker_process import BrokerProcess

Enter = Callable[..., Window]


# --- Coming in ------------------------------------------------------------------------------------


def test_a_wrong_key_is_told_so_and_a_right_one_gets_in(
    browser: Window, guarded: BrokerProcess, client: fila.Client
) -> None:
    browser.open(f"http://{guarded.http_address}/")
    browser.fill("#key", "wrong")
    browser.click("button", "Log in")
    browser.sees("the API key is not valid")
    browser.fill("#key", KEY)
    browser.click("button", "Log in")
    browser.sees("Overview")
    assert KEY not in browser.run("return document.documentElement.outerHTML + document.cookie")
    browser.click("#logout")
    browser.sees("You are logged out")
    browser.open(f"http://{guarded.http_address}/#/settings")
    browser.sees("Log in to Fila")


def test_a_revoked_key_is_out_at_once(
    enter: Enter, client: fila.Client, new_key: Callable[..., Any]
) -> None:
    key = new_key("admin:*")
    browser = enter(key=key.secret)
    browser.sees("webhooks")
    client.revoke_api_key(key.key_id)
    browser.sees("Log in to Fila")


def test_a_key_sees_only_what_it_may(enter: Enter, new_key: Callable[..., Any]) -> None:
    browser = enter(key=new_key("produce:orders", "admin:webhooks").secret)
    browser.sees("webhooks")
    text = browser.text()
    assert "orders" in text and "mail" not in text
    assert "Settings" not in text
    browser.run("location.hash = '#/queue/orders'")
    browser.sees('has no admin permission on queue "orders"')
    browser.run("location.hash = '#/queue/webhooks'")
    browser.sees("Pause the queue")
    # Weights and limits are for those who administer all queues.
    browser.sees("shop-1")
    assert not [it for it in browser.run(BUTTONS) if it in ("Weight", "Limit")]


BUTTONS = "return [...document.querySelectorAll('main button')].map((it) => it.textContent)"


def test_a_key_without_rights_is_told_what_it_has(
    enter: Enter, new_key: Callable[..., Any]
) -> None:
    browser = enter(key=new_key("produce:nowhere").secret)
    browser.sees("There is no queue that your API key may see.")
    browser.sees("produce:nowhere")


def test_an_empty_broker_says_how_to_begin(browser: Window, open_broker: BrokerProcess) -> None:
    browser.open(f"http://{open_broker.http_address}/")
    browser.sees("fila queue create orders")
    browser.sees("Nothing is wrong with this broker.")
    assert "Log in" not in browser.text() and "API keys" not in browser.text()
    browser.click("nav a", "Dead letters")
    browser.sees("No queue has dead letters.")
    browser.click("nav a", "Settings")
    browser.sees("Nothing is set.")


# --- Overview and queue ---------------------------------------------------------------------------


def test_queues_in_trouble_come_first(enter: Enter) -> None:
    browser = enter()
    browser.sees("What is wrong")
    browser.sees("Open webhooks")
    browser.sees("no consumer")
    rows = "return [...document.querySelectorAll('tbody th')].map((it) => it.innerText)"
    browser.until(lambda: browser.run(rows)[-1] == "exports")
    assert browser.run(rows)[0] in ("webhooks", "reports/daily")
    browser.fill("#match", "hook")
    browser.press(Keys.ENTER)
    browser.until(lambda: browser.run(rows) == ["webhooks"])
    browser.fill("#match", "nothing like it")
    browser.press(Keys.ENTER)
    browser.sees("No queue has")


def test_a_queue_shows_shares_against_what_they_should_be(enter: Enter) -> None:
    browser = enter("#/queue/orders")
    row = browser.row("initech", "Fairness keys")
    browser.until(lambda: " of " in browser.find(f"{row} .sharing").text)
    browser.sees("what its weight entitles it to")
    assert browser.run("return document.querySelectorAll('.share-mark').length") > 0
    browser.until(lambda: browser.run("return document.querySelectorAll('.uplot').length") == 2)
    browser.sees("Throttle key")
    assert HOSTILE in browser.find(browser.row(HOSTILE, "Fairness keys")).text


def test_a_queue_is_paused_and_resumed(enter: Enter, client: fila.Client) -> None:
    client.create_queue("stop.and.go")
    browser = enter("#/queue/stop.and.go")
    browser.click("button", "Pause the queue")
    browser.sees("Nothing of it is delivered")
    browser.click("dialog button", "Cancel")
    assert not client.stats("stop.and.go").paused
    browser.click("button", "Pause the queue")
    browser.click("dialog button", "Pause")
    browser.sees("Paused queue stop.and.go.")
    assert client.stats("stop.and.go").paused
    browser.click("button", "Resume the queue")
    browser.until(lambda: not client.stats("stop.and.go").paused)


def test_a_key_is_paused_and_resumed(enter: Enter, client: fila.Client) -> None:
    client.create_queue("one.key")
    client.enqueue("one.key", {}, b"x", fairness_key=HOSTILE)
    browser = enter("#/queue/one.key")
    row = browser.row(HOSTILE, "Fairness keys")
    browser.click(f"{row} button", "Pause")
    browser.click("dialog button", "Pause")
    browser.until(lambda: client.stats("one.key").per_key_stats[0].paused)
    browser.click(f"{row} button", "Resume")
    browser.until(lambda: not client.stats("one.key").per_key_stats[0].paused)


def test_a_weight_shows_what_it_changes_before_it_does(enter: Enter, client: fila.Client) -> None:
    client.create_queue("weights")
    for key in ("small", "large"):
        client.enqueue("weights", {}, b"x", fairness_key=key)
    browser = enter("#/queue/weights")
    browser.click(f"{browser.row('small', 'Fairness keys')} button", "Weight")
    browser.sees("Nothing changes yet.")
    browser.fill("dialog input", "3")
    browser.sees("small is entitled to")
    shown = browser.find("dialog .changes").text
    assert "50 % 75 %" in shown and "50 % 25 %" in shown
    assert client.get_config("weight:orders:acme") == "3"
    browser.click("dialog button", "Save")
    browser.sees("small has weight 3 now.")
    assert client.get_config("weight:weights:small") == "3"


def test_a_limit_names_the_keys_that_wait_for_it(enter: Enter, client: fila.Client) -> None:
    client.create_queue("waiters")
    for limit, key in (("bank", "acme"), ("post", HOSTILE)):
        client.set_config(f"throttle:{limit}:rate", "0.001")
        for _ in range(3):
            client.enqueue("waiters", {}, b"x", fairness_key=key, throttle_keys=[limit])
    assert len(client.receive("waiters", 10)) == 2  # a burst of one each
    browser = enter("#/queue/waiters")
    browser.find(browser.row("bank", "Throttle keys"), "acme (2)")
    other = browser.find(browser.row("post", "Throttle keys"), f"{HOSTILE} (2)")
    assert "acme" not in other.text
    browser.click(f"{browser.row('bank', 'Throttle keys')} a", "acme")
    browser.sees('throttle key "bank"')


def test_a_limit_shows_what_it_changes_before_it_does(enter: Enter, client: fila.Client) -> None:
    client.create_queue("limited")
    client.set_config("throttle:provider:rate", "1")
    for _ in range(20):
        client.enqueue("limited", {}, b"x", throttle_keys=["provider"])
    browser = enter("#/queue/limited")
    browser.click(f"{browser.row('provider', 'Throttle keys')} button", "Limit")
    browser.fill("dialog [name=rate]", "4")
    browser.sees("the 20 waiting take")
    assert "20 s 5 s" in browser.find("dialog .changes").text
    browser.click("dialog button", "Save")
    browser.sees("The limits of provider are changed.")
    assert client.get_config("throttle:provider:rate") == "4"


def test_what_the_broker_refuses_is_shown_where_it_was_asked(enter: Enter) -> None:
    browser = enter("#/settings")
    browser.click("button", "Add a setting")
    browser.fill("dialog [name=key]", "throttle:x:rate")
    browser.fill("dialog [name=value]", "many")
    browser.click("dialog button", "Save")
    browser.until(lambda: "many" in browser.find("dialog .problem").text)
    browser.press(Keys.ESCAPE)


# --- Dead letters ---------------------------------------------------------------------------------


def letters_of(client: fila.Client, queue: str, errors: list[str]) -> None:
    client.create_queue(queue, max_attempts=1)
    for number, error in enumerate(errors):
        client.enqueue(queue, {"note": HOSTILE}, f"{number} {HOSTILE}".encode(), fairness_key="k")
        (message,) = client.receive(queue, 1, wait_ms=30_000)
        message.nack(error)


def test_letters_are_grouped_and_a_selection_is_redriven(enter: Enter, client: fila.Client) -> None:
    letters_of(client, "again", ["timeout", "timeout", "no such user"])
    browser = enter("#/letters")
    browser.click("a", "again")
    browser.sees("3 letters, 0 selected.")
    row = browser.row("timeout", "Groups")
    assert "2" in browser.find(row).text
    browser.click(f"{row} input")
    browser.sees("2 selected")
    browser.click("main button", "Redrive")
    browser.sees("Redrive 2 letters?")
    browser.click("dialog button", "Redrive")
    browser.sees("2 letters redriven.")
    browser.sees("1 letter, 0 selected.")
    assert client.stats("again").depth == 2


def test_a_letter_is_looked_at_and_deleted(enter: Enter, client: fila.Client) -> None:
    letters_of(client, "look", [HOSTILE_ERROR, ERRORS[0]])
    browser = enter("#/letters/look.dlq")
    row = browser.row(HOSTILE_ERROR, "Groups")
    browser.click(f"{row} button", "Browse")
    browser.click("[aria-label='Dead letters'] button", "Look")
    browser.sees(f"0 {HOSTILE}")
    assert HOSTILE_ERROR in browser.find("dialog").text
    browser.click("dialog button", "Close")
    browser.click("[aria-label='Dead letters'] input[type=checkbox]")
    browser.sees("1 selected")
    browser.click("main button", "Delete")
    browser.click("dialog button", "Delete")
    browser.sees("1 letter deleted.")
    assert client.stats("look.dlq").depth == 1


# --- Explain, settings, keys ----------------------------------------------------------------------


def test_a_wait_is_explained_in_words_and_as_a_timeline(enter: Enter, client: fila.Client) -> None:
    client.create_queue("why")
    message_id = client.enqueue("why", {}, b"x", fairness_key=HOSTILE)
    client.pause("why")
    browser = enter("#/explain")
    browser.fill("[name=queue]", "why")
    browser.fill("[name=key]", HOSTILE)
    browser.click("main button", "Explain")
    browser.sees('queue "why" is paused')
    assert browser.find(".timeline .decides").text.count("pause") > 0
    browser.sees("nobody consumes queue")
    browser.run("location.hash = arguments[0]", f"#/explain/why?message={message_id}")
    browser.sees(f"message {message_id} waits")
    browser.fill("[name=queue]", "nowhere")
    browser.click("main button", "Explain")
    browser.sees('queue "nowhere" does not exist')


def test_a_setting_is_added_changed_and_removed(enter: Enter, client: fila.Client) -> None:
    browser = enter("#/settings")
    browser.sees("throttle:stripe:rate")
    browser.click("button", "Add a setting")
    browser.fill("dialog [name=key]", "greeting")
    browser.fill("dialog [name=value]", HOSTILE)
    browser.sees("not set")
    browser.click("dialog button", "Save")
    row = browser.row("greeting", "Runtime settings")
    assert client.get_config("greeting") == HOSTILE
    browser.click(f"{row} button", "Change")
    browser.fill("dialog [name=value]", "hello")
    browser.click("dialog button", "Save")
    browser.until(lambda: client.get_config("greeting") == "hello")
    browser.click(f"{row} button", "Remove")
    browser.click("dialog button", "Remove")
    browser.sees("Removed greeting.")
    assert "greeting" not in client.list_config()


def test_a_key_is_made_shown_once_changed_and_revoked(enter: Enter, client: fila.Client) -> None:
    browser = enter("#/keys")
    browser.click("button", "Make a key")
    browser.fill("dialog [name=name]", HOSTILE)
    browser.fill("dialog [name=acl]", "orders")
    browser.click("dialog button", "Make it")
    browser.sees("is no permission")
    browser.fill("dialog [name=acl]", "produce:orders consume:orders.*")
    browser.click("dialog button", "Make it")
    browser.sees("it is shown this once")
    secret = browser.find("#secret").text
    assert secret.startswith("fila_")
    browser.click("dialog button", "Close")
    row = browser.row(HOSTILE, "API keys")
    assert secret not in browser.run("return document.documentElement.outerHTML")
    browser.click(f"{row} button", "Change")
    browser.fill("dialog [name=acl]", "produce:orders")
    browser.click("dialog button", "Save")
    browser.until(lambda: "consume" not in browser.find(row).text)
    browser.click(f"{row} button", "Revoke")
    browser.click("dialog button", "Revoke")
    browser.until(lambda: HOSTILE not in browser.find("[aria-label='API keys']").text)
    assert HOSTILE not in [key.name for key in client.list_api_keys()]


# --- Ways to look ---------------------------------------------------------------------------------

CARDS = "return document.querySelectorAll('.card').length"
VIEWS = ("#/", "#/queue/orders", "#/letters/mail.dlq", "#/explain", "#/settings", "#/keys")


def test_nothing_is_wider_than_a_phone(enter: Enter) -> None:
    browser = enter()
    browser.size(*NARROW)
    for view in VIEWS:
        browser.run("location.hash = arguments[0]", view)
        browser.until(lambda: browser.run(CARDS) > 0)
        assert browser.run("return document.documentElement.scrollWidth") <= NARROW[0], view


def test_everything_has_a_name_and_a_place(enter: Enter) -> None:
    browser = enter()
    for view in VIEWS:
        browser.run("location.hash = arguments[0]", view)
        browser.until(lambda: browser.run(CARDS) > 0)
        assert browser.run(UNNAMED) == [], view
        landmarks = "return ['header', 'nav', 'main', 'h1'].filter((it) =>" + (
            " document.querySelectorAll(it).length !== 1)"
        )
        assert browser.run(landmarks) == [], view


# What a screen reader could not announce, and ids that are not unique.
UNNAMED = """
const named = (it) => it.getAttribute("aria-label") || it.textContent.trim() || it.labels?.length
  || document.querySelector(`label[for="${it.id}"]`);
const bad = [...document.querySelectorAll("button, a, input, select, textarea, [role=img]")]
  .filter((it) => !it.closest("[hidden]") && !named(it)).map((it) => it.outerHTML);
const ids = [...document.querySelectorAll("[id]")].map((it) => it.id);
const heads = [...document.querySelectorAll("table")].filter((it) => !it.querySelector("th[scope]")
  && !it.closest(".uplot")).map((it) => it.outerHTML);
return [...bad, ...heads, ...ids.filter((id, index) => ids.indexOf(id) !== index)];
"""

# The contrast of every visible text against what is behind it, where that is below 4.5.
FAINT = """
const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
const channel = (value) => value / 255 <= 0.03928 ? value / 255 / 12.92
  : ((value / 255 + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
function ground(it) {
  for (let at = it; at; at = at.parentElement) {
    const [r, g, b, a = 1] = numbers(getComputedStyle(at).backgroundColor);
    if (a === 1) return [r, g, b];
  }
  return [255, 255, 255];
}
return [...document.querySelectorAll("body *")].filter((it) =>
  it.checkVisibility() && !it.disabled && !it.closest(":disabled, .unseen")
  && [...it.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .map((it) => {
    const [a, b] = [light(numbers(getComputedStyle(it).color)), light(ground(it))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), it.textContent.slice(0, 40)];
  }).filter(([contrast]) => contrast < 4.5);
"""


def test_both_colour_schemes_can_be_read(enter: Enter) -> None:
    browser = enter()
    grounds = set()
    for scheme in ("light", "dark"):
        browser.colours(scheme)
        for view in VIEWS:
            browser.run("location.hash = arguments[0]", view)
            browser.until(lambda: browser.run(CARDS) > 0)
            assert browser.run(FAINT) == [], (scheme, view)
        grounds.add(browser.run("return getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2
    browser.click("#theme")
    browser.click("#theme", "Light")
    assert browser.run("return document.documentElement.dataset.theme") == "dark"
    browser.click("#theme", "Dark")


def test_a_queue_is_paused_with_the_keyboard_alone(enter: Enter, client: fila.Client) -> None:
    client.create_queue("by.hand")
    browser = enter("#/")
    browser.fill("#match", "by.hand")
    browser.press(Keys.ENTER)
    browser.row("by.hand", "Queues")
    browser.tab_to("by.hand")
    browser.press(Keys.ENTER)
    browser.sees("Pause the queue")
    browser.tab_to("Pause the queue")
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert browser.run(outline) == "solid"
    browser.press(Keys.ENTER)
    browser.sees("Nothing of it is delivered")
    assert browser.focused() == "Pause"
    browser.press(Keys.ENTER)
    browser.sees("Paused queue by.hand.")
    assert client.stats("by.hand").paused


def test_focus_stays_while_the_page_is_drawn_anew(enter: Enter) -> None:
    browser = enter("#/queue/orders")
    browser.find("button", "Pause the queue")
    browser.tab_to("Explain a wait")
    browser.run("window.before = document.querySelector('.facts').innerText")
    browser.until(
        lambda: browser.run("return document.querySelector('.facts').innerText !== window.before")
    )
    assert browser.focused() == "Explain a wait"


def test_a_broker_that_is_gone_is_told_of(browser: Window, tmp_path: Any) -> None:
    broker = BrokerProcess(tmp_path, environment={"FILA_HTTP__LISTEN_ADDR": "127.0.0.1:0"})
    broker.start()
    browser.open(f"http://{broker.http_address}/")
    browser.sees("fila queue create orders")
    broker.terminate()
    browser.sees("the broker does not answer")


def test_names_that_are_markup_are_shown_as_they_are(enter: Enter) -> None:
    browser = enter("#/letters/mail.dlq")
    browser.sees(HOSTILE_ERROR)
    browser.sees(HOSTILE)
    assert browser.run("return document.querySelectorAll('main img, main script').length") == 0
    browser.run("location.hash = arguments[0]", f"#/queue/{HOSTILE}")
    browser.sees("does not exist")
    browser.run("location.hash = '#/queue/%E0%A4%A'")  # a link that was cut short
    browser.sees("queue must not be empty")
