"""`nodegauge explain NODE`: what a node carries and why, on one screen of 80 columns.

Asks for two objects at once, and loads what judges them while the answers come.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import click

from nodegauge_cli.cluster import POLICIES, REPORTS, Cluster, NotThere, context_option
from nodegauge_cli.completion import node_names
from nodegauge_cli.output import BAD, FAINT, TITLE, WORTH_A_LOOK, age, dump, entry, output_option, verdict
from nodegauge_operator import names

if TYPE_CHECKING:
    from nodegauge_cli.explanation import Explanation, ReadBy
    from nodegauge_judge import GpuIdentity
    from nodegauge_operator.api.fault import Fault

WHOLE_FAULTS = 2
"""Confirmed faults that are shown with their steps, so that one screen holds them; the others have a line."""
LINES_OF_OTHERS = 12
CONFIRMED = ("gated", "held-back")
"""States of a gate that was entered (`GateState`)."""
NOWHERE = ("", "node")
LABELS_FIRST = (names.LABEL_HEALTH, names.LABEL_INTERCONNECT)
EXIT_UNWELL = 3
"""With `--exit-code`: the node is not pass."""


@click.command()
@click.argument("node", shell_complete=node_names)
@click.option("--all", "everything", is_flag=True, help="Show every fault with all of its steps.")
@click.option("--exit-code", is_flag=True, help=f"Exit with {EXIT_UNWELL} unless the node passed.")
@output_option("json", "yaml")
@context_option
def explain(node: str, everything: bool, exit_code: bool, form: str | None, context: str) -> None:
    """What NODE carries of nodegauge's, why, what would lift it, and what to do.

    Needs the ClusterRole nodegauge-view. Exit codes: 0, 1 if the cluster cannot be asked or has no report of
    the node, 2 for wrong usage.
    """
    cluster = Cluster(context=context)
    with ThreadPoolExecutor(2) as pool:
        body = pool.submit(cluster.find, REPORTS, node)
        policies = pool.submit(lambda: cluster.get(POLICIES).get("items") or ())
        from nodegauge_cli.explanation import explained
        from nodegauge_cli.standing import policies_of
        from nodegauge_operator.api.report import parse_report
    result = body.result()
    if result is None:
        raise NotThere(no_report(node))
    report = parse_report(result)
    policy = policies_of(policies.result()).get(report.status.policy)
    now = time.time()
    explanation = explained(report, policy, now=now)
    if form:
        click.echo(dump(explanation, form))
    else:
        click.echo("\n".join(lines(explanation, now=now, everything=everything)))
    if exit_code and explanation.standing.health != "pass":
        sys.exit(EXIT_UNWELL)


def no_report(node: str) -> str:
    """What it means that a node has no report, and what to do."""
    return (
        f"node {node} has no NodeReport: nodegauge has never looked at it. `kubectl get nodes {node}` says "
        "whether there is such a node, `kubectl get gpuvalidationpolicies` which nodes are selected."
    )


def lines(explanation: Explanation, *, now: float, everything: bool = False) -> Iterator[str]:
    """The explanation as text; `now`: epoch seconds."""
    yield from _head(explanation, now=now)
    yield from _carried(explanation)
    known = explanation.faults
    confirmed = sum(1 for fault in known if fault.tainted or fault.state in CONFIRMED)
    shown = known if everything else known[: min(max(confirmed, 1), WHOLE_FAULTS)]
    for fault in shown:
        yield ""
        yield from _fault(fault, now=now)
    others = known[len(shown) :]
    if others:
        yield ""
    for fault in others[:LINES_OF_OTHERS]:
        where = f", {fault.subject}" if fault.subject not in NOWHERE else ""
        yield entry("also", f"{fault.title}{where} [{fault.code}]: {fault.measured}", style=_style(fault))
    if others:
        yield entry("", f"nodegauge explain {explanation.standing.node} --all shows all with their steps.")
    yield ""
    if confirmed:
        node = explanation.standing.node
        pods = f"kubectl get pods -A --field-selector spec.nodeName={node}"
        yield entry("jobs", f"`{pods}` lists them")
    if explanation.standing.why_unread and not known:
        yield from _steps(looking_at(explanation.standing.node))
        yield ""
    for reading in explanation.readings:
        yield _reading(reading, now=now)
    for part in explanation.left_out:
        yield entry("unread", f"part of the report: {part}", style=WORTH_A_LOOK)


def _head(explanation: Explanation, *, now: float) -> Iterator[str]:
    standing = explanation.standing
    text, style = verdict(standing.health)
    yield entry(text.upper(), f"{standing.node}: {_headline(explanation)}", style=style or TITLE)
    if standing.why_unread and standing.health == "fail":
        yield entry("unread", standing.why_unread, style=WORTH_A_LOOK)
    switched = ", NVSwitch" if explanation.nvswitch else ""
    gpus = f"{standing.gpus}x {standing.product}{switched}, driver {standing.driver}"
    yield entry("gpus", gpus if standing.gpus else "none read")
    if explanation.interconnect:
        yield entry("link", explanation.interconnect)
    if explanation.bandwidth:
        yield entry("nccl", explanation.bandwidth)
    mode = standing.mode or "gone or unreadable: limits below are the defaults"
    policy = f"{standing.policy or 'none'} ({mode})"
    owner = f", installation {standing.installation}" if standing.installation else ""
    yield entry("policy", f"{policy}{owner}")
    yield from _override(explanation)


def _headline(explanation: Explanation) -> str:
    """The node in one sentence; never better than what was read."""
    standing = explanation.standing
    if standing.health == "unread":
        return standing.why_unread
    if explanation.faults:
        first = explanation.faults[0]
        return f"{first.title}{f', {first.where}' if first.where else ''}"
    return standing.summary or "The operator has not judged this node."


def _override(explanation: Explanation) -> Iterator[str]:
    override = explanation.override
    if override is None:
        return
    if override.problem:
        yield entry("override", f"NOT in force: {override.problem}", style=BAD)
        return
    what = "no fault sets a taint" if override.healthy else "no run starts, and nothing is written"
    yield entry(
        "override",
        f"{override.kind} by {override.by} until {override.until}: {override.reason} ({what})",
        style=WORTH_A_LOOK,
    )


def _carried(explanation: Explanation) -> Iterator[str]:
    standing = explanation.standing
    yield ""
    if standing.mode == "Observe":
        would = ", ".join(explanation.would_carry) or "no taint"
        yield entry("carries", f"nothing: the policy is in mode Observe. In mode Enforce: {would}")
    else:
        for taint in standing.taints or ["no taint of nodegauge's"]:
            yield entry("carries", taint, style=BAD if standing.taints else "")
        condition = explanation.condition or "none"
        yield entry("", f"condition {names.CONDITION}: {condition}")
        yield entry("", f"labels {_labels(standing.labels) or 'none'}")
        if explanation.supplies:
            yield entry("", explanation.supplies, style=WORTH_A_LOOK)
    for key in explanation.conflicts:
        yield entry("", f"label {key} belongs to somebody else, and is left alone", style=WORTH_A_LOOK)
    if explanation.refusal:
        yield entry("refused", explanation.refusal, style=BAD)


def _labels(labels: dict[str, str]) -> str:
    """Keys without our prefix; the time of validation is in the lines of what was read."""
    keys = [key for key in LABELS_FIRST if key in labels]
    keys += [key for key in sorted(labels) if key not in (*LABELS_FIRST, names.LABEL_VALIDATED_AT)]
    return ", ".join(dict.fromkeys(f"{key.removeprefix(names.PREFIX)}={labels[key]}" for key in keys))


def _fault(fault: Fault, *, now: float) -> Iterator[str]:
    word = "fault" if fault.severity.value == "fail" else "warning"
    yield entry(word, f"{fault.title} [{fault.code}]", style=_style(fault))
    state = "set" if fault.tainted else fault.no_taint or "not set"
    if fault.taint:
        yield entry("  taint", f"{fault.taint}: {state}")
    if fault.since:
        known = {"confirmed": fault.confirmed, "last seen": fault.last_seen}
        later = "".join(f"; {what} {at}" for what, at in known.items() if at not in ("", fault.since))
        yield entry("  since", f"{_at(fault.since, now)}{later}")
    if fault.scope:
        yield entry("  scope", fault.scope)
    for gpu in fault.gpus:
        yield entry("  gpu", _gpu(gpu))
    if not fault.gpus and fault.where:
        yield entry("  where", fault.where)
    if fault.measured:
        yield entry("  found", fault.measured)
    if fault.also:
        yield entry("  also", fault.also)
    if fault.lifts:
        yield entry("  lifts", fault.lifts)
    yield from _steps(fault.steps or [step for step in [fault.next_step] if step])


def _steps(steps: Sequence[str]) -> Iterator[str]:
    for number, step in enumerate(steps, 1):
        yield entry("  to do" if number == 1 else "", f"{number}. {step}")


def looking_at(node: str) -> tuple[str, ...]:
    """What to do about a node that nobody reads."""
    pods = f"kubectl get pods -A -l {names.POD_PROBE} --field-selector spec.nodeName={node}"
    return (
        f"`{pods}` shows its probe pods, `kubectl describe node {node}` whether it is Ready.",
        f"`kubectl nodegauge run {node}` asks for a reading now.",
    )


def _gpu(gpu: GpuIdentity) -> str:
    named = {"index": "" if gpu.index is None else str(gpu.index), "PCI": gpu.pci, "serial": gpu.serial}
    parts = [f"{name} {value}" for name, value in (named | {"UUID": gpu.uuid}).items() if value]
    return ", ".join(parts) or "not identified"


def _reading(reading: ReadBy, *, now: float) -> str:
    if not reading.read_at:
        return entry(reading.probe, f"not read: {reading.trouble.removeprefix('not readable ')}", style=FAINT)
    parts = [f"read {_at(reading.read_at, now)}: {reading.verdict}"]
    parts += [reading.coverage] if reading.coverage else []
    parts += [f"since then {reading.trouble}"] if reading.trouble else []
    return entry(reading.probe, "; ".join(parts))


def _at(stamp: str, now: float) -> str:
    from nodegauge_operator.api.times import unstamp

    at = unstamp(stamp)
    return f"{stamp} ({age(now - at)} ago)" if at else stamp


def _style(fault: Fault) -> str:
    return BAD if fault.tainted or fault.severity.value == "fail" else WORTH_A_LOOK
