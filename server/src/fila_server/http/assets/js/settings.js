// SPDX-License-Identifier: AGPL-3.0-only
// Runtime settings: limits, weights and what hooks read. Those of the process need its file.

import * as api from "./api.js";
import { button, field, h, section, table, toast } from "./dom.js";
import { count, plural } from "./format.js";
import { ask, changes } from "./dialogs.js";

let found = null;
let prefix = "";
let failure = "";

const KINDS = [
  [/^throttle:.*:rate$/, "rate limit, per second"],
  [/^throttle:.*:burst$/, "burst of a rate limit"],
  [/^throttle\./, "rate limit and burst"],
  [/^concurrency:.*:limit$/, "concurrency limit"],
  [/^weight:/, "weight of a fairness key"],
];
const kindOf = (key) => KINDS.find(([pattern]) => pattern.test(key))?.[1] ?? "read by hooks";

export const title = () => "Settings";

export function enter(page) {
  found = null;
  failure = "";
  read(page);
}

async function read(page) {
  const asked = prefix;
  try {
    const answer = await api.call("ListConfig", { prefix: asked });
    if (asked !== prefix) return;
    found = answer;
    failure = "";
  } catch (error) {
    failure = error.message;
    if (error.status === 401) page.report(error);
  }
  page.draw();
}

export function render() {
  return [
    h("h1", {}, "Settings"),
    h("p", { class: "muted" }, "Limits, weights and values for hooks, in force at once and stored."
      + " The settings of the process are in its file and need a restart."),
    failure && h("p", { class: "problem", role: "alert" }, failure),
    found && list(),
  ];
}

function list() {
  return section("Runtime settings",
    h("form", { class: "filter", "data-do": "filter", role: "search", "data-key": "filter" },
      h("label", { class: "unseen", for: "prefix" }, "Names that begin with"),
      h("input", { id: "prefix", name: "prefix", type: "search", placeholder: "throttle:",
        autocomplete: "off", spellcheck: "false" }),
      h("button", {}, "Filter"),
      button("Add a setting", "add", {}, { class: "primary" })),
    found.entries.length ? table("Runtime settings", [
      { title: "Name", head: true, class: "name", cell: (row) => h("code", {}, row.key) },
      { title: "What it is", class: "full", cell: (row) => kindOf(row.key) },
      { title: "Value", class: "wide", cell: (row) => h("code", {},
        row.size > row.value.length ? `${row.value}… (${count(row.size)} characters)`
          : row.value) },
      { title: "Actions", class: "full", cell: (row) => h("div", { class: "row-actions" },
        row.size === row.value.length && button("Change", "change", { key: row.key }),
        button("Remove", "remove", { key: row.key }, { class: "danger" })) },
    ], found.entries, (row) => row.key)
      : h("p", { class: "muted" }, prefix ? `No setting begins with “${prefix}”.`
        : "Nothing is set. A limit for a provider: throttle:stripe:rate = 100."),
    found.total_count > found.entries.length && h("p", { class: "muted" },
      `The first ${found.entries.length} of ${plural(found.total_count, "setting")}.`));
}

async function edit(page, key, value) {
  const isNew = key === "";
  const name = h("input", { name: "key", required: true, value: key, maxlength: 512,
    spellcheck: "false", autocomplete: "off", readonly: !isNew });
  const done = await ask({
    title: isNew ? "Add a setting" : "Change a setting",
    fields: [
      field("Name", name, isNew && "throttle:KEY:rate, concurrency:KEY:limit, weight:QUEUE:KEY,"
        + " or what a hook reads"),
      field("Value", h("textarea", { name: "value", rows: 3, required: true, spellcheck: "false" },
        value)),
    ],
    preview(values) {
      const known = found.entries.find((row) => row.key === values.key);
      if (!values.key || !values.value || known?.value === values.value) return null;
      return [changes([[values.key, known ? known.value : "not set", values.value]]),
        h("p", { class: "muted" }, `${kindOf(values.key)}, in force at once.`)];
    },
    save: (values) => api.call("SetConfig", { key: values.key, value: values.value }),
  });
  if (done) {
    toast("Saved.");
    await read(page);
  }
}

export const actions = {
  filter(page, values) {
    prefix = values.prefix.trim();
    read(page);
  },
  add: (page) => edit(page, "", ""),
  change(page, { key }) {
    const row = found.entries.find((it) => it.key === key);
    if (row) edit(page, key, row.value);
  },
  async remove(page, { key }) {
    const row = found.entries.find((it) => it.key === key);
    const done = await ask({
      title: "Remove a setting?",
      intro: `${kindOf(key)}: without it the default, or a longer-reaching pattern, holds.`,
      preview: () => changes([[key, row?.value ?? "", "not set"]]),
      confirm: "Remove",
      isDanger: true,
      save: () => api.call("DeleteConfig", { key }),
    });
    if (done) {
      toast(`Removed ${key}.`);
      await read(page);
    }
  },
};
