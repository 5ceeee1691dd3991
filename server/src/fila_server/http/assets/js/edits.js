// SPDX-License-Identifier: AGPL-3.0-only
// Changing a weight or a limit: what will be different is shown before it is saved.

import * as api from "./api.js";
import { field, h, toast } from "./dom.js";
import { count, duration, percent, plain } from "./format.js";
import { ask, changes } from "./dialogs.js";

const OTHERS_SHOWN = 5;

// Change the weight of a key among others; resolves to whether it was saved.
export function editWeight(queue, key, rows) {
  const own = rows.find((row) => row.key === key);
  if (!own) return null;
  const active = rows.filter((row) => row.pending_count > 0 && !row.paused);
  const sum = active.reduce((total, row) => total + row.weight, 0);
  const name = `weight:${queue}:${key}`;
  return ask({
    title: `Weight of ${key}`,
    intro: "A key's part of the deliveries is its weight against those of the others that wait.",
    fields: [field("Weight", h("input", {
      name: "weight", type: "number", min: 1, max: 1000, step: 1, required: true,
      value: own.weight,
    }), "1 to 1000. It wins over what messages and hooks say.")],
    preview({ weight }) {
      const wanted = Number(weight);
      if (!Number.isInteger(wanted) || wanted < 1 || wanted === own.weight) return null;
      const after = sum - own.weight + wanted;
      const others = active.filter((row) => row.key !== key).slice(0, OTHERS_SHOWN);
      return [
        changes([
          ["weight", String(own.weight), String(wanted)],
          [`${key} is entitled to`, percent(own.weight / sum), percent(wanted / after)],
          ...others.map((row) =>
            [`${row.key} is entitled to`, percent(row.weight / sum), percent(row.weight / after)]),
        ]),
        h("p", { class: "muted" }, "Saved as the setting ", h("code", {}, name), "."),
      ];
    },
    async save({ weight }) {
      await api.call("SetConfig", { key: name, value: String(Number(weight)) });
      toast(`${key} has weight ${Number(weight)} now.`);
    },
  });
}

// Change the limits of a throttle key, for all queues; resolves to whether they were saved.
export function editLimit(row) {
  const input = (name, value, extra = {}) =>
    h("input", { name, type: "number", min: 0, step: "any", value: value || "", ...extra });
  return ask({
    title: `Limits of ${row.key}`,
    intro: "They hold for every queue. An empty field is no limit.",
    fields: [
      field("Rate per second", input("rate", row.rate_per_second)),
      field("Burst", input("burst", row.rate_per_second ? row.burst : ""),
        "How many may pass at once after a quiet time; empty takes the rate."),
      field("At a time", input("limit", row.concurrency_limit, { step: 1 }),
        "Leased messages that carry the key."),
    ],
    preview(values) {
      const wanted = wishes(values);
      if (!entriesOf(row, wanted).length) return null;
      const drain = (rate) => (rate && row.waiting ? duration(row.waiting / rate * 1000) : "–");
      return [
        changes([
          ["rate", shown(row.rate_per_second, "/s"), shown(wanted.rate, "/s")],
          ["burst", row.rate_per_second ? plain(row.burst) : "–",
            wanted.rate ? shown(wanted.burst, "") || "as the rate" : "–"],
          ["at a time", shown(row.concurrency_limit, ""), shown(wanted.limit, "")],
          [`the ${count(row.waiting)} waiting take`, drain(row.rate_per_second),
            drain(wanted.rate)],
        ]),
        row.pattern && h("p", { class: "muted" },
          `So far ${row.pattern} decides; a setting of its own wins.`),
      ];
    },
    async save(values) {
      await api.call("SetConfig", { entries: entriesOf(row, wishes(values)) });
      toast(`The limits of ${row.key} are changed.`);
    },
  });
}

const shown = (value, unit) => (value ? `${plain(value)}${unit}` : "none");

function wishes({ rate, burst, limit }) {
  return { rate: Number(rate), burst: Number(burst), limit: Number(limit) };
}

// The settings that differ; an empty value removes one.
function entriesOf(row, wanted) {
  const now = {
    rate: row.rate_per_second,
    burst: row.rate_per_second ? row.burst : 0,
    limit: row.concurrency_limit,
  };
  const names = {
    rate: `throttle:${row.key}:rate`,
    burst: `throttle:${row.key}:burst`,
    limit: `concurrency:${row.key}:limit`,
  };
  return Object.keys(names).filter((name) => wanted[name] !== now[name])
    .map((name) => ({ key: names[name], value: wanted[name] ? String(wanted[name]) : "" }));
}
