// SPDX-License-Identifier: AGPL-3.0-only
// The page: who looks, which view, and a look at the broker every two seconds while somebody can
// see it.

import * as api from "./api.js";
import { redrawAll } from "./charts.js";
import { h, patch, say, toast } from "./dom.js";
import { duration } from "./format.js";
import { forget } from "./history.js";
import * as explain from "./explain.js";
import * as keys from "./keys.js";
import * as letters from "./letters.js";
import * as login from "./login.js";
import * as overview from "./overview.js";
import * as queue from "./queue.js";
import * as settings from "./settings.js";

const POLL_MS = 2000;
const VIEWS = { "": overview, queue, letters, explain, settings, keys };
const LINKS = [
  ["", "Overview", () => true],
  ["letters", "Dead letters", () => true],
  ["explain", "Explain", () => true],
  ["settings", "Settings", (who) => who.administers_all],
  ["keys", "API keys", (who) => who.uses_keys],
];

const main = document.getElementById("main");
const banner = document.getElementById("trouble");

let who = null;
let view = null;
let route = { name: "", subject: "", query: new URLSearchParams() };
let timer = 0;
let turn = 0;
let answeredAt = Date.now();

// What views work with.
const page = {
  get who() { return who; },
  get route() { return route; },
  draw,
  refresh,
  // Do something for a person, and tell them what came of it.
  async act(work, done) {
    try {
      const result = await work();
      if (done) toast(done);
      await refresh();
      return result;
    } catch (error) {
      report(error);
      return null;
    }
  },
  report,
};

function parse(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?", 2);
  const [name, ...rest] = path.split("/");
  let subject = "";
  try {
    subject = decodeURIComponent(rest.join("/"));
  } catch { /* a link that somebody cut short */ }
  return { name, subject, query: new URLSearchParams(query ?? "") };
}

async function enter() {
  route = parse(location.hash);
  const isOut = who.needs_login;
  view = isOut ? login : VIEWS[route.name] ?? overview;
  redrawAll();
  patch(main, []);
  drawFrame();
  view.enter?.(page);
  draw();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
  await refresh();
}

function drawFrame() {
  const nav = document.getElementById("nav");
  nav.hidden = who.needs_login;
  const current = route.name === "queue" ? "" : route.name;
  patch(nav, who.needs_login ? [] : LINKS.filter(([, , shows]) => shows(who)).map(([name, title]) =>
    h("a", { href: `#/${name}`, "aria-current": name === current ? "page" : null }, title)));
  document.getElementById("logout").hidden = who.needs_login || !who.uses_keys;
  const name = document.getElementById("who");
  name.textContent = who.needs_login || !who.uses_keys ? "" : who.name;
  name.title = who.uses_keys ? "The API key that you are logged in with" : "";
}

function draw() {
  const title = view.title(page);
  document.title = title === "Fila" ? title : `${title} · Fila`;
  patch(main, view.render(page));
  view.drawn?.(page);
}

// Look at the broker now, and again in a while. Only the last one asked for counts.
async function refresh() {
  clearTimeout(timer);
  turn += 1;
  const mine = turn;
  try {
    if (view.look) await view.look(page);
    if (mine !== turn) return;
    answeredAt = Date.now();
    banner.hidden = true;
    draw();
  } catch (error) {
    if (mine !== turn) return;
    report(error, true);
  }
  if (!document.hidden && view.look) timer = setTimeout(refresh, POLL_MS);
}

function report(error, isPoll = false) {
  if (!(error instanceof api.BrokerError)) throw error;
  if (error.status === 401) {
    lost(error.message);
    return;
  }
  if (!isPoll) {
    toast(error.message, true);
    return;
  }
  if (view.failed?.(page, error)) {
    banner.hidden = true;
    return;
  }
  const since = Date.now() - answeredAt;
  const text = error.status === 0 || error.status === 503
    ? `${error.message}; what you see is ${duration(since)} old. Trying again.`
    : error.message;
  if (banner.textContent !== text) banner.textContent = text;
  banner.hidden = false;
}

function lost(message) {
  who = { needs_login: true };
  forget();
  login.say(message);
  enter();
}

// --- Colours -------------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];
const SIGNS = { auto: "◐ Auto", light: "○ Light", dark: "● Dark" };

function theme() {
  const chosen = localStorage.getItem("fila-theme");
  return THEMES.includes(chosen) ? chosen : "auto";
}

function applyTheme() {
  const chosen = theme();
  document.documentElement.dataset.theme = chosen;
  const button = document.getElementById("theme");
  button.textContent = SIGNS[chosen];
  button.setAttribute("aria-label", `Colours: ${chosen}. Change them`);
  redrawAll();
  if (view) draw();
}

// --- What people do ------------------------------------------------------------------------------

document.getElementById("theme").addEventListener("click", () => {
  localStorage.setItem("fila-theme", THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
  applyTheme();
  say(`Colours: ${theme()}`);
});
document.getElementById("logout").addEventListener("click", async () => {
  await api.logout().catch(() => null);
  lost("You are logged out.");
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
main.addEventListener("click", (event) => {
  const target = event.target.closest("[data-do]");
  if (target && target.tagName !== "FORM" && !target.matches("input, select")) {
    view.actions?.[target.dataset.do]?.(page, target.dataset, target);
  }
});
main.addEventListener("change", (event) => {
  const target = event.target.closest("input[data-do], select[data-do]");
  if (target) view.actions?.[target.dataset.do]?.(page, target.dataset, target);
});
main.addEventListener("submit", (event) => {
  event.preventDefault();
  const form = event.target;
  view.actions?.[form.dataset.do]?.(page, Object.fromEntries(new FormData(form)), form);
});
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#/") || location.hash === "") enter();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && view?.look) refresh();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
addEventListener("resize", () => view?.drawn?.(page));

login.whenDone((session) => {
  who = session;
  enter();
});

applyTheme();
try {
  who = await api.session();
  await enter();
} catch (error) {
  patch(main, [h("section", { class: "card" }, h("h1", {}, "Fila"), h("p", {}, error.message))]);
}
