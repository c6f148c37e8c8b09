"use strict";
// Charts over days (uPlot), the heat map of links, and bars of bandwidth.  Colours that read on light and dark.

const LINE = "#2f7fd6", LIMIT = "#d0563b", AXIS = "#7d7d7d", GRID = "rgba(128,128,128,.22)";
const DAY = 86400;

/** A chart of columns over dates, with the numbers in a table below; "no data" without a number. */
function overDays(title, unit, dates, series, range = undefined) {
  const known = series.flatMap((each) => each.values).filter((value) => value !== null);
  if (!known.length) return el("figure", {}, el("figcaption", {}, title), el("p", {}, none("no data")));
  const box = el("div", { role: "img", "aria-label": inSentence(title, unit, dates, series[0].values) });
  requestAnimationFrame(() => draw(box, unit, dates, series, range));
  const rows = dates.map((date, i) => [date, ...series.map((each) => each.values[i])])
    .filter((row) => row.slice(1).some((value) => value !== null))
    .map(([date, ...values]) => [date, ...values.map((value) => (value === null ? none("no data") : number(value)))]);
  const numbers = el("details", {}, el("summary", {}, "Numbers"),
    table(`${title} by day`, ["Date (UTC)", ...series.map((each) => `${each.name} (${unit})`)], rows.reverse()));
  return el("figure", {}, el("figcaption", {}, title), box, numbers);
}

function inSentence(title, unit, dates, values) {
  const at = values.map((value, i) => [value, dates[i]]).filter(([value]) => value !== null);
  const numbers = at.map(([value]) => value);
  const [last, date] = at[at.length - 1];
  return `${title}: ${number(last)} ${unit} on ${date}; from ${number(Math.min(...numbers))} to ` +
    `${number(Math.max(...numbers))} on ${plural(at.length, "day")}.`;
}

function draw(box, unit, dates, series, range) {
  const size = () => ({ width: Math.max(200, box.clientWidth), height: 170 });
  const axis = { stroke: AXIS, grid: { stroke: GRID, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const chart = new uPlot({
    ...size(),
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    cursor: { drag: { x: false, y: false } },
    legend: { live: true },
    scales: { x: { range: (_, low, high) => (low === high ? [low - DAY, high + DAY] : [low, high]) }, y: { range } },
    axes: [{ ...axis, space: 70, size: 30, values: "{D} {MMM}" }, { ...axis, size: 54, values: (_, ticks) => ticks.map(number) }],
    series: [
      { label: "Date", value: (_, seconds) => (seconds ? new Date(seconds * 1000).toISOString().slice(0, 10) : "") },
      ...series.map((each) => ({
        label: each.name,
        stroke: each.limit ? LIMIT : LINE,
        dash: each.limit ? [6, 4] : undefined,
        width: 2,
        points: { show: !each.limit, size: 5 },
        value: (chart, value, _, at) => (at === null ? "" : value === null ? "no data" : `${number(value)} ${unit}`),
      })),
    ],
  }, [dates.map((date) => Date.parse(date) / 1000), ...series.map((each) => each.values)], box);
  new ResizeObserver(() => {
    if (box.clientWidth && Math.abs(box.clientWidth - chart.width) > 1) chart.setSize(size());
  }).observe(box);
}

/** Dates from the first on. */
function datesFrom(first, count) {
  const start = Date.parse(first);
  return Array.from({ length: count }, (_, i) => new Date(start + i * DAY * 1000).toISOString().slice(0, 10));
}

const NEAR = ["PIX", "PXB"], FAR = ["PHB", "NODE", "SYS"];

/** A class for the colour of one cell: NVLinks by how many of the matrix's most, else how far the path is. */
function heat(cell, most) {
  if (cell === "X") return "self";
  if (/^NV\d+$/.test(cell)) return Number(cell.slice(2)) === most ? "full" : "fewer";
  return NEAR.includes(cell) ? "near" : FAR.includes(cell) ? "far" : "unknown";
}

/** The matrix of a node; `gpus`: its GPUs, for their names. */
function heatMap(links, gpus) {
  const names = links.cells.map((_, i) => `GPU${gpus[i]?.index ?? i}`);
  const most = Math.max(0, ...links.cells.flat().map((cell) => (/^NV\d+$/.test(cell) ? Number(cell.slice(2)) : 0)));
  const cellOf = (cell, i, j) => {
    const refused = links.refused?.[`${i}-${j}`];
    const title = `${names[i]} to ${names[j]}: ${cell}${refused ? `, the driver refuses ${refused}` : ""}`;
    return el("td", { class: `${heat(cell, most)}${refused ? " refused" : ""}`, title }, refused ? `${cell} ✕` : cell);
  };
  const rows = links.cells.map((row, i) =>
    el("tr", {}, el("th", { scope: "row" }, names[i]), row.map((cell, j) => cellOf(cell, i, j))));
  const head = el("tr", {}, el("td", {}), names.map((name) => el("th", { scope: "col" }, name)));
  return wide("Links between GPUs", el("table", { class: "heat" },
    el("caption", { class: "unseen" }, "Links between GPUs, as nvidia-smi topo -m names them"),
    el("thead", {}, head), el("tbody", {}, rows)));
}

/** A bandwidth as a bar, with marks for the floor and for the median of its peers. */
function meter(gbps, floor, peers) {
  const most = 1.08 * Math.max(gbps, floor ?? 0, ...(peers.length ? [peers[peers.length - 1]] : []));
  const mark = (value, className) => {
    const element = el("span", { class: className });
    element.style.left = `${(100 * value) / most}%`;
    return element;
  };
  const fill = el("span", { class: floor !== undefined && gbps < floor ? "fill low" : "fill" });
  fill.style.width = `${(100 * gbps) / most}%`;
  return el("span", { class: "meter", "aria-hidden": "true" }, fill,
    floor === undefined ? null : mark(floor, "floor"), peers.length ? mark(median(peers), "peers") : null);
}
