// SPDX-License-Identifier: AGPL-3.0-only
// API keys: who may do what. A new key is shown once, here, and nowhere else ever again.

import * as api from "./api.js";
import { button, field, h, section, table, toast } from "./dom.js";
import { at, fromNow, plural } from "./format.js";
import { ask, changes, show } from "./dialogs.js";

const DAY_MS = 86_400_000;
const PATTERN = /^(produce|consume|admin):\S+$/;

let found = null;
let failure = "";

export const title = () => "API keys";

export function enter(page) {
  found = null;
  failure = "";
  read(page);
}

async function read(page) {
  try {
    found = await api.call("ListApiKeys");
    failure = "";
  } catch (error) {
    failure = error.message;
    if (error.status === 401) page.report(error);
  }
  page.draw();
}

const words = (row) => (row.superadmin ? "everything"
  : row.acl.map((it) => `${it.kind}:${it.pattern}`).join(" ") || "nothing");

export function render() {
  return [
    h("h1", {}, "API keys"),
    failure && h("p", { class: "problem", role: "alert" }, failure),
    found && section("Keys",
      h("div", { class: "actions" }, button("Make a key", "create", {}, { class: "primary" })),
      found.keys.length ? table("API keys", [
        { title: "Name", head: true, cell: (row) => row.name },
        { title: "May", class: "wide", cell: (row) => h("code", {}, words(row)) },
        { title: "Id", class: "full", cell: (row) => h("code", {}, row.key_id) },
        { title: "Made", class: "full when", cell: (row) => at(row.created_at) },
        { title: "Ends", cell: (row) => (row.expires_at ? fromNow(row.expires_at) : "never") },
        { title: "Actions", class: "full", cell: (row) => h("div", { class: "row-actions" },
          !row.superadmin && button("Change", "change", { id: row.key_id }),
          button("Revoke", "revoke", { id: row.key_id }, { class: "danger" })) },
      ], found.keys, (row) => row.key_id)
        : h("p", { class: "muted" }, "No keys yet but the one of the configuration."),
      found.total_count > found.keys.length && h("p", { class: "muted" },
        `The first ${found.keys.length} of ${plural(found.total_count, "key")}.`)),
  ];
}

function permissions(text) {
  const entries = text.split(/[\s,]+/).filter(Boolean);
  const wrong = entries.find((entry) => !PATTERN.test(entry));
  if (wrong) throw new Error(`“${wrong}” is no permission; write produce:orders or admin:orders.*`);
  return entries.map((entry) => {
    const [kind, ...pattern] = entry.split(":");
    return { kind, pattern: pattern.join(":") };
  });
}

function permissionField(value = "") {
  return field("May", h("textarea", { name: "acl", rows: 3, spellcheck: "false",
    placeholder: "produce:orders consume:orders.*" }, value),
  "produce, consume or admin, a colon and a queue's name or its beginning and *; one or several.");
}

async function create(page) {
  const made = await ask({
    title: "Make a key",
    confirm: "Make it",
    fields: [
      field("Name", h("input", { name: "name", required: true, maxlength: 100,
        autocomplete: "off" })),
      permissionField(),
      page.who.is_superadmin && h("label", { class: "check" },
        h("input", { type: "checkbox", name: "superadmin" }), " May do everything"),
      field("Ends after, in days", h("input", { name: "days", type: "number", min: 1,
        max: 36500 }), "Empty is never."),
    ],
    save: (values) => api.call("CreateApiKey", {
      name: values.name,
      superadmin: values.superadmin === "on",
      acl: permissions(values.acl),
      expires_at_ms: values.days ? String(Date.now() + Number(values.days) * DAY_MS) : "0",
    }),
  });
  if (!made) return;
  const copy = h("button", { type: "button" }, "Copy");
  copy.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(made.secret);
    copy.textContent = "Copied";
  });
  await show("The new key",
    h("p", {}, "Keep it now: it is shown this once."),
    h("p", { class: "secret" }, h("code", { id: "secret" }, made.secret), " ", copy));
  await read(page);
}

export const actions = {
  create,
  async change(page, { id }) {
    const row = found.keys.find((it) => it.key_id === id);
    const before = words(row);
    const done = await ask({
      title: `What ${row.name} may do`,
      fields: [permissionField(row.acl.map((it) => `${it.kind}:${it.pattern}`).join("\n"))],
      preview({ acl }) {
        const after = acl.split(/[\s,]+/).filter(Boolean).join(" ") || "nothing";
        return after === before ? null : changes([[row.name, before, after]]);
      },
      save: (values) => api.call("SetAcl", { key_id: id, acl: permissions(values.acl) }),
    });
    if (done) {
      toast(`${row.name} has other permissions now.`);
      await read(page);
    }
  },
  async revoke(page, { id }) {
    const row = found.keys.find((it) => it.key_id === id);
    const done = await ask({
      title: `Revoke ${row.name}?`,
      intro: "It stops working at once, open streams included. There is no way back.",
      preview: () => changes([[row.name, words(row), "nothing"]]),
      confirm: "Revoke",
      isDanger: true,
      save: () => api.call("RevokeApiKey", { key_id: id }),
    });
    if (done) {
      toast(`${row.name} is revoked.`);
      await read(page);
    }
  },
};
