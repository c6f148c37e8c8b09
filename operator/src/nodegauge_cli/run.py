"""`nodegauge run NODE`: ask for runs, say what they wait for, and print what they found.

A request is a new time in the node's report (`Report.request_of`); the operator answers it when it can.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import click

from nodegauge_cli import output, waits
from nodegauge_cli.cluster import POLICIES, REPORTS, Cluster, NoCluster, NotThere, Object, context_option
from nodegauge_cli.completion import called, node_names
from nodegauge_cli.inputs import duration
from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.policy import Policy, PolicyInvalid, parse
from nodegauge_operator.api.report import Outcome, ProbeStatus, Report, parse_report
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.faults import faults, sentence
from nodegauge_operator.core.model import PodView, pod_view
from nodegauge_operator.core.override import applied
from nodegauge_operator.core.probes.registry import KINDS

PROBES = tuple(name for name, kind in KINDS.items() if kind.reads)
RESOURCE = f"{names.REPORT_PLURAL}.{names.GROUP}"
POLL_SECONDS = 2.0
GOOD, BAD = 0, 1


@click.command()
@click.argument("node", shell_complete=node_names)
@click.option(
    "--probe",
    "probes",
    multiple=True,
    type=click.Choice(PROBES),
    help="The probe to run; may be repeated (default: every probe that the policy has on).",
)
@click.option(
    "--timeout", callback=duration, default="15m", show_default=True, help="How long to wait for the result."
)
@click.option("--no-wait", is_flag=True, help="Only ask.")
@context_option
@click.pass_context
def run(
    ctx: click.Context, node: str, probes: tuple[str, ...], timeout: float, no_wait: bool, context: str
) -> None:
    """Measure a node now, and wait for the result.

    Exit code 0: what was asked for was measured, and passes or warns. 1: it fails, or was not measured within
    --timeout; the request stands then. 2: the command line is wrong.
    """
    cluster = Cluster(context=context)
    with output.quiet_pipe():
        report = _report(cluster, node)
        policy = _policy(cluster, report)
        asked = tuple(dict.fromkeys(probes)) or waits.able(report.status, policy, PROBES)
        if problem := waits.refusal(report.status, policy, asked):
            raise NoCluster(f"{node}: {problem}")
        mark = _ask(cluster, report, asked if probes else ())
        click.echo(f"Asked for {', '.join(asked)} on {node}.", err=True)
        if no_wait:
            click.echo(f"See `{called()} explain {node}` for the result.", err=True)
            return
        try:
            code = _wait_and_tell(cluster, node, asked, mark, timeout)
        except KeyboardInterrupt:
            click.echo("The request stands: the node is measured all the same.", err=True)
            raise
    ctx.exit(code)


def _report(cluster: Cluster, node: str) -> Report:
    body = cluster.find(REPORTS, node)
    if body is None:
        raise NotThere(
            f"{node} has no NodeReport: there is no such node, no policy selects it, or it is new. Compare "
            f"`kubectl get node {node} --show-labels` with spec.nodeSelector of the policies."
        )
    return parse_report(body)


def _policy(cluster: Cluster, report: Report) -> Policy | None:
    """The policy in force on the node, with its override; None if it cannot be read."""
    body = cluster.find(POLICIES, report.status.policy) if report.status.policy else None
    try:
        return applied(parse(body), report.status.override) if body is not None else None
    except PolicyInvalid:
        return None


def _ask(cluster: Cluster, report: Report, probes: Sequence[str]) -> str:
    """Write a new time, for these probes or for all; the time."""
    now = time.time()
    mark = f"{stamp(now)[:-1]}.{int(now * 1000) % 1000:03d}Z"
    spec: Object = {"requestedAt": mark}
    if probes:
        # an NCCL run that lacks its image waits for the pull, which a request repeats at once
        of_image = (names.PROBE_PULL,) if names.PROBE_NCCL in probes else ()
        spec = {"requestedProbes": dict.fromkeys((*probes, *of_image), mark)}
    answer = cluster.patch(RESOURCE, report.name, {"spec": spec})
    kept = answer.get("spec") or {}
    if any(kept.get(key) is None for key in spec):
        raise NoCluster(
            "the CRD of this cluster is older and has no requests for single probes: upgrade it "
            "(docs/install/upgrade.md), or leave --probe out to run all of them"
        )
    return mark


def _wait_and_tell(cluster: Cluster, node: str, asked: Sequence[str], mark: str, timeout: float) -> int:
    """Wait for every answer, saying what is waited for when that changes; the exit code."""
    began, shown, missing = time.monotonic(), "", list(asked)
    while (passed := time.monotonic() - began) < timeout and missing:
        try:
            missing, text = _looked(cluster, node, asked, mark)
        except NotThere:
            raise
        except NoCluster as error:  # an API server restarts; the request stands
            text = f"no answer: {error.message.splitlines()[0]}"
        if missing and text != shown:
            click.echo(f"{output.age(passed):>4}  {text}", err=True)
            shown = text
        if missing:
            time.sleep(min(POLL_SECONDS, timeout - passed))
    answered = [probe for probe in asked if probe not in missing]
    code = _tell(cluster, _report(cluster, node), answered) if answered else GOOD
    if not missing:
        return code
    click.echo(
        f"Not measured within the time: {', '.join(missing)} ({shown or 'no answer'}). The request stands: "
        f"`{called()} explain {node}` shows the result later.",
        err=True,
    )
    return BAD


def _looked(cluster: Cluster, node: str, asked: Sequence[str], mark: str) -> tuple[list[str], str]:
    """The probes that have not answered yet, and what the first of them waits for."""
    report = _report(cluster, node)
    missing = [probe for probe in asked if mark not in report.status.probe[probe].request]
    if not missing:
        return [], ""
    policy, pods = _policy(cluster, report), _pods(cluster, report)
    return missing, waits.sentence(report.status, policy, missing, pods, _ready(cluster, node))


def _pods(cluster: Cluster, report: Report) -> list[PodView] | None:
    """Probe pods of the node; None where the user may not list them."""
    namespace = report.installation.partition("/")[0]
    if not namespace:
        return None
    try:
        bodies = list(cluster.each(f"/api/v1/namespaces/{namespace}/pods", labelSelector=names.POD_PROBE))
    except NoCluster:
        return None
    views = (pod_view(body) for body in bodies)
    return [view for view in views if view is not None and view.node == report.name]


def _ready(cluster: Cluster, node: str) -> bool:
    """Whether the node may be measured at all; True where the user may not read nodes."""
    from nodegauge_cli.cluster import NODES
    from nodegauge_operator.core.model import node_view

    try:
        body = cluster.find(NODES, node)
    except NoCluster:
        return True
    return body is not None and node_view(body).may_run


def _tell(cluster: Cluster, report: Report, asked: Sequence[str]) -> int:
    """What the runs found, as `explain` has it in brief; the exit code."""
    policy, codes = _policy(cluster, report), []
    known = faults(report.status, policy=policy, node=report.name) if policy is not None else []
    for name in asked:
        probe = report.status.probe[name]
        codes.append(_shown(probe, [fault for fault in known if fault.probe == name], click.echo))
    verdict = report.status.verdict.value
    taints = ", ".join(f"{t.key}={t.value}:{t.effect}" for t in report.status.desired.taints)
    style = output.verdict(verdict).style
    click.echo(output.entry("node", f"{report.name}: {verdict}; {taints or 'no taint'}", style=style))
    if any(codes):
        click.echo(f"All of it: {called()} explain {report.name}")
    return max(codes, default=GOOD)


def _shown(probe: ProbeStatus, known: Sequence[Fault], echo: Callable[[str], None]) -> int:
    last = probe.last_run
    if last is None or last.outcome is not Outcome.READ:
        why = f"{last.reason}: {last.message}" if last else "no run"
        stands = f" The reading of {probe.read_at} stands." if probe.read_at else ""
        echo(output.entry(probe.name, f"not measured: {why.rstrip('.')}.{stands}", style=output.UNKNOWN))
        return BAD
    style = output.verdict(probe.verdict.value).style
    echo(output.entry(probe.name, f"{probe.verdict.value}: {probe.summary}", style=style))
    for fault in known:
        healing = probe.verdict is Verdict.PASS and fault.lifts
        text = f"what lifts it: {fault.lifts}" if healing else sentence(fault, 400)
        echo(output.entry("", f"{fault.title} [{fault.code}]: {text}"))
    return GOOD if probe.verdict in ("pass", "warn") else BAD
