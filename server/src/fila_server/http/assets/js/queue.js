// SPDX-License-Identifier: AGPL-3.0-only
// One queue: who gets how much and who should, what holds whom back, and what can be done.

import * as api from "./api.js";
import { chart, draw, level, shareBar } from "./charts.js";
import { button, h, section, table } from "./dom.js";
import { age, count, duration, fromNow, percent, plain, plural, rate } from "./format.js";
import * as history from "./history.js";
import { editLimit, editWeight } from "./edits.js";
import { ask } from "./dialogs.js";

const WAITERS_SHOWN = 8;

let seen = null;
let failure = "";

export const title = (page) => page.route.subject;

export function enter() {
  seen = null;
  failure = "";
}

export async function look(page) {
  const name = page.route.subject;
  const found = await api.get(`/api/queue?name=${encodeURIComponent(name)}`);
  if (found.name !== page.route.subject) return;
  seen = found;
  failure = "";
  history.remember(`queue ${name}`, found.at, {
    counters: found.counters,
    depth: found.depth,
    in_flight: found.in_flight,
    throttled: found.throttled,
    keys: found.per_key_stats,
    active: found.active_fairness_keys,
  });
}

// A queue that was never seen has nothing to show but the failure.
export function failed(page, error) {
  if (seen) return false;
  failure = error.message;
  page.draw();
  return true;
}

export function render(page) {
  const name = page.route.subject;
  const head = h("div", { class: "title" },
    h("p", { class: "trail" }, h("a", { href: "#/" }, "Overview"), " / "),
    h("h1", {}, name),
    seen?.paused && h("span", { class: "badge warning" }, "◆ paused"));
  if (!seen) {
    return [head, failure ? h("p", { class: "problem" }, failure)
      : h("p", { class: "muted" }, "Looking …")];
  }
  return [head, actionsOf(name), facts(), shares(page), limits(page), curves(), waits(),
    consumers(), hooks(), config()];
}

export function drawn(page) {
  if (!seen) return;
  const name = `queue ${page.route.subject}`;
  draw("flow", ["enqueued", "delivered", "acked"],
    history.curves(name, ["enqueued", "delivered", "acked"]));
  draw("level", ["waiting", "leased", "throttled"],
    history.levels(name, ["depth", "in_flight", "throttled"]));
}

function actionsOf(name) {
  const letters = seen.dead_letter_of ? name : `${name}.dlq`;
  return h("div", { class: "actions", "data-key": "actions" },
    seen.paused ? button("Resume the queue", "resume", { queue: name }, { class: "primary" })
      : button("Pause the queue", "pause", { queue: name }),
    h("a", { class: "button", href: `#/explain/${encodeURIComponent(name)}` }, "Explain a wait"),
    h("a", { class: "button", href: `#/letters/${encodeURIComponent(letters)}` }, "Dead letters"));
}

function facts() {
  const rows = [
    ["Waiting", count(seen.depth)],
    ["Leased", count(seen.in_flight)],
    ["Delayed", count(seen.delayed)],
    ["Throttled", count(seen.throttled)],
    ["Oldest waits", age(seen.oldest_pending_age_ms)],
    ["Consumers", count(seen.active_consumers)],
    ["Credit left", count(seen.consumer_credit)],
    ["Active keys", count(seen.active_fairness_keys)],
    ["Nacked", count(seen.counters.nacked)],
    ["Expired", count(seen.counters.expired)],
    ["Died", count(seen.counters.dead_lettered)],
  ];
  return h("dl", { class: "facts" }, rows.map(([name, value]) =>
    h("div", { "data-key": name }, h("dt", {}, name), h("dd", {}, value))));
}

// --- Shares --------------------------------------------------------------------------------------

function verdict(row) {
  if (row.paused) return ["warning", "◆ paused"];
  if (!row.pending_count) return ["", "nothing waits"];
  if (row.throttled >= row.pending_count) return ["notice", "● held back by a limit"];
  if (row.share === null) return ["", "measuring"];
  if (row.isModest) return ["well", "✓ gets all it asks for"];
  const short = row.entitled - row.share;
  if (short > Math.max(0.02, row.entitled * 0.2)) {
    return row.isThrottledAtTimes ? ["notice", "● a limit holds it back at times"]
      : ["warning", "◆ below its share"];
  }
  if (short < -Math.max(0.02, row.entitled * 0.2)) return ["", "takes what others leave"];
  return ["well", "✓ gets its share"];
}

