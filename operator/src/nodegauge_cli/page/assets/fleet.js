"use strict";
// The head with the usable share, the table of all nodes with its filters, and the way between the two views.

const CHUNK = 100;
const FLEET = document.getElementById("fleet");
const NODE = document.getElementById("node");

const natural = new Intl.Collator("en", { numeric: true }).compare;
const rank = (node) => { const at = KNOWN_VERDICTS.indexOf(node.verdict); return at < 0 ? 1 : at; };
const hottest = (node) => Math.max(-Infinity, ...(node.gpus ?? []).map((gpu) => gpu.celsius ?? -Infinity));
const busbw = (node) => (node.bandwidth ?? []).find((each) => each.name === "all_reduce");

/** Heading, sort key (numbers put the worst or largest first), and cell of each column. */
const COLUMNS = [
  [capital(UNIT), (node) => node.name, (node) => link(node.name)],
  ["Verdict", rank, (node) => badge(node.verdict)],
  ["Cause", (node) => (node.causes ?? []).join(" ") || "~", (node) => (node.causes ?? []).join(", ")],
  ["GPUs usable", (node) => (node.usable ?? 0) - (node.count ?? 0), (node) => (node.count ? `${node.usable ?? 0} of ${node.count}` : none())],
  ["Class", (node) => node.class ?? "~", (node) => orNone(node.class)],
  ["Interconnect", (node) => node.interconnect || "~", (node) => orNone(node.interconnect, "unknown")],
  ["all_reduce", (node) => -(busbw(node)?.gbps ?? -1), (node) => bandwidthCell(busbw(node))],
  ["Hottest", (node) => -hottest(node), (node) => (hottest(node) > -Infinity ? `${hottest(node)} °C` : none())],
  ["Age", (node) => -ageOf(node.readAt), (node) => ageText(node.readAt)],
];

function bandwidthCell(measured) {
  if (!measured) return none("not measured");
  const low = measured.floor !== undefined && measured.gbps < measured.floor;
  return el("span", { class: low ? "low" : "" }, `${number(measured.gbps)} GB/s${low ? " (low)" : ""}`);
}

/** How often each value occurs, most often first; `weigh`: what each node adds to it. */
function counted(valuesOf) {
  const found = new Map();
  for (const node of DATA.nodes) {
    for (const [value, weight] of valuesOf(node)) found.set(value, (found.get(value) ?? 0) + weight);
  }
  return [...found].sort((a, b) => b[1] - a[1] || natural(a[0], b[0]));
}

function head() {
  const total = DATA.nodes.reduce((sum, node) => sum + (node.count ?? 0), 0);
  const usable = DATA.nodes.reduce((sum, node) => sum + (node.usable ?? 0), 0);
  const uncounted = DATA.nodes.filter((node) => !node.count).length;
  const verdicts = counted((node) => [[node.verdict, 1]]);
  const oldest = DATA.nodes.filter((node) => node.readAt).sort((a, b) => (a.readAt < b.readAt ? -1 : 1))[0];
  const unread = DATA.nodes.filter((node) => !node.readAt).length;
  const share = total ? [el("b", {}, percent(usable, total)), ` ${number(usable)} of ${plural(total, "GPU")}`] : none("no GPU was read");
  return el("section", { class: "head" }, el("h2", { class: "unseen" }, "The fleet"),
    el("dl", { class: "tiles" },
      tile("Usable", share, uncounted ? `and ${plural(uncounted, UNIT)} whose GPUs nobody knows` : ""),
      tile(plural(DATA.nodes.length, UNIT), verdicts.map(([verdict, count]) => [badge(verdict), ` ${number(count)} `])),
      tile("Oldest reading", oldest ? [ageText(oldest.readAt), ` on ${oldest.name}`] : none(`no ${UNIT} was read`),
        unread ? `${plural(unread, UNIT)} ${IN_CLUSTER ? "never" : "not"} read` : "")),
    (DATA.notices ?? []).map(notice),
    el("div", { class: "pair" }, lostTable(total), classTable()),
    el("div", { class: "charts one" }, trend()),
    DATA.problems.length ? el("div", { class: "fault warn" }, el("h3", {}, "Not read"), list(DATA.problems)) : null);
}

