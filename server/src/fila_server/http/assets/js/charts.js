// SPDX-License-Identifier: AGPL-3.0-only
// Curves over time by uPlot, and the two small pictures that need no library: a sparkline, and the
// bar that sets a share against what it should be.

import { h, svg } from "./dom.js";
import { count } from "./format.js";

// Told apart without colour as well.
const DASHES = [[], [8, 4], [2, 3]];
const drawn = new Map();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Return the place of a chart; `draw` fills it once it is on the page.
export function chart(id, label) {
  return h("div", { class: "chart", "data-key": id, "data-keep": true, role: "img",
    "aria-label": label, "data-chart": id });
}

// Draw or redraw a chart: `lines` names the curves, `data` is times and values.
export function draw(id, lines, data) {
  const place = document.querySelector(`[data-chart="${id}"]`);
  if (!place || place.clientWidth === 0 || data[0].length < 2) return;
  let known = drawn.get(id);
  if (known && known.place !== place) {
    known.plot.destroy();
    known = undefined;
  }
  const width = place.clientWidth;
  if (!known) {
    const plot = new uPlot(options(lines, width), data, place);
    drawn.set(id, { plot, place });
    return;
  }
  if (known.plot.width !== width) known.plot.setSize({ width, height: 200 });
  known.plot.setData(data);
}

// Colours are read when a chart is made, so another theme needs another chart.
export function redrawAll() {
  for (const { plot } of drawn.values()) plot.destroy();
  drawn.clear();
}

function options(lines, width) {
  const axis = {
    stroke: colour("--muted"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1 },
    font: "12px system-ui, sans-serif",
  };
  const names = ["--series-1", "--series-2", "--series-3"];
  return {
    width,
    height: 200,
    cursor: { drag: { x: false, y: false } },
    scales: { y: { range: (plot, low, high) => [0, Math.max(1, (high ?? 0) * 1.1)] } },
    legend: {
      live: false,
      markers: { width: 2, dash: (plot, index) => ["solid", "dashed", "dotted"][index - 1] },
    },
    axes: [
      { ...axis, space: 90, values: (plot, times) => times.map(clock) },
      { ...axis, size: 56, values: (plot, values) => values.map(count) },
    ],
    series: [
      {},
      ...lines.map((label, index) => ({
        label,
        stroke: colour(names[index]),
        width: 2,
        dash: DASHES[index],
        points: { show: false },
      })),
    ],
  };
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

export function sparkline(values, label) {
  const width = 96;
  const height = 24;
  const most = Math.max(1, ...values);
  const step = values.length > 1 ? width / (values.length - 1) : width;
  const path = values.map((value, index) =>
    `${index ? "L" : "M"}${(index * step).toFixed(1)} ${(height - 2 - (value / most) * (height - 4))
      .toFixed(1)}`).join("");
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": label, preserveAspectRatio: "none" },
  svg("path", { d: path || "M0 22", class: "spark-line" }));
}

// A bar for what somebody gets, and a mark for what they are entitled to.
export function shareBar(share, entitled, most) {
  const part = (value) => `${(Math.min(1, value / most) * 100).toFixed(2)}%`;
  const mark = entitled === null ? null : part(entitled);
  return svg("svg", { class: "share", width: "100%", height: 22, "aria-hidden": "true" },
    svg("rect", { class: "share-track", x: 0, y: 5, width: "100%", height: 12, rx: 3 }),
    svg("rect", { class: "share-fill", x: 0, y: 5, width: part(share ?? 0), height: 12, rx: 3 }),
    mark && svg("line", { class: "share-mark", x1: mark, x2: mark, y1: 1, y2: 21 }));
}

// How much of something is left, as a bar with its text beside it.
export function level(value, most) {
  const part = most > 0 ? Math.max(0, Math.min(1, value / most)) : 0;
  return svg("svg", { class: "level", width: 72, height: 10, "aria-hidden": "true" },
    svg("rect", { class: "share-track", width: "100%", height: 10, rx: 3 }),
    svg("rect", { class: "share-fill", width: `${(part * 100).toFixed(1)}%`, height: 10, rx: 3 }));
}