function shares(page) {
  const name = page.route.subject;
  const found = history.shares(`queue ${name}`);
  if (!found.rows.length) {
    return section("Shares", h("p", { class: "muted" }, "Nothing waits, so nobody's share is"
      + " contested. Keys show up here while they have messages waiting."));
  }
  const most = Math.max(0.01, ...found.rows.flatMap((row) => [row.share ?? 0, row.entitled ?? 0]));
  const rows = [...found.rows].sort((a, b) =>
    (b.entitled ?? 0) - (a.entitled ?? 0) || b.pending_count - a.pending_count);
  return section("Shares",
    h("p", { class: "muted" }, found.seconds
      ? `${plural(found.total, "delivery")} in the last ${Math.round(found.seconds)} s. `
      : "Measuring. ",
    h("span", { class: "legend" }, h("span", { class: "key-fill" }), "what a key gets  ",
      h("span", { class: "key-mark" }), "what its weight entitles it to, of those that can be"
      + " delivered now")),
    table("Fairness keys", shareColumns(name, most, page), rows, (row) => row.key),
    found.others > 0 && found.total > 0 && h("p", { class: "muted" },
      `${percent(found.others / found.total)} went to keys that are not listed.`),
    found.hidden > 0 && h("p", { class: "muted" },
      `${plural(found.hidden, "more key")} with messages waiting, each taken to have weight 1.`));
}

function shareColumns(queue, most, page) {
  const waits = seen.per_key_stats.some((row) => row.traffic);
  return [
    { title: "Fairness key", head: true, cell: (row) => row.key },
    { title: "Share", class: "wide", cell: (row) => h("div", { class: "sharing" },
      shareBar(row.share, row.entitled, most),
      h("span", {}, row.entitled === null ? percent(row.share)
        : `${percent(row.share)} of ${percent(row.entitled)}`)) },
    { title: "State", class: "full", cell: (row) => {
      const [kind, words] = verdict(row);
      return h("span", { class: `badge ${kind}` }, words);
    } },
    { title: "Weight", number: true, cell: (row) => count(row.weight) },
    { title: "Waiting", number: true, cell: (row) => count(row.pending_count) },
    { title: "Throttled", number: true, cell: (row) => count(row.throttled) },
    waits && { title: "Waits p50", number: true, cell: (row) =>
      duration(row.traffic?.wait_p50_ms) },
    waits && { title: "p95", number: true, cell: (row) => duration(row.traffic?.wait_p95_ms) },
    { title: "Actions", class: "full", cell: (row) => h("div", { class: "row-actions" },
      row.paused ? button("Resume", "resume", { queue, key: row.key })
        : button("Pause", "pause", { queue, key: row.key }),
      page.who.administers_all && button("Weight", "weight", { queue, key: row.key }),
      h("a", { class: "button", href: explainLink(queue, row.key) }, "Why?")) },
  ].filter(Boolean);
}

const explainLink = (queue, key) =>
  `#/explain/${encodeURIComponent(queue)}?key=${encodeURIComponent(key)}`;

// --- Limits --------------------------------------------------------------------------------------

function limits(page) {
  const rows = seen.per_throttle_stats;
  if (!rows.length) {
    return section("Limits", h("p", { class: "muted" },
      "No message that waits or is leased carries a throttle key."));
  }
  return section("Limits",
    table("Throttle keys", [
      { title: "Throttle key", head: true, cell: (row) => row.key },
      { title: "Limit", class: "full", cell: limitOf },
      { title: "Tokens", class: "full", cell: (row) => (row.rate_per_second
        ? h("span", {}, level(row.tokens, row.burst),
          ` ${plain(row.tokens)} of ${plain(row.burst)}`) : "–") },
      { title: "Leased", number: true, cell: (row) => (row.concurrency_limit
        ? `${count(row.in_flight)} of ${count(row.concurrency_limit)}` : count(row.in_flight)) },
      { title: "Waiting", number: true, cell: (row) => count(row.waiting) },
      { title: "Who waits for it", class: "full", cell: (row) => waitersOf(page.route.subject,
        row.key) },
      { title: "Passes", number: true, cell: (row) => rate(row.passed_per_second) },
      { title: "Actions", class: "full", cell: (row) => page.who.administers_all && h("div",
        { class: "row-actions" },
        button("Limit", "limit", { key: row.key }),
        row.paused || row.paused_until ? button("Resume", "resume", { throttle: row.key })
          : button("Pause", "pause", { throttle: row.key })) },
    ], rows, (row) => row.key),
    otherWaiters(page.route.subject));
}

function limitOf(row) {
  const words = [];
  if (row.paused_until) words.push(`rests, ${fromNow(row.paused_until)} it goes on`);
  else if (row.paused) words.push("paused");
  if (row.rate_per_second) words.push(`${plain(row.rate_per_second)}/s, burst ${plain(row.burst)}`);
  if (row.concurrency_limit) words.push(`${count(row.concurrency_limit)} at a time`);
  if (row.pattern) words.push(`from ${row.pattern}`);
  return words.join("; ") || "nobody set one";
}

// The fairness keys of which a throttle key holds messages back, the most first.
function waitersOf(queue, throttleKey) {
  const held = seen.waiters.filter((row) => row.throttle_keys.includes(throttleKey));
  return held.length ? waiterLinks(queue, held) : "–";
}

// Those of which too little is held back to be asked about.
function otherWaiters(queue) {
  const known = new Set(seen.waiters.filter((row) => row.throttle_keys.length)
    .map((row) => row.key));
  const held = seen.per_key_stats.filter((row) => row.throttled > 0 && !known.has(row.key))
    .sort((a, b) => b.throttled - a.throttled);
  return held.length ? h("p", {}, "Also held back by a limit: ", waiterLinks(queue, held)) : null;
}

