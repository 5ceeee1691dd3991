// SPDX-License-Identifier: AGPL-3.0-only
// One dialog: what is about to change, shown before it does, and what the broker says if it cannot.

import { h, patch } from "./dom.js";

const dialog = document.getElementById("dialog");

// Ask with a form. `fields` are its inputs, `preview(values)` says what would change (or null when
// nothing would), `save(values)` does it. Resolves to what was saved, or to null.
export function ask({ title, intro, fields = [], preview, save, confirm = "Save", isDanger }) {
  return new Promise((resolve) => {
    let result = null;
    const problem = h("p", { class: "problem", role: "alert", hidden: true });
    const change = h("div", { class: "preview", "aria-live": "polite" });
    const go = h("button", { type: "submit", class: isDanger ? "danger" : "primary" }, confirm);
    const cancel = h("button", { type: "button", value: "cancel" }, "Cancel");
    const form = h("form", { method: "dialog" },
      h("h2", { id: "dialog-title" }, title), intro && h("p", {}, intro),
      fields, change, problem, h("div", { class: "actions" }, cancel, go));
    const values = () => Object.fromEntries(new FormData(form));
    const look = () => {
      const shown = preview ? preview(values()) : [];
      go.disabled = shown === null;
      patch(change, [shown ?? h("p", { class: "muted" }, "Nothing changes yet.")]);
    };
    form.addEventListener("input", look);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      go.disabled = true;
      problem.hidden = true;
      try {
        result = (await save(values())) ?? true;
        dialog.close();
      } catch (error) {
        problem.textContent = error.message;
        problem.hidden = false;
        go.disabled = false;
      }
    });
    cancel.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => {
      dialog.replaceChildren();
      resolve(result);
    }, { once: true });
    dialog.replaceChildren(form);
    look();
    dialog.showModal();
    form.querySelector("input, select, textarea, button.danger, button.primary")?.focus();
  });
}

// Show something until it is closed.
export function show(title, ...content) {
  return new Promise((resolve) => {
    const close = h("button", { type: "button", class: "primary" }, "Close");
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => {
      dialog.replaceChildren();
      resolve();
    }, { once: true });
    dialog.replaceChildren(h("div", {}, h("h2", { id: "dialog-title" }, title), content,
      h("div", { class: "actions" }, close)));
    dialog.showModal();
    close.focus();
  });
}

// A change as people compare it: what, before, after.
export function changes(rows) {
  return h("table", { class: "changes", "aria-label": "What changes" },
    h("thead", {}, h("tr", {}, ["", "now", "after"].map((title) =>
      h("th", { scope: "col" }, title || h("span", { class: "unseen" }, "what"))))),
    h("tbody", {}, rows.map(([what, before, after]) =>
      h("tr", { "data-key": what }, h("th", { scope: "row" }, what), h("td", {}, before),
        h("td", { class: before === after ? null : "changed" }, after)))));
}