/** What concerns many nodes: an incident, a limit, a mode. */
function notice(each) {
  const nodes = each.nodes ?? [];
  const left = (each.count ?? 0) - nodes.length;
  const named = nodes.length
    ? el("p", { class: "small" }, nodes.map((name) => [link(name), " "]), left > 0 ? `and ${plural(left, "more node")}` : "") : null;
  return el("article", { class: `fault ${each.severity ?? "warn"}` },
    el("h3", {}, each.title),
    el("p", {}, each.since ? `Since ${when(each.since)}. ` : "", withCode(each.text ?? "")),
    named && nodes.length > 8 ? el("details", {}, el("summary", {}, plural(each.count, UNIT)), named) : named,
    each.cause ? el("p", { class: "small" }, "In the table: ", filterLink("cause", each.cause)) : null);
}

const tile = (name, value, note = "") =>
  el("div", {}, el("dt", {}, name), el("dd", {}, value, note ? el("small", {}, note) : null));

function lostTable(total) {
  const lost = counted((node) => Object.entries(node.lost ?? {}));
  const affected = new Map(counted((node) => Object.keys(node.lost ?? {}).map((cause) => [cause, 1])));
  if (!lost.length) return el("p", {}, total ? "No GPU is lost." : none("no GPU was read"));
  return table("GPUs lost by cause", ["Lost to", "GPUs", capital(UNITS)],
    lost.map(([cause, count]) => [filterLink("cause", cause), number(count), number(affected.get(cause))]), "small numbers");
}

function classTable() {
  const gpus = counted((node) => [[node.class ?? "not read", node.count ?? 0]]);
  const usable = new Map(counted((node) => [[node.class ?? "not read", node.usable ?? 0]]));
  const nodes = new Map(counted((node) => [[node.class ?? "not read", 1]]));
  return table("Usable GPUs by class", ["Class", "Usable", capital(UNITS)],
    gpus.map(([name, count]) => [filterLink("class", name), count ? `${number(usable.get(name))} of ${number(count)}` : none(), number(nodes.get(name))]), "small numbers");
}

function trend() {
  const days = DATA.trend;
  if (!days.length) return el("p", { class: "small" }, none(`No data of earlier days: ${NO_HISTORY}.`));
  const span = Math.round((Date.parse(days[days.length - 1].date) - Date.parse(days[0].date)) / 864e5) + 1;
  const dates = datesFrom(days[0].date, span);
  const byDate = new Map(days.map((day) => [day.date, day]));
  const share = dates.map((date) => { const day = byDate.get(date); return day?.gpus ? (100 * day.usable) / day.gpus : null; });
  return overDays("Usable share of the GPUs that were read that day", "%", dates, [{ name: "usable", values: share }], [0, 100]);
}

// Filters

const wanted = { text: "", class: "", verdict: "", cause: "" };
const sorting = { column: 1, reverse: false };
const inputs = {};

function filterLink(field, value) {
  return el("button", { type: "button", class: "plain", onclick: () => { inputs[field].value = value; changed(); } }, value);
}

function select(field, label, values) {
  inputs[field] = el("select", { id: field, onchange: changed }, el("option", { value: "" }, "all"),
    values.map(([value, count]) => el("option", { value }, `${value} (${number(count)})`)));
  return labelled(field, label);
}

const labelled = (field, label) => el("div", {}, el("label", { for: field }, label), " ", inputs[field]);

function filters() {
  inputs.text = el("input", { id: "text", type: "search", placeholder: "name, serial, finding, driver", oninput: changed });
  return el("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
    labelled("text", "Search"),
    select("class", "Class", counted((node) => [[node.class ?? "not read", 1]])),
    select("verdict", "Verdict", counted((node) => [[node.verdict, 1]])),
    select("cause", "Cause", counted((node) => (node.causes ?? []).map((cause) => [cause, 1]))),
    el("button", { type: "button", onclick: reset }, "Clear"),
    el("output", { id: "count", "aria-live": "polite" }), all);
}

const texts = new Map();

