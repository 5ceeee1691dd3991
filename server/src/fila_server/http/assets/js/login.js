// SPDX-License-Identifier: AGPL-3.0-only
// The way in: an API key, once.

import * as api from "./api.js";
import { field, h } from "./dom.js";

let said = "";
let done = () => {};

export const title = () => "Log in";
export const whenDone = (callback) => { done = callback; };
export function say(message) { said = message; }

export function enter() {
  setTimeout(() => document.querySelector("#key")?.focus());
}

export function render() {
  return [h("section", { class: "card login", "aria-labelledby": "login-title" },
    h("h1", { id: "login-title" }, "Log in to Fila"),
    h("form", { "data-do": "login", autocomplete: "on" },
      field("API key", h("input", {
        id: "key", name: "key", type: "password", required: true, autocomplete: "current-password",
        spellcheck: "false",
      }), "A key that fila auth create printed, or the broker's bootstrap key."),
      said && h("p", { class: "problem", role: "alert" }, said),
      h("div", { class: "actions" }, h("button", { class: "primary" }, "Log in"))))];
}

export const actions = {
  async login(page, values, form) {
    try {
      const session = await api.login(values.key);
      said = "";
      form.reset();
      done(session);
    } catch (error) {
      said = error.message;
      page.draw();
      document.querySelector("#key").select();
    }
  },
};
