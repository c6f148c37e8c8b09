"use strict";
// The view of one node.

const NO_HISTORY = IN_CLUSTER ? "no NodeHistory was read" : "hosts outside of a cluster have no NodeHistory";
const BY_NAME = new Map(DATA.nodes.map((node) => [node.name, node]));

function nodeView(name) {
  const node = BY_NAME.get(name);
  const back = el("p", { class: "back" }, el("a", { href: "#" }, `← All ${UNITS}`));
  if (!node) return [back, el("h2", { class: "title" }, name), el("p", {}, `This page has no ${UNIT} of that name.`)];
  return [
    back,
    el("h2", { class: "title" }, badge(node.verdict), " ", node.name),
    node.unread ? el("p", { class: "fault fail" }, el("strong", {}, "Nothing is known of it now. "), withCode(node.unread)) : null,
    el("p", { class: node.unread ? "lead past" : "lead" }, node.unread && node.readAt ? `When it was last read, ${when(node.readAt)}: ` : "",
      orNone(node.summary, IN_CLUSTER ? "The operator has not judged this node." : "Nobody has judged this host.")),
    IN_CLUSTER ? carried(node) : outside(node), faults(node), gpus(node), links(node), bandwidth(node), power(node), feeding(node), overTime(node), runs(node),
  ];
}

function carried(node) {
  const chips = (texts, empty) => (texts.length ? texts.map((text) => [el("code", {}, text), " "]) : none(empty));
  return section("What it carries, and why", facts([
    ["Taints", chips(node.taints ?? [], "none of ours")],
    ["Labels", chips(Object.entries(node.labels ?? {}).map(([key, value]) => `${key}=${value}`), "none of ours")],
    ["Condition", node.condition ? [el("code", {}, `GPUValidated ${node.condition}`), " ", node.message ?? ""] : none("none of ours")],
    ["Usable", node.count ? usableText(node) : none("not read")],
    ...(node.override ? [["Overridden", node.override]] : []),
    ["Policy", orNone(node.policy, "none")],
    ...(node.notes ? [["Notes", list(node.notes)]] : []),
  ]));
}

/** The same of a host that no cluster has. */
function outside(node) {
  return section("What is known of it", facts([
    ["Usable", node.count ? usableText(node) : none()],
    ["Read", orNone(when(node.readAt))],
    ["In a cluster", none("no NodeReport: no labels or taints, and no second run has confirmed a fault")],
    ...(node.notes ? [["Notes", list(node.notes)]] : []),
  ]));
}

function usableText(node) {
  const lost = Object.entries(node.lost ?? {}).map(([cause, gpus]) => `${gpus} lost to ${cause}`);
  return [`${node.usable ?? 0} of ${plural(node.count, "GPU")}`, ...lost].join(", ");
}

function faults(node) {
  const known = node.faults ?? [];
  if (!known.length) {
    const noFinding = node.unread ? "No finding stood when it was last read." : "No finding stands. What was read is at the end of this page.";
    return section("Findings", el("p", {}, node.readAt ? noFinding : none("not read")));
  }
  return section("Findings", known.map(fault));
}

function fault(each) {
  const about = [
    each.taint ? `${each.tainted ? "taint" : "no taint"} ${each.taint}` : each.severity,
    each.state,
    each.since ? `since ${when(each.since)}` : "",
    each.lastSeen ? `last seen ${when(each.lastSeen)}` : "",
  ].filter(Boolean).join(", ");
  const parts = (each.gpus ?? []).map((gpu) => [`GPU ${gpu.index ?? "?"}: `, identity(gpu)]);
  return el("article", { class: `fault ${KNOWN_VERDICTS.includes(each.severity) ? each.severity : "info"}` },
    el("h3", {}, each.title || each.code, " ", el("code", {}, each.code)),
    el("p", { class: "about" }, about),
    el("p", {}, each.subject && each.subject !== "node" ? el("strong", {}, `${each.subject}: `) : "", orNone(each.measured)),
    parts.length ? list(parts) : null,
    each.also ? el("p", {}, `Also: ${each.also}`) : null,
    each.noTaint ? el("p", {}, `Why there is no taint: ${each.noTaint}.`) : null,
    each.lifts ? el("p", {}, `What lifts it: ${each.lifts}.`) : null,
    each.steps?.length ? [el("h4", {}, "What to do"), list(each.steps.map(withCode), "ol")] : null);
}

const identity = (gpu) => [
  "serial ", gpu.serial ? el("code", {}, gpu.serial) : none(), ", PCI ", gpu.pci ? el("code", {}, gpu.pci) : none(),
  ...(gpu.uuid ? [", ", el("code", {}, gpu.uuid)] : []),
];

function gpus(node) {
  if (!node.gpus) return section("GPUs", el("p", {}, none("not read")));
  const rows = node.gpus.map((gpu) => [
    `GPU ${gpu.index ?? "?"}`,
    gpu.missing ? el("strong", {}, "lost") : orNone(gpu.celsius === undefined ? "" : `${gpu.celsius} °C`),
    gpu.watts === undefined ? none() : `${gpu.watts}${gpu.limit === undefined ? "" : ` of ${gpu.limit}`} W`,
    gpu.serial ? el("code", {}, gpu.serial) : none(),
    gpu.pci ? el("code", {}, gpu.pci) : none(),
    gpu.uuid ? el("code", {}, gpu.uuid) : none(),
    ...(node.gpus.some((each) => each.name) ? [gpu.name ?? ""] : []),
  ]);
  const columns = ["GPU", "Hottest", "Power", "Serial", "PCI", "UUID"];
  if (node.gpus.some((each) => each.name)) columns.push("Model");
  const driver = node.driver ? `, driver ${node.driver}` : "";
  return section("GPUs", el("p", {}, `${node.class ?? "Unknown model"}${driver}`), table("GPUs", columns, rows, "short"));
}

