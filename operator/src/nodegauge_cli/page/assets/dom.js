"use strict";
// Elements and words.  All text that comes from a report is set as text, never as HTML.

const DATA = JSON.parse(document.getElementById("data").textContent);

/** A value with each reference (`SHARED` in page/html.py) replaced by what is in the table at its number. */
function whole(value) {
  if (typeof value === "string") return value[0] === "\u0001" ? DATA.shared[parseInt(value.slice(1), 10)] : value;
  if (value !== null && typeof value === "object") for (const key of Object.keys(value)) value[key] = whole(value[key]);
  return value;
}

for (const value of DATA.shared) if (typeof value === "object") whole(value); // each refers to those before it
whole(DATA.nodes);
const MADE = Date.parse(DATA.madeAt);

/** An element with properties, event handlers (onclick), attributes (the rest), and children. */
function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** What stands where there is nothing to show. */
const none = (text = "not read") => el("span", { class: "none" }, text);

const orNone = (value, text) => (value === undefined || value === null || value === "" ? none(text) : String(value));

const number = (value) => value.toLocaleString("en-US", { maximumFractionDigits: 1 });

/** What a machine is called here: node, or host where no cluster has it. */
const UNIT = DATA.unit, UNITS = `${UNIT}s`, IN_CLUSTER = UNIT === "node";
const NEVER_READ = IN_CLUSTER ? "never" : "not read";

const capital = (word) => word[0].toUpperCase() + word.slice(1);

const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

/** Whole per cent that never rounds up to 100. */
const percent = (part, whole) => `${Math.floor((100 * part) / whole)} %`;

const median = (sorted) => {
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

/** Seconds between a time and the making of this page; Infinity if it is unknown. */
function ageOf(time) {
  const seconds = (MADE - Date.parse(time)) / 1000;
  return Number.isFinite(seconds) ? Math.max(0, seconds) : Infinity;
}

function inWords(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

const ageText = (time) => (time ? el("time", { datetime: time, title: time }, inWords(ageOf(time))) : none(NEVER_READ));

const when = (time) => (time ? `${time.slice(0, 10)} ${time.slice(11, 16)} UTC` : "");

const KNOWN_VERDICTS = ["fail", "unknown", "warn", "pass"];

/** The verdict as a word with a colour; a verdict of another version as unknown. */
const badge = (verdict) =>
  el("span", { class: `badge ${KNOWN_VERDICTS.includes(verdict) ? verdict : "unknown"}` }, verdict);

const link = (name) => el("a", { href: `#node=${encodeURIComponent(name)}` }, name);

const section = (title, ...children) => el("section", {}, el("h2", {}, title), ...children);

/** A table with a caption for screen readers; cells are texts or elements. */
function table(caption, columns, rows, className = "") {
  const head = el("tr", {}, columns.map((column) => el("th", { scope: "col" }, column)));
  const body = rows.map((cells) =>
    el("tr", {}, cells.map((cell, i) => el(i ? "td" : "th", i ? {} : { scope: "row" }, cell))));
  const drawn = el("table", { class: className },
    el("caption", { class: "unseen" }, caption), el("thead", {}, head), el("tbody", {}, body));
  return wide(caption, drawn);
}

/** A box that scrolls sideways, by keyboard too. */
const wide = (label, ...children) => el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": label }, ...children);

/** Pairs of a name and what is known of it. */
const facts = (pairs) => el("dl", {}, pairs.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));

const list = (items, tag = "ul") => el(tag, {}, items.map((item) => el("li", {}, item)));

/** A text whose `commands` in backquotes are shown as code. */
const withCode = (text) => text.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));