function waiterLinks(queue, held) {
  const shown = held.slice(0, WAITERS_SHOWN).map((row) => [
    h("a", { href: explainLink(queue, row.key) }, row.key), ` (${count(row.throttled)}) `]);
  return [shown, held.length > WAITERS_SHOWN
    && `and ${plural(held.length - WAITERS_SHOWN, "more key")}`];
}

// --- The rest ------------------------------------------------------------------------------------

function curves() {
  return section("Flow", h("div", { class: "charts" },
    h("figure", {}, h("figcaption", {}, "Messages per second"),
      chart("flow", "Messages enqueued, delivered and acked per second since the page was opened")),
    h("figure", {}, h("figcaption", {}, "Messages"),
      chart("level", "Messages waiting, leased and throttled since the page was opened"))));
}

const CAUSES = {
  turn: "its turn", throttle: "a throttle key", concurrency: "a concurrency limit",
  pause: "a pause to end", delay: "its time", no_consumer: "a consumer",
};

function waits() {
  if (!seen.waits.length) return null;
  return section("What deliveries waited for",
    table("Causes", [
      { title: "Waited for", head: true, cell: (row) => CAUSES[row.cause] ?? row.cause },
      { title: "Deliveries", number: true, cell: (row) => count(row.count) },
      { title: "p50", number: true, cell: (row) => duration(row.p50_ms) },
      { title: "p95", number: true, cell: (row) => duration(row.p95_ms) },
    ], [...seen.waits].sort((a, b) => b.p95_ms - a.p95_ms), (row) => row.cause));
}

function consumers() {
  if (!seen.consumers.length) {
    return section("Consumers", h("p", { class: "muted" }, seen.active_consumers
      ? `${plural(seen.active_consumers, "open stream")}, with credit for ${
        plural(seen.consumer_credit, "more message")}.`
      : "Nobody consumes this queue with a stream. Workers that pull show up while they wait."));
  }
  return section("Consumers",
    table("Consumers", [
      { title: "Stream", head: true, cell: (row) => `#${row.number}` },
      { title: "Leased", number: true, cell: (row) => count(row.in_flight) },
      { title: "Credit left", number: true, cell: (row) => count(row.credit) },
      { title: "Most in a frame", number: true, cell: (row) => count(row.max_batch) },
      { title: "API key", cell: (row) => row.key_id || "–" },
    ], seen.consumers, (row) => row.number));
}

function hooks() {
  const found = seen.hooks;
  if (!found) return null;
  return section("Hooks",
    h("p", {}, found.circuit_open
      ? h("span", { class: "badge critical" }, "▲ bypassed: it failed too often")
      : h("span", { class: "badge well" }, "✓ in use"),
    ` ${plural(found.calls, "call")} answered, ${count(found.failures)} failed, ${
      count(found.bypassed)} enqueued without it.`),
    found.last_error && h("p", {}, "Last failure: ", h("code", {}, found.last_error)));
}

function config() {
  const settings = Object.entries(seen.config).filter(([name]) => !name.endsWith("_script"));
  const scripts = Object.entries(seen.config).filter(([name, text]) =>
    name.endsWith("_script") && text);
  return section("Settings of the queue", h("details", { "data-key": "config" },
    h("summary", {}, "Show them"),
    h("p", { class: "muted" }, "0 is the default. Change them with fila queue update."),
    h("dl", { class: "pairs" }, settings.map(([name, value]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, String(value))))),
    scripts.map(([name, text]) => [h("h3", {}, name), h("pre", {}, text)])));
}

// --- What can be done ----------------------------------------------------------------------------

function target({ queue, key, throttle }) {
  if (throttle !== undefined) return [{ throttle_key: throttle }, `throttle key ${throttle}`];
  if (key !== undefined) return [{ queue, fairness_key: key }, `key ${key}`];
  return [{ queue }, `queue ${queue}`];
}

export const actions = {
  async pause(page, data) {
    const [request, what] = target(data);
    const where = data.throttle !== undefined ? "from any queue" : "from this queue";
    const done = await ask({
      title: `Pause ${what}?`,
      intro: `Nothing of it is delivered ${where} until it is resumed. Messages are still accepted,`
        + " and what is leased can still be acked.",
      confirm: "Pause",
      isDanger: true,
      save: () => api.call("Pause", request),
    });
    if (done) await page.act(async () => null, `Paused ${what}.`);
  },
  resume(page, data) {
    const [request, what] = target(data);
    return page.act(() => api.call("Resume", request), `Resumed ${what}.`);
  },
  async weight(page, { queue, key }) {
    if (await editWeight(queue, key, seen.per_key_stats)) await page.refresh();
  },
  async limit(page, { key }) {
    const row = seen.per_throttle_stats.find((it) => it.key === key);
    if (row && await editLimit(row)) await page.refresh();
  },
};
