// SPDX-License-Identifier: AGPL-3.0-only
// Dead letters: what died of what, a look at one, and redriving or deleting a selection.

import * as api from "./api.js";
import { button, h, section, table } from "./dom.js";
import { at, bytes, count, plural } from "./format.js";
import { ask, show } from "./dialogs.js";

const PAGE = 100;
// Enough to see what they died of. The oldest, because those have waited longest.
const SAMPLE_MAX = 1000;
const SHOWN_MAX = 100;
// Ids of one call; a request has at most 64 KiB.
const CHUNK = 500;

let sample = null;
let isCut = false;
let failure = "";
let queues = null;
let opened = "";
const chosen = new Set();

export const title = (page) => (page.route.subject ? `Dead letters of ${parent(page)}`
  : "Dead letters");

const parent = (page) => page.route.subject.replace(/\.dlq$/, "");

export function enter(page) {
  sample = null;
  failure = "";
  opened = "";
  queues = null;
  chosen.clear();
  if (page.route.subject) read(page);
}

// The list of queues is live; a sample is read once, so that a selection stays what it was.
export async function look(page) {
  if (!page.route.subject) queues = (await api.get("/api/overview?match=")).queues;
}

async function read(page) {
  const queue = page.route.subject;
  const found = [];
  let from = "0";
  try {
    do {
      const part = await api.call("Peek", {
        queue, limit: PAGE, from_position: from, exclude_payload: true,
      });
      found.push(...part.messages);
      from = part.next_position;
    } while (from !== "0" && found.length < SAMPLE_MAX);
  } catch (error) {
    failure = error.message;
    if (error.status === 401) page.report(error);
    page.draw();
    return;
  }
  if (queue !== page.route.subject) return;
  sample = found;
  isCut = from !== "0";
  const ids = new Set(found.map((row) => row.id));
  for (const id of chosen) if (!ids.has(id)) chosen.delete(id);
  page.draw();
}

export function render(page) {
  if (!page.route.subject) return list();
  const name = page.route.subject;
  const head = h("div", { class: "title" },
    h("p", { class: "trail" }, h("a", { href: "#/letters" }, "Dead letters"), " / "),
    h("h1", {}, name));
  if (failure) return [head, h("p", { class: "problem" }, failure)];
  if (!sample) return [head, h("p", { class: "muted" }, "Looking …")];
  if (!sample.length) {
    return [head, section("Letters", h("p", { class: "well" },
      "✓ No dead letters: nothing has failed for the last time."),
    button("Look again", "again"))];
  }
  return [head, tools(), groups()];
}

function list() {
  const rows = (queues ?? []).filter((row) => row.dead_letters || row.dead_letter_of)
    .sort((a, b) => b.dead_letters - a.dead_letters);
  const letters = (row) => (row.dead_letter_of ? row.name : `${row.name}.dlq`);
  return [h("h1", {}, "Dead letters"),
    queues === null ? h("p", { class: "muted" }, "Looking …")
      : section("Queues with dead letters", rows.length ? table("Queues with dead letters", [
        { title: "Queue", head: true, cell: (row) =>
          h("a", { href: `#/letters/${encodeURIComponent(letters(row))}` }, row.name) },
        { title: "Dead letters", number: true, cell: (row) =>
          count(row.dead_letter_of ? row.depth : row.dead_letters) },
      ], rows, (row) => row.name)
        : h("p", { class: "well" }, "✓ No queue has dead letters."))];
}

function tools() {
  const seen = isCut ? `The oldest ${count(sample.length)} letters`
    : plural(sample.length, "letter");
  return h("div", { class: "actions sticky", "data-key": "tools" },
    h("p", { "aria-live": "polite" }, `${seen}, ${count(chosen.size)} selected.`),
    button("Redrive", "redrive", {}, { class: "primary", disabled: !chosen.size }),
    button("Delete", "drop", {}, { class: "danger", disabled: !chosen.size }),
    button("Look again", "again"));
}

// --- Groups --------------------------------------------------------------------------------------

const kindOf = (row) => JSON.stringify([row.last_error, row.fairness_key]);

function grouped() {
  const found = new Map();
  for (const row of sample) {
    const kind = kindOf(row);
    if (!found.has(kind)) found.set(kind, []);
    found.get(kind).push(row);
  }
  return [...found].map(([kind, rows]) => ({ kind, rows }))
    .sort((a, b) => b.rows.length - a.rows.length);
}

function groups() {
  const all = grouped();
  const index = new Map(all.map((group, place) => [group.kind, place]));
  return section("By error and fairness key", table("Groups of dead letters", [
    { title: "Select", class: "picked", cell: (group) => {
      const some = group.rows.filter((row) => chosen.has(row.id)).length;
      return check("group", { kind: index.get(group.kind) }, some === group.rows.length,
        `Select all ${group.rows.length} of ${group.rows[0].fairness_key} that died of ${
          group.rows[0].last_error || "no error"}`);
    } },
    { title: "Error", head: true, class: "wide", cell: (group) =>
      h("span", { class: "error-text" }, group.rows[0].last_error || "(no error text)") },
    { title: "Fairness key", class: "full", cell: (group) => group.rows[0].fairness_key },
    { title: "Letters", number: true, cell: (group) => count(group.rows.length) },
    { title: "Attempts", number: true, cell: (group) => attempts(group.rows) },
    { title: "Oldest", class: "full when", cell: (group) =>
      at(Math.min(...group.rows.map((row) => row.enqueued_at))) },
    { title: "Details", class: "full", cell: (group) => button(
      opened === group.kind ? "Hide" : "Browse", "open", { kind: index.get(group.kind) },
      { "aria-expanded": String(opened === group.kind) }) },
  ], all, (group) => group.kind), letters(all));
}

