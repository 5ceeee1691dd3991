// SPDX-License-Identifier: AGPL-3.0-only
// What was seen since the page was opened: the broker keeps no history for pages. Rates and shares
// are the difference between two looks.

const KEPT_MS = 10 * 60_000;
const POINTS_MAX = 300;
const QUEUES_MAX = 200;
// Long enough for shares to settle, short enough to be live.
const WINDOW_MS = 10_000;
const MINUTE_MS = 60_000;

const seen = new Map();

// Remember what was seen of something at a time.
export function remember(name, at, facts) {
  let points = seen.get(name);
  if (!points) {
    if (seen.size >= QUEUES_MAX) seen.delete(seen.keys().next().value);
    points = [];
    seen.set(name, points);
  }
  const last = points.at(-1);
  if (last && at <= last.at) return;
  // A broker that was restarted counts from zero: what was before means nothing any more.
  if (last && isReset(last.facts, facts)) points.length = 0;
  points.push({ at, facts });
  while (points.length > POINTS_MAX || points[0].at < at - KEPT_MS) points.shift();
}

function isReset(before, now) {
  return ["enqueued", "delivered", "acked"].some((name) =>
    before.counters && now.counters && now.counters[name] < before.counters[name]);
}

export const points = (name) => seen.get(name) ?? [];

export function forget() {
  seen.clear();
}

// Return the first and last look of the last seconds, or null before there are two.
export function lately(name) {
  const all = points(name);
  if (all.length < 2) return null;
  const last = all.at(-1);
  const first = all.find((point) => point.at >= last.at - WINDOW_MS);
  return first === last ? { first: all.at(-2), last } : { first, last };
}

// Return whether a queue's messages wait and nobody takes any. Workers that pull are not there
// between two pulls, so a queue that moves is not stuck.
export function isStuck(name) {
  const all = points(name);
  const recent = all.filter((point) => point.at >= all.at(-1).at - WINDOW_MS);
  return recent.length > 0 && recent.every(({ facts }, index) => {
    const before = recent[index - 1]?.facts;
    const hasMoved = before && (facts.depth < before.depth
      || (facts.counters?.delivered ?? 0) > (before.counters?.delivered ?? 0));
    return facts.depth > 0 && !facts.active_consumers && !hasMoved;
  });
}

// Return how often a counter counted, per second, or null where that is not known.
export function rateOf(name, counter) {
  const window = lately(name);
  const before = window?.first.facts.counters;
  const now = window?.last.facts.counters;
  if (!before || !now) return null;
  return perSecond(before[counter], now[counter], window.first.at, window.last.at);
}

function perSecond(before, now, from, to) {
  return Math.max(0, now - before) / ((to - from) / 1000);
}

// Return a curve: times in seconds, and the rates of some counters between neighbouring looks.
export function curves(name, counters) {
  const all = points(name);
  const times = all.slice(1).map((point) => point.at / 1000);
  const lines = counters.map((counter) => all.slice(1).map((point, index) => {
    const before = all[index];
    if (!point.facts.counters || !before.facts.counters) return null;
    return perSecond(
      before.facts.counters[counter], point.facts.counters[counter], before.at, point.at);
  }));
  return [times, ...lines];
}

export function levels(name, fields) {
  const all = points(name);
  return [
    all.map((point) => point.at / 1000),
    ...fields.map((field) => all.map((point) => point.facts[field])),
  ];
}

// Deliveries of a fairness key, from whichever counter outlives its backlog.
const deliveries = (row) => row.traffic?.delivered ?? row.delivered;

// Return, for each fairness key of a queue, its part of the last seconds' deliveries and the part
// that its weight entitles it to.
export function shares(name) {
  const window = lately(name);
  const now = points(name).at(-1)?.facts;
  if (!now) return { rows: [], total: 0, seconds: 0 };
  const before = new Map((window?.first.facts.keys ?? []).map((row) => [row.key, row]));
  const competes = (row) =>
    row.pending_count > 0 && !row.paused && row.throttled < row.pending_count;
  const hidden = Math.max(0, now.active - now.keys.length);
  const weights = now.keys.filter(competes).reduce((sum, row) => sum + row.weight, hidden);
  const counted = now.keys.map((row) => {
    const earlier = before.get(row.key);
    const made = earlier === undefined ? deliveries(row) : deliveries(row) - deliveries(earlier);
    // A key that emptied and came back counts anew.
    return { row, made: window ? Math.max(0, made < 0 ? deliveries(row) : made) : 0 };
  });
  const listed = counted.reduce((sum, entry) => sum + entry.made, 0);
  const all = window && window.first.facts.counters
    ? window.last.facts.counters.delivered - window.first.facts.counters.delivered
    : listed;
  const total = Math.max(all, listed);
  const minute = points(name).filter((point) => point.at >= window?.last.at - MINUTE_MS);
  return {
    total,
    others: total - listed,
    hidden,
    seconds: window ? (window.last.at - window.first.at) / 1000 : 0,
    rows: counted.map(({ row, made }) => ({
      ...row,
      share: total ? made / total : null,
      made,
      isThrottledAtTimes: minute.some((point) => point.facts.keys.some((it) =>
        it.key === row.key && it.throttled > 0 && it.throttled >= it.pending_count)),
      competes: competes(row),
      // What waits would be gone within half a second: it gets all that it asks for.
      isModest: competes(row) && window !== null && row.pending_count
        < 0.5 * (row.weight / weights) * (total / ((window.last.at - window.first.at) / 1000)),
      entitled: competes(row) ? row.weight / weights : null,
    })),
  };
}
