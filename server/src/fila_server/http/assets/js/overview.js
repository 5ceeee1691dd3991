// SPDX-License-Identifier: AGPL-3.0-only
// All queues, those in trouble first, and what is wrong with the broker.

import * as api from "./api.js";
import { sparkline } from "./charts.js";
import { button, h, section, table } from "./dom.js";
import { age, at, bytes, count, duration, plural, rate } from "./format.js";
import * as history from "./history.js";

const SIGNS = { critical: "▲", warning: "◆", notice: "●" };
const RANKS = { critical: 3, warning: 2, notice: 1 };

let seen = null;
let match = "";

export const title = () => "Fila";

export async function look(page) {
  const asked = match;
  const found = await api.get(`/api/overview?match=${encodeURIComponent(asked)}`);
  for (const row of found.queues) history.remember(`row ${row.name}`, found.at, row);
  if (asked === match) seen = found;
}

export function render(page) {
  if (!seen) return [h("h1", {}, "Overview"), h("p", { class: "muted" }, "Looking …")];
  return [
    h("h1", {}, "Overview"),
    facts(),
    troubles(),
    seen.queue_count === 0 && !match ? nothing(page) : queues(),
  ];
}

// --- The broker ----------------------------------------------------------------------------------

function facts() {
  const status = seen.status;
  const sums = { depth: 0, in_flight: 0, dead_letters: 0, throttled: 0 };
  for (const row of seen.queues) {
    for (const name of Object.keys(sums)) sums[name] += row[name];
  }
  return h("dl", { class: "facts" },
    fact("Queues", count(seen.queue_count)),
    fact("Waiting", count(sums.depth)),
    fact("Leased", count(sums.in_flight)),
    fact("Throttled", count(sums.throttled)),
    fact("Dead letters", count(sums.dead_letters)),
    status && [
      fact("Disk free", `${bytes(status.disk_free_bytes)}${status.disk_low ? " (low)" : ""}`),
      fact("Memory", bytes(status.memory_bytes)),
      fact("Connections", count(status.connections), `${count(status.max_connections)} at most`),
      fact("Version", status.version),
      status.started_at && fact("Up",
        duration(Math.max(0, seen.at - status.started_at)), `since ${at(status.started_at)}`),
    ]);
}

function fact(name, value, hint) {
  return h("div", { "data-key": name, title: hint }, h("dt", {}, name), h("dd", {}, value));
}

function troubles() {
  if (!seen.status) return null;
  const rank = (row) => RANKS[row.severity] ?? 0;
  const rows = [...seen.troubles].sort((a, b) => rank(b) - rank(a));
  if (!rows.length) return h("p", { class: "well" }, "✓ Nothing is wrong with this broker.");
  return section("What is wrong",
    h("ul", { class: "troubles" }, rows.map((row) =>
      h("li", { class: row.severity, "data-key": `${row.kind} ${row.queue} ${row.what}` },
        h("span", { class: `badge ${row.severity}` },
          `${SIGNS[row.severity] ?? "●"} ${row.severity}`),
        h("div", {},
          h("p", {}, row.what),
          h("p", { class: "remedy" }, row.remedy, row.queue && [" · ",
            h("a", { href: placeOf(row) }, `Open ${row.queue}`)]))))));
}

const placeOf = (row) => (row.kind === "dead_letters"
  ? `#/letters/${encodeURIComponent(`${row.queue}.dlq`)}` : queueLink(row.queue));

// --- The queues ----------------------------------------------------------------------------------

export const queueLink = (name) => `#/queue/${encodeURIComponent(name)}`;

// What a person should look at, in a word or two; the words also sort.
function signs(row) {
  const found = [];
  if (row.paused) found.push(["notice", "paused"]);
  if (history.isStuck(`row ${row.name}`)) found.push(["warning", "no consumer"]);
  if (row.dead_letters) found.push(["warning", "dead letters"]);
  if (row.throttled) found.push(["notice", "throttled"]);
  return found;
}

function score(row) {
  const worst = Math.max(0, ...signs(row).map(([severity]) => RANKS[severity]));
  const told = seen.troubles.filter((it) => it.queue === row.name)
    .map((it) => RANKS[it.severity] ?? 0);
  return Math.max(worst, ...told);
}

function queues() {
  const rows = seen.queues.map((row) => ({ ...row, score: score(row) }))
    .sort((a, b) => b.score - a.score || b.oldest_pending_age_ms - a.oldest_pending_age_ms
      || b.depth - a.depth || (a.name < b.name ? -1 : 1));
  return section("Queues",
    h("form", { class: "filter", "data-do": "filter", role: "search", "data-key": "filter" },
      h("label", { class: "unseen", for: "match" }, "Names that contain"),
      h("input", { id: "match", name: "match", type: "search", placeholder: "Filter by name",
        autocomplete: "off", spellcheck: "false" }),
      h("button", {}, "Filter")),
    rows.length ? table("Queues", columns(), rows, (row) => row.name)
      : h("p", { class: "muted" }, `No queue has “${match}” in its name.`),
    seen.queue_count > rows.length && h("p", { class: "muted" },
      `${rows.length} of ${plural(seen.queue_count, "queue")}, those in trouble first.`));
}

function columns() {
  const flow = (counter) => (row) => rate(history.rateOf(`row ${row.name}`, counter));
  return [
    { title: "Queue", head: true, cell: (row) => [
      h("a", { href: queueLink(row.name) }, row.name),
      row.dead_letter_of && h("span", { class: "badge" }, `letters of ${row.dead_letter_of}`)] },
    { title: "State", class: "full", cell: (row) => {
      const found = signs(row);
      return found.length ? found.map(([severity, word]) =>
        h("span", { class: `badge ${severity}`, "data-key": word }, `${SIGNS[severity]} ${word}`))
        : h("span", { class: "badge well" }, "✓ well");
    } },
    { title: "Waiting", number: true, cell: (row) => count(row.depth) },
    { title: "Lately", cell: (row) => {
      const values = history.points(`row ${row.name}`).slice(-60).map((it) => it.facts.depth);
      return sparkline(values, `waiting messages lately, now ${row.depth}`);
    } },
    { title: "In", number: true, cell: flow("enqueued") },
    { title: "Out", number: true, cell: flow("delivered") },
    { title: "Oldest", number: true, cell: (row) => age(row.oldest_pending_age_ms) },
    { title: "Leased", number: true, cell: (row) => count(row.in_flight) },
    { title: "Throttled", number: true, cell: (row) => count(row.throttled) },
    { title: "Dead letters", number: true, cell: (row) => (row.dead_letters
      ? h("a", { href: `#/letters/${encodeURIComponent(`${row.name}.dlq`)}` },
        count(row.dead_letters)) : "0") },
    { title: "Consumers", number: true, cell: (row) => count(row.active_consumers) },
  ];
}

function nothing(page) {
  const limited = page.who.uses_keys && !page.who.administers_all;
  return section("Queues",
    h("p", {}, limited ? "There is no queue that your API key may see."
      : "There are no queues yet. Make one, and send it a message:"),
    !limited && h("pre", {}, "fila queue create orders\nfila enqueue orders --payload hello"),
    limited && h("p", { class: "muted" }, `It may: ${page.who.acl.join(", ") || "nothing"}.`),
    button("Look again", "again"));
}

export const actions = {
  filter(page, values) {
    match = values.match.trim();
    page.refresh();
  },
  again(page) {
    page.refresh();
  },
};