// What went wrong before the end; a letter itself counts from zero again.
function attempts(rows) {
  const counts = rows.map((row) => Math.max(row.attempt_count, row.failure_count));
  const least = Math.min(...counts);
  const most = Math.max(...counts);
  return least === most ? String(least) : `${least} to ${most}`;
}

function check(act, data, isOn, label) {
  const carried = Object.entries(data).map(([name, value]) => [`data-${name}`, value]);
  const box = h("input", { type: "checkbox", "data-do": act, "aria-label": label,
    "data-on": String(isOn), ...Object.fromEntries(carried) });
  box.checked = isOn;
  return box;
}

// Attributes are taken over when the page is drawn anew, what a box shows is not.
export function drawn() {
  for (const box of document.querySelectorAll("input[data-on]")) {
    box.checked = box.dataset.on === "true";
  }
}

function letters(all) {
  const group = all.find((it) => it.kind === opened);
  if (!group) return null;
  const rows = group.rows.slice(0, SHOWN_MAX);
  return h("div", { "data-key": "letters" },
    h("h3", {}, `Letters of ${group.rows[0].fairness_key}`),
    table("Dead letters", [
      { title: "Select", class: "picked", cell: (row) =>
        check("one", { id: row.id }, chosen.has(row.id), `Select ${row.id}`) },
      { title: "Message", head: true, cell: (row) => h("code", {}, row.id) },
      { title: "Enqueued", class: "full when", cell: (row) => at(row.enqueued_at) },
      { title: "State", cell: (row) => row.state },
      { title: "Throttle keys", class: "full", cell: (row) => row.throttle_keys.join(", ") || "–" },
      { title: "Contents", class: "full", cell: (row) =>
        button("Look", "peek", { position: row.position }) },
    ], rows, (row) => row.id),
    group.rows.length > rows.length && h("p", { class: "muted" },
      `The first ${rows.length} of ${count(group.rows.length)}.`));
}

// --- What can be done ----------------------------------------------------------------------------

async function peek(page, { position }) {
  const found = await page.act(() => api.call("Peek", {
    queue: page.route.subject, limit: 1, from_position: position,
    until_position: String(BigInt(position) + 1n),
  }));
  const row = found?.messages[0];
  if (!row) return;
  const payload = row.payload_text ?? row.payload_base64;
  const pairs = (entries) => h("dl", { class: "pairs" }, entries.map(([name, value]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  await show(row.id,
    pairs([["Fairness key", row.fairness_key], ["Enqueued", at(row.enqueued_at)],
      ["Last error", row.last_error || "–"]]),
    h("h3", {}, "Failures"),
    h("ul", {}, row.failures.map((it) =>
      h("li", {}, `${at(it.failed_at)}: ${it.cause}, ${it.error}`))),
    h("h3", {}, `Headers (${row.header_count})`), pairs(Object.entries(row.headers)),
    h("h3", {}, `Payload (${bytes(row.payload_bytes)}${row.payload_base64 ? ", base64" : ""}${
      row.payload_bytes > 4096 ? ", the first 4 KiB" : ""})`),
    h("pre", {}, payload));
}

async function redrive(page) {
  const ids = [...chosen];
  const done = await ask({
    title: `Redrive ${plural(ids.length, "letter")}?`,
    intro: `They are enqueued again in ${parent(page)}: hooks run, attempts count from zero.`,
    confirm: "Redrive",
    async save() {
      let moved = 0;
      for (let start = 0; start < ids.length; start += CHUNK) {
        const answer = await api.call("Redrive", {
          dlq_queue: page.route.subject, message_ids: ids.slice(start, start + CHUNK),
        });
        moved += Number(answer.redriven);
      }
      return { moved };
    },
  });
  if (done) await after(page, `${plural(done.moved, "letter")} redriven.`);
}

async function drop(page) {
  const ids = [...chosen];
  const done = await ask({
    title: `Delete ${plural(ids.length, "letter")}?`,
    intro: "They are gone for good.",
    confirm: "Delete",
    isDanger: true,
    async save() {
      let gone = 0;
      for (const id of ids) {
        try {
          await api.call("CancelMessage", { queue: page.route.subject, message_id: id });
          gone += 1;
        } catch (error) {
          // Somebody else was faster with this one.
          if (error.reason !== "MESSAGE_NOT_FOUND") throw error;
        }
      }
      return { gone };
    },
  });
  if (done) await after(page, `${plural(done.gone, "letter")} deleted.`);
}

async function after(page, message) {
  chosen.clear();
  await read(page);
  await page.act(async () => null, message);
}

export const actions = {
  group(page, { kind }, box) {
    for (const row of grouped()[Number(kind)].rows) {
      if (box.checked) chosen.add(row.id);
      else chosen.delete(row.id);
    }
    page.draw();
  },
  one(page, { id }, box) {
    if (box.checked) chosen.add(id);
    else chosen.delete(id);
    page.draw();
  },
  open(page, { kind }) {
    const wanted = grouped()[Number(kind)].kind;
    opened = opened === wanted ? "" : wanted;
    page.draw();
  },
  peek,
  redrive,
  drop,
  again: read,
};