function links(node) {
  const joined = el("p", {}, node.interconnect ? el("strong", {}, `${node.interconnect}. `) : "", node.interconnectMessage ?? "");
  const known = DATA.matrices[node.links];
  if (!known) return section("Links", joined, el("p", {}, none("The matrix was not read.")));
  const read = (gpu) => gpu.up || gpu.down?.length || !gpu.unread;
  const rows = (known.gpus ?? []).map((gpu, i) => [
    `GPU ${node.gpus?.[i]?.index ?? i}`,
    read(gpu) ? `${gpu.up ?? 0} up${gpu.gbps ? `, ${number(gpu.gbps)} GB/s each` : ""}` : none(),
    gpu.down?.length ? el("strong", {}, `${gpu.down.length} down: ${gpu.down.join(", ")}`) : read(gpu) ? "0 down" : none(),
    gpu.unread ? none() : orNone(Object.entries(gpu.errors ?? {}).map(([name, count]) => `${name} ${number(count)}`).join(", ") || "0"),
  ]);
  const legend = "NV18: 18 NVLinks. PIX and PXB: PCIe switches; PHB, NODE and SYS: through the CPU. ✕: the driver refuses direct access.";
  return section("Links", joined, heatMap(known, node.gpus ?? []), el("p", { class: "small" }, legend),
    rows.length ? table("NVLinks by GPU", ["GPU", "Links", "Down", "Errors since the driver was loaded"], rows, "short") : null);
}

/** Bandwidths of nodes that can be compared, sorted; the node's own among them. */
function peersOf(node, collective) {
  const alike = node.peers ? DATA.nodes.filter((other) => other.peers === node.peers) : [];
  const found = alike.map((other) => (other.bandwidth ?? []).find((each) => each.name === collective)?.gbps);
  return found.filter((gbps) => gbps !== undefined).sort((a, b) => a - b);
}

function bandwidth(node) {
  const note = node.bandwidthNote ? el("p", {}, node.bandwidthNote) : null;
  if (!node.bandwidth) return section("Bandwidth of collectives", el("p", {}, none("not measured")), note);
  const rows = node.bandwidth.map((each) => {
    const peers = peersOf(node, each.name);
    return [
      each.name,
      [`${number(each.gbps)} GB/s`, meter(each.gbps, each.floor, peers.length > 1 ? peers : [])],
      each.floor === undefined ? none("no floor is known") : `${number(each.floor)} GB/s: ${each.basis ?? ""}`,
      peers.length > 1
        ? `${number(median(peers))} GB/s, from ${number(peers[0])} to ${number(peers[peers.length - 1])} on ${peers.length} ${UNITS}`
        : none("no peers"),
    ];
  });
  return section("Bandwidth of collectives",
    table("Bus bandwidth at 1 GiB", ["Collective", "Measured", "Floor", "Median of its peers"], rows), note,
    node.pairs ? el("p", {}, node.pairs) : null);
}

function power(node) {
  const supplies = (node.supplies ?? []).map((each) => [
    each.name, orNone(each.state),
    each.watts === undefined ? none() : `${each.watts} W`,
    each.capacity === undefined ? none() : `${each.capacity} W`,
  ]);
  const sensors = Object.entries(node.sensors ?? {});
  return section("Power supplies",
    el("p", {}, node.psu ? `Supplies: ${node.psu}.` : none("No sensor of the supplies was read.")),
    supplies.length ? table("Power supplies by the BMC", ["Supply", "State", "Power", "Rated"], supplies) : null,
    sensors.length ? facts(sensors) : null);
}

function feeding(node) {
  if (!node.feed) return null;
  const share = node.fed === undefined ? "" : `${percent(node.fed, 1)} of the held GPUs' time is used. `;
  return section("Feeding of jobs", el("p", {}, share, node.feed));
}

const CHARTS = [
  ["allReduce", "all_reduce", "GB/s"],
  ["hottest", "Hottest GPU", "°C"],
  ["throttled", "Throttled", "s"],
  ["tflops", "Median GPU under load", "TFLOPS"],
  ["spare", "Power left", "W"],
];

function overTime(node) {
  const days = node.days;
  if (!days) return section("Over time", el("p", {}, none(`no data: ${NO_HISTORY}`)));
  const dates = datesFrom(days.first, days.count);
  const floor = (node.bandwidth ?? []).find((each) => each.name === "all_reduce")?.floor;
  const charts = CHARTS.map(([key, name, unit]) => {
    const series = [{ name, values: days.values?.[key] ?? [] }];
    if (key === "allReduce" && floor !== undefined) series.push({ name: "floor", limit: true, values: dates.map(() => floor) });
    return overDays(name, unit, dates, days.values?.[key] ? series : [{ name, values: [] }]);
  });
  const changes = Object.entries(days.changes ?? {}).reverse().map(([date, text]) => `${date}: ${text}`);
  return section("Over time", list(days.sentences ?? []), el("div", { class: "charts" }, charts),
    changes.length ? [el("h3", {}, "Versions that came"), list(changes)] : null);
}

function runs(node) {
  const rows = (node.runs ?? []).map((each) => [
    each.probe, badge(each.verdict), ageText(each.readAt), orNone(each.coverage, "not said"),
    [each.summary ?? "", each.failed ? el("strong", {}, ` Not read ${each.failed}`) : ""],
  ]);
  if (!rows.length) return section("What was read", el("p", {}, none(IN_CLUSTER ? "nothing yet" : "nothing")));
  return section("What was read", table("Runs of each probe", ["Probe", "Verdict", "Age", "Read", "Result"], rows));
}
