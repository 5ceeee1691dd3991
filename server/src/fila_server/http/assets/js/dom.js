// SPDX-License-Identifier: AGPL-3.0-only
// Elements, and how a page that is drawn anew every two seconds keeps its focus and its scroll.
// Text becomes text nodes and nothing else: names and errors come from strangers.

import { NOTHING } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

// Make an element. Attributes that are null, undefined or false are left out.
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

// Make an element's children like the fresh ones, reusing what is there. Children with the same
// `data-key` are the same; an element with `data-keep` looks after its own children.
export function patch(parent, fresh) {
  const focused = document.activeElement;
  patchChildren(parent, fresh.flat(Infinity).filter(Boolean));
  const isLost = focused !== document.activeElement && focused?.isConnected;
  if (isLost && focused !== document.body) focused.focus({ preventScroll: true });
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null;
}

function isAlike(old, next) {
  return old.nodeName === next.nodeName && keyOf(old) === keyOf(next);
}

function patchChildren(parent, fresh) {
  const keyed = new Map();
  for (const child of parent.children) {
    const key = keyOf(child);
    if (key !== null) keyed.set(`${child.nodeName} ${key}`, child);
  }
  let at = parent.firstChild;
  for (const next of fresh) {
    const key = keyOf(next);
    const known = key === null ? null : keyed.get(`${next.nodeName} ${key}`);
    if (known) keyed.delete(`${next.nodeName} ${key}`);
    const match = known ?? (at && key === null && isAlike(at, next) ? at : null);
    if (!match) {
      parent.insertBefore(next, at);
      continue;
    }
    if (match === at) at = at.nextSibling;
    else parent.insertBefore(match, at);
    update(match, next);
  }
  while (at) {
    const rest = at.nextSibling;
    at.remove();
    at = rest;
  }
}

function update(old, next) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    // What a person has opened or typed stays.
    if (!next.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (!old.hasAttribute("data-keep")) patchChildren(old, [...next.childNodes]);
}

// What a phone need not show.
const EMPTY = ["0", NOTHING, "0/s", null, false];

// A table that a phone shows as a list of cards. Columns: {title, cell(row), number, head, class}.
export function table(label, columns, rows, keyOfRow, rowAttributes = () => ({})) {
  const heads = columns.map((column) =>
    h("th", { scope: "col", role: "columnheader", class: column.number && "number" },
      column.title));
  const body = rows.map((row) =>
    h("tr", { role: "row", "data-key": keyOfRow(row), ...rowAttributes(row) },
      columns.map((column) => {
        const content = column.cell(row);
        const isEmpty = !column.head && EMPTY.includes(content);
        const classes = [column.number && "number", column.class, isEmpty && "empty"];
        return h(column.head ? "th" : "td", {
          scope: column.head && "row",
          role: column.head ? "rowheader" : "cell",
          class: classes.filter(Boolean).join(" ") || null,
          "data-label": column.title,
        }, content);
      })));
  return h("div", { class: "scroll", "data-key": `table ${label}` },
    h("table", { "aria-label": label, role: "table" },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)),
      h("tbody", { role: "rowgroup" }, body)));
}

export function section(title, ...content) {
  const id = `h-${title.replace(/\W+/g, "-").toLowerCase()}`;
  return h("section", { class: "card", "aria-labelledby": id, "data-key": title },
    h("h2", { id }, title), content);
}

// A button; `act` names the action of the view, `data` is what it acts on.
export function button(text, act, data = {}, attributes = {}) {
  const carried = Object.entries(data).map(([name, value]) => [`data-${name}`, value]);
  return h("button",
    { type: "button", "data-do": act, ...Object.fromEntries(carried), ...attributes }, text);
}

export function field(label, input, hint) {
  return h("label", { class: "field" }, h("span", {}, label), input,
    hint && h("small", {}, hint));
}

export function say(text) {
  document.getElementById("said").textContent = text;
}

export function toast(text, isError = false) {
  const shown = h("p", { class: isError ? "toast bad" : "toast" }, text);
  document.getElementById("toasts").append(shown);
  setTimeout(() => shown.remove(), isError ? 12000 : 6000);
}