/** All that a search looks at, in lower case. */
function textOf(node) {
  if (!texts.has(node)) {
    const of = [node.name, node.class, node.driver, node.policy, node.interconnect, ...(node.causes ?? []), ...(node.taints ?? [])];
    for (const gpu of node.gpus ?? []) of.push(gpu.serial, gpu.uuid, gpu.pci);
    for (const each of node.faults ?? []) of.push(each.code, each.title, each.subject);
    texts.set(node, of.join("\n").toLowerCase());
  }
  return texts.get(node);
}

function matches(node) {
  return (!wanted.class || (node.class ?? "not read") === wanted.class)
    && (!wanted.verdict || node.verdict === wanted.verdict)
    && (!wanted.cause || (node.causes ?? []).includes(wanted.cause))
    && wanted.text.split(" ").every((word) => textOf(node).includes(word));
}

function changed() {
  for (const field of Object.keys(inputs)) wanted[field] = inputs[field].value;
  wanted.text = wanted.text.trim().toLowerCase();
  showRows();
}

function reset() {
  for (const input of Object.values(inputs)) input.value = "";
  changed();
}

// The table

const body = el("tbody");
const headings = COLUMNS.map(([name], column) =>
  el("th", { scope: "col" }, el("button", { type: "button", onclick: () => sortBy(column) }, name)));
const more = el("p", { class: "small", id: "more" });
// Above the table: below it, rows that come while it is pressed would push it away, and the press would do nothing.
const all = el("button", { type: "button", onclick: () => showMore(rows.length - shown) }, "Show all");
let rows = [];
let shown = 0;

function sortBy(column) {
  sorting.reverse = sorting.column === column && !sorting.reverse;
  sorting.column = column;
  showRows();
}

function compare(a, b) {
  const key = COLUMNS[sorting.column][1];
  const [left, right] = [key(a), key(b)];
  const order = typeof left === "string" ? natural(left, right) : left === right ? 0 : left < right ? -1 : 1;
  return (sorting.reverse ? -order : order) || natural(a.name, b.name);
}

function showRows() {
  rows = DATA.nodes.filter(matches).sort(compare);
  shown = 0;
  body.replaceChildren();
  headings.forEach((heading, column) => {
    if (column === sorting.column) heading.setAttribute("aria-sort", sorting.reverse ? "descending" : "ascending");
    else heading.removeAttribute("aria-sort");
  });
  document.getElementById("count").textContent = `${number(rows.length)} of ${plural(DATA.nodes.length, UNIT)}`;
  showMore(CHUNK);
}

/** So many more rows: a browser takes seconds for thousands at once. */
function showMore(count) {
  const next = rows.slice(shown, shown + count);
  body.append(...next.map((node) =>
    el("tr", {}, COLUMNS.map(([, , cell], i) => el(i ? "td" : "th", i ? {} : { scope: "row" }, cell(node))))));
  shown += next.length;
  const left = rows.length - shown;
  all.hidden = !left;
  more.textContent = left ? `${plural(left, `more ${UNIT}`)}.` : rows.length ? "" : `No ${UNIT} matches.`;
}

function fleetView() {
  const drawn = el("table", { class: "nodes" }, el("caption", { class: "unseen" }, `All ${UNITS}`),
    el("thead", {}, el("tr", {}, headings)), body);
  return [head(), section(capital(UNITS), filters(), wide(`All ${UNITS}`, drawn), more)];
}

// Which view

function route() {
  const name = location.hash.startsWith("#node=") ? safely(location.hash.slice(6)) : null;
  NODE.hidden = name === null;
  FLEET.hidden = name !== null;
  NODE.replaceChildren(...(name === null ? [] : nodeView(name).filter(Boolean)));
  document.title = name === null ? DATA.title : `${name}: ${DATA.title}`;
  if (name !== null) {
    NODE.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

function safely(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

document.getElementById("about").append(`As of ${when(DATA.madeAt) || "an unknown time"}, from ${DATA.source}. nodegauge ${DATA.version}`);
FLEET.replaceChildren(...fleetView());
showRows();
new IntersectionObserver((entries) => {
  if (entries.some((entry) => entry.isIntersecting) && shown < rows.length) showMore(CHUNK);
}, { rootMargin: "600px" }).observe(more);
addEventListener("beforeprint", () => showMore(rows.length - shown));
addEventListener("hashchange", route);
route();
