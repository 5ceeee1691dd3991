// SPDX-License-Identifier: AGPL-3.0-only
// Why a key or a message waits: the broker's sentence, and its reasons as a timeline.

import * as api from "./api.js";
import { button, field, h, section } from "./dom.js";
import { at, fromNow, plural } from "./format.js";

const KINDS = {
  throttled: "a rate limit", concurrency: "a concurrency limit", turn: "others come first",
  delayed: "its time has not come", paused: "a pause", no_credit: "no free consumer",
  leased: "with a consumer", backpressure: "a consumer asked for a rest",
  hook_bypassed: "the hook is bypassed",
};
const CAUSES = {
  nack: "nacked", expired: "its lease ran out", max_attempts: "too many attempts",
  hook: "the hook decided",
};

let answer = null;
let answeredAt = 0;
let failure = "";
let names = [];

export const title = () => "Explain";

export function enter(page) {
  answer = null;
  failure = "";
  const { queue, key, message } = asked(page);
  if (queue && (key || message)) find(page);
  api.get("/api/overview?match=").then((found) => {
    names = found.queues.map((row) => row.name);
    page.draw();
  }).catch(() => {});
}

function asked({ route }) {
  return {
    queue: route.subject,
    key: route.query.get("key") ?? "",
    message: route.query.get("message") ?? "",
  };
}

async function find(page) {
  const { queue, key, message } = asked(page);
  try {
    answer = await api.call("Explain", { queue, fairness_key: key, message_id: message });
    answeredAt = Date.now();
    failure = "";
  } catch (error) {
    answer = null;
    failure = error.message;
    if (error.status === 401) page.report(error);
  }
  page.draw();
}

export function render(page) {
  const { queue, key, message } = asked(page);
  return [
    h("h1", {}, "Why does it wait?"),
    section("Question",
      h("form", { "data-do": "ask", class: "fields", "data-key": `${queue} ${key} ${message}` },
        field("Queue", h("input", { name: "queue", required: true, value: queue, list: "queues",
          autocomplete: "off", spellcheck: "false" })),
        field("Fairness key", h("input", { name: "key", value: key, autocomplete: "off",
          spellcheck: "false" })),
        field("or message id", h("input", { name: "message", value: message, autocomplete: "off",
          spellcheck: "false" })),
        h("datalist", { id: "queues" }, names.map((name) => h("option", { value: name }))),
        h("div", { class: "actions" }, h("button", { class: "primary" }, "Explain")))),
    failure && h("p", { class: "problem", role: "alert" }, failure),
    answer && result(),
  ];
}

function result() {
  return section("Answer",
    h("p", { class: "answer", "aria-live": "polite" }, `${answer.summary}.`),
    h("ol", { class: "timeline" }, events().map((event, index) =>
      h("li", { class: event.class, "data-key": `${index} ${event.what}` },
        h("p", { class: "when" }, event.when),
        h("p", { class: "what" }, event.what),
        event.detail && h("p", { class: "muted" }, event.detail)))),
    answer.unset_throttle_keys.length > 0 && h("p", { class: "badge warning" },
      `◆ nobody has set a limit for: ${answer.unset_throttle_keys.join(", ")}`),
    h("div", { class: "actions" }, button("Ask again", "again"),
      h("p", { class: "muted" }, `As it was on ${at(answeredAt)}.`)));
}

// What went wrong before, what holds now, and when it is expected to end.
function events() {
  const past = answer.failures.map((row) => ({
    class: "past", when: at(row.failed_at), what: CAUSES[row.cause] ?? row.cause, detail: row.error,
  }));
  const now = answer.reasons.map((row, index) => ({
    class: index ? "holds" : "holds decides",
    when: row.until ? `now, until ${at(row.until)} (${fromNow(row.until, answeredAt)})`
      : "now, nobody knows until when",
    what: `${index ? "" : "Decides: "}${KINDS[row.kind] ?? row.kind}`,
    detail: row.detail,
  }));
  const quiet = [{ class: "holds", when: "now", what: "Nothing holds it back.",
    detail: answer.pending_count ? `${plural(answer.pending_count, "message")} waiting.` : "" }];
  const next = {
    class: "next",
    when: answer.estimated_at
      ? `${at(answer.estimated_at)} (${fromNow(answer.estimated_at, answeredAt)})`
      : "nobody knows when",
    what: answer.state === "leased" ? "Comes back if it is not acked" : "Expected delivery",
    detail: answer.ahead ? `${plural(answer.ahead, "delivery")} before it.` : "",
  };
  return [...past, ...(now.length ? now : quiet), ...(now.length ? [next] : [])];
}

export const actions = {
  ask(page, { queue, key, message }) {
    const query = new URLSearchParams(message ? { message } : { key });
    const next = `#/explain/${encodeURIComponent(queue.trim())}?${query}`;
    if (location.hash === next) find(page);
    else location.hash = next;
  },
  again: find,
};
