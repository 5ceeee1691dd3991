// SPDX-License-Identifier: AGPL-3.0-only
// Numbers, times and shares as people read them.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const stamp = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export const NOTHING = "–";

export function count(value) {
  const number = Number(value);
  return number < 100_000 ? whole.format(number) : short.format(number);
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return NOTHING;
  if (perSecond >= 100) return `${count(Math.round(perSecond))}/s`;
  return `${perSecond >= 10 ? perSecond.toFixed(0) : trimmed(perSecond)}/s`;
}

function trimmed(value) {
  return String(Number(value.toFixed(1)));
}

// A number that a person set: as they wrote it.
export const plain = (value) => String(Number(Number(value).toPrecision(6)));

export function duration(ms) {
  if (ms === null || ms === undefined) return NOTHING;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${trimmed(seconds)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${trimmed(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} days`;
}

export const age = (ms) => (ms ? duration(ms) : NOTHING);

export function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return NOTHING;
  const value = share * 100;
  return `${value > 0 && value < 10 ? trimmed(value) : Math.round(value)} %`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let number = Number(value);
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${unit ? trimmed(number) : number} ${units[unit]}`;
}

export const at = (ms) => (ms ? stamp.format(new Date(ms)) : NOTHING);

export function fromNow(ms, now = Date.now()) {
  const away = ms - now;
  return away >= 0 ? `in ${duration(away)}` : `${duration(-away)} ago`;
}

export function plural(number, noun) {
  const many = noun.endsWith("y") && !noun.endsWith("ey") ? `${noun.slice(0, -1)}ies` : `${noun}s`;
  return `${count(number)} ${Number(number) === 1 ? noun : many}`;
}
