"""`nodegauge pause`: no run starts and nothing is written to nodes of a policy, until somebody ends that.

The mode that it had stands in an annotation of the policy meanwhile, with the reason.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from nodegauge_cli import output
from nodegauge_cli.cluster import POLICIES, Changed, Cluster, NotThere, Object, context_option
from nodegauge_cli.completion import called, policy_names
from nodegauge_operator import names
from nodegauge_operator.api.policy import Mode

RESOURCE = f"{names.POLICY_PLURAL}.{names.GROUP}"
FOLLOWS = (
    "No run starts on its nodes, and nothing is written to them: labels and taints stay as they are, and age "
    "nothing. Runs that have begun end first. Watch containers go."
)
UNTIL_ENDED = "Nothing ends it by itself."
MAX_REASON = 300
"""Characters.  Chosen by this project: as of an override."""
TRIES = 10
"""Writes in a row that may come too late.  Chosen by this project: each takes a tenth of a second."""
COMMITTED = "it may set the mode back at its next sync. Commit policy.spec.mode: {mode} there"
OWNERS = (
    ("argocd.argoproj.io/tracking-id", f"Argo CD manages this policy: {COMMITTED}"),
    ("argocd.argoproj.io/instance", f"Argo CD manages this policy: {COMMITTED}"),
    ("kustomize.toolkit.fluxcd.io/name", f"Flux manages this policy: {COMMITTED}"),
    ("helm.toolkit.fluxcd.io/name", f"Flux manages this policy: {COMMITTED}"),
    (
        "meta.helm.sh/release-name",
        "Helm manages this policy: where its values set a mode, the next `helm upgrade` ends in a conflict, "
        "or sets it back. To do it there: `helm upgrade {release} charts/nodegauge --reuse-values --set "
        "policy.spec.mode={mode}`",
    ),
)
"""Label or annotation by which somebody says that he manages the policy, and what follows; the first counts.
Sources: Argo CD, Resource Tracking; Flux, Kustomization and HelmRelease; docs/install/upgrade.md."""


@click.command()
@click.argument("policy", required=False, shell_complete=policy_names)
@click.option("--reason", help="Why, for whoever finds the policy paused.")
@click.option("--end", is_flag=True, help="Set the mode that the policy had.")
@click.option(
    "--mode",
    type=click.Choice([Mode.ENFORCE.value, Mode.OBSERVE.value]),
    help="With --end: the mode to set where nothing notes the earlier one.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@context_option
def pause(
    policy: str | None, reason: str | None, end: bool, mode: str | None, yes: bool, context: str
) -> None:
    """Pause a policy: no run starts on its nodes, and nothing is written to them.

    POLICY may be left out where the cluster has only one. For one node, see `override NODE leave-alone`.
    """
    if mode and not end:
        raise click.UsageError("--mode goes with --end alone")
    if end and reason:
        raise click.UsageError("--reason goes without --end")
    if not end and not (reason or "").strip():
        raise click.UsageError("--reason is missing: whoever finds the policy paused has to know why")
    if len(reason or "") > MAX_REASON:
        raise click.BadParameter(
            f"{len(reason or '')} characters; at most {MAX_REASON}", param_hint="--reason"
        )
    cluster = Cluster(context=context)
    with output.quiet_pipe():
        body = _policy(cluster, policy)
        click.echo(
            _end(cluster, body, mode, yes=yes) if end else _begin(cluster, body, reason or "", yes=yes)
        )


def _policy(cluster: Cluster, name: str | None) -> Object:
    """The policy of this name, or the only one there is."""
    if name:
        if (body := cluster.find(POLICIES, name)) is None:
            raise NotThere(f"no policy {name}: `kubectl get {names.POLICY_PLURAL}` lists them")
        return body
    bodies = list(cluster.each(POLICIES))
    if len(bodies) != 1:
        known = ", ".join(sorted(body["metadata"]["name"] for body in bodies))
        raise click.UsageError(f"name one POLICY of: {known}" if known else "the cluster has no policy")
    return bodies[0]


def _begin(cluster: Cluster, body: Object, reason: str, *, yes: bool) -> str:
    name, before = body["metadata"]["name"], _mode(body)
    if before == Mode.PAUSED:
        return f"{name} is paused already{_noted(body)}."
    _confirm(f"Pause policy {name} (mode {before}, {_nodes(body)})?", yes=yes)
    note = {names.PAUSED_FROM: before, names.PAUSE_REASON: reason.strip()}
    _patch(cluster, body, note, Mode.PAUSED.value)
    lines = [
        f"Policy {name} is paused: {_nodes(body)}. Its mode was {before}.",
        FOLLOWS,
        *_may_revert(body, Mode.PAUSED.value),
        UNTIL_ENDED,
    ]
    return "\n".join([*map(output.paragraph, lines), f"To end it: {called()} pause {name} --end"])


def _end(cluster: Cluster, body: Object, mode: str | None, *, yes: bool) -> str:
    name, annotations = body["metadata"]["name"], body["metadata"].get("annotations") or {}
    now = _mode(body)
    if now != Mode.PAUSED:
        return f"{name} is not paused: its mode is {now}."
    before = mode or annotations.get(names.PAUSED_FROM, "")
    if before not in (Mode.ENFORCE, Mode.OBSERVE):
        raise click.UsageError(
            f"nothing notes the mode that {name} had before: pass --mode Enforce or --mode Observe"
        )
    _confirm(f"Set policy {name} to mode {before} ({_nodes(body)})?", yes=yes)
    _patch(cluster, body, {names.PAUSED_FROM: None, names.PAUSE_REASON: None}, before)
    lines = [
        f"Policy {name} has mode {before} again: {_nodes(body)}. Runs that are due start, within the budget.",
        *_may_revert(body, before),
    ]
    return "\n".join(map(output.paragraph, lines))


def _patch(cluster: Cluster, body: Object, annotations: dict[str, Any], mode: str) -> None:
    """With the resourceVersion, so that no mode is lost that somebody sets at this moment.

    The operator writes the policy's status as often as a node changes: only another mode is a reason to stop.
    Raises `Changed`.
    """
    name, decided_on = body["metadata"]["name"], _mode(body)
    for tries_left in reversed(range(TRIES)):
        metadata = {"resourceVersion": body["metadata"]["resourceVersion"], "annotations": annotations}
        try:
            cluster.patch(RESOURCE, name, {"metadata": metadata, "spec": {"mode": mode}})
        except Changed:
            body = _policy(cluster, name)
            if _mode(body) != decided_on or not tries_left:
                raise
        else:
            return


def _mode(body: Object) -> str:
    mode: str = body["spec"].get("mode") or Mode.ENFORCE.value
    return mode


def _confirm(question: str, *, yes: bool) -> None:
    """Asks on a terminal; a script has decided already."""
    if not yes and sys.stdin.isatty():
        click.confirm(question, abort=True)


def _noted(body: Object) -> str:
    annotations = body["metadata"].get("annotations") or {}
    reason, before = annotations.get(names.PAUSE_REASON), annotations.get(names.PAUSED_FROM)
    return (f" ({reason})" if reason else "") + (f"; its mode was {before}" if before else "")


def _nodes(body: Object) -> str:
    selected = ((body.get("status") or {}).get("nodes") or {}).get("selected")
    return "nodes not counted yet" if selected is None else f"{selected} node{'s' * (selected != 1)}"


def _may_revert(body: Object, mode: str) -> list[str]:
    """Who may set the mode back, by the marks on the policy, and how to set it there."""
    marks = {**(body["metadata"].get("annotations") or {}), **(body["metadata"].get("labels") or {})}
    release = marks.get("meta.helm.sh/release-name", "")
    return [f"{way.format(mode=mode, release=release)}." for key, way in OWNERS if key in marks][:1]
