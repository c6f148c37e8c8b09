"""Mode Watch: a resident container on every node of a policy, from a DaemonSet that the operator keeps.

The container reads what the health probe reads, and ends when something has changed or a reading is due.  Its
last message is a health result like any other (ADR 0036).  Where the container brings nothing for too long, a
health pod reads the node instead, and its run says what is wrong there.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from nodegauge_contract import ContractError, ProblemKind, Result, decode
from nodegauge_judge import History
from nodegauge_judge.history.xids import has_news, is_known, overtaking
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy, seconds
from nodegauge_operator.api.probe_settings import HealthMode
from nodegauge_operator.api.report import NEVER, Outcome, ProbeStatus, ReportStatus, Run, stamp, unstamp
from nodegauge_operator.api.selector import Selector
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.model import ProbeDefaults, Terminated
from nodegauge_operator.core.pod_outcome import OF_THE_PROBE, RunEnd
from nodegauge_operator.core.probes.kind import EndedRun, finished_at
from nodegauge_operator.core.probes.pod import of_next_run, pod_labels, probe_container, skeleton
from nodegauge_operator.core.watch_pod import WatchView

STATE_FOLDER, STATE_FILE = "/run/nodegauge", "watch.json"
STATE_BYTES = "1Mi"
REQUESTS = {"cpu": "10m", "memory": "40Mi"}
LIMITS = {"cpu": "1", "memory": "256Mi"}
WINDOW = "1s"
"""Sampling of one reading.  Chosen by this project: the container has looked every second before it.  While a
GPU is slowed down it samples as long as a health pod: some rules need that (`bitFailSeconds`)."""
LIKELY_CHANGES = {
    "temperature": "throttling_likely",
    "temperature-fail": "hot_fail",
    "memory-temperature": "memory_hot_warn",
    "memory-temperature-fail": "memory_hot_fail",
    "margin": "hot_margin",
    "hysteresis": "hot_leave_margin",
    "sw-thermal-seconds": "sw_thermal_warn_seconds",
    "hw-thermal-seconds": "hw_thermal_warn_seconds",
    "power-brake-seconds": "power_brake_warn_seconds",
    "throttle-share": "window_warn_share",
}
"""Option of the container to the threshold of the policy beyond which a change is worth a report."""
MOST_THROTTLED = 60.0
"""Seconds of slowdown that the container looks for: it counts them within a minute."""
ROLLED_AT_ONCE = "10%"
"""Pods that a roll-out replaces at a time: the others go on watching."""


def unjudged(context: Context) -> WatchView | None:
    """The node's watch pod, if how its container ended last may be news.

    It is none if the report holds it, or it ended on an earlier node of this name or longer ago than an
    interval, or brought no result: then the kubelet starts it again.  A health pod that runs on the node
    comes first, and will bring the same.
    """
    seen, before = context.watch, context.status.probe(names.PROBE_HEALTH)
    if seen is None or seen.ended is None or not context.policy.watches or not seen.ended.message:
        return None
    if holds(context.status, seen, now=context.now):
        return None
    known_at = seen.known_at(context.now)
    if known_at <= context.node.created_at and seen.created_at < context.node.created_at:
        return None
    if seen.ended.reason not in OF_THE_PROBE or context.now - known_at > context.interval_of(before.name):
        return None
    pods = (pod for pod in context.pods if pod.probe == before.name and pod.started_at and not pod.gone)
    if any(of_next_run(pod, context) for pod in pods):
        return None
    return seen


def holds(status: ReportStatus, seen: WatchView, *, now: float) -> bool:
    """Whether this end of the container was judged, or another pod read the node after it was known."""
    before = status.probe(names.PROBE_HEALTH)
    if before.last_run is None or _follows(seen, before):
        return False
    return before.last_run.pod_uid == seen.identity or seen.learned_at(now) < unstamp(before.read_at)


def reading(context: Context) -> EndedRun | None:
    """How the node's watch container ended last, as a run of the health probe, if that is news
    (`unjudged`): not if it is of an earlier boot, was judged in it, or was only asked to end, nor if it could
    not read the node before another run could not.  One that is older than the last reading, and of which the
    kubelet told later, is left to the next run (`left_xids`)."""
    seen, before = unjudged(context), context.status.probe(names.PROBE_HEALTH)
    if seen is None or seen.ended is None:
        return None
    ended_at = seen.ended_at(context.now)
    end = _ending(seen, seen.ended, node=context.node.name, at=ended_at)
    if end is None:
        return None
    history = History.decode(before.history) or History()
    if context.rebooted_since(before) and _boot(end) in {"", history.boot} - {context.node.boot_id}:
        return None
    if not _follows(seen, before):
        in_order = seen.arrived or seen.ended.finished_at <= context.now  # a list, by a clock that is ahead
        after = in_order and seen.known_at(context.now) > finished_at(before)
        if before.last_run and not after and not (end.result and end.result.gpus):
            return None
        if _is_older(seen, before, now=context.now) or (end.result and is_known(end.result, history)):
            return None
    return EndedRun(
        run=Run(
            number=context.status.next_number(before.name),
            pod_name=seen.name,
            pod_uid=seen.identity,
            started_at=stamp(ended_at),
        ),
        end=end,
        request=before.request,
        image=image(context.policy, context.defaults),
    )


def left_xids(context: Context) -> bool:
    """Whether the container reported new Xids before the last reading, and the kubelet told of it after that.

    All else that it says is older than what is known: a health pod reads the node (`with_xids`)."""
    seen, before = unjudged(context), context.status.probe(names.PROBE_HEALTH)
    if seen is None or seen.ended is None or not _is_older(seen, before, now=context.now):
        return False
    end = _ending(seen, seen.ended, node=context.node.name, at=context.now)
    history = History.decode(before.history) or History()
    if end is None or end.result is None or _boot(end) != history.boot:
        return False
    return has_news(end.result, history)


def with_xids(context: Context, result: Result, *, run: Run, at: float) -> Result:
    """The result of a health pod that ended `at`, with the Xids of what the container reported before that:
    that report is left to the pod (`unjudged`), which hears no Xid that came before it began."""
    seen = context.watch
    if seen is None or seen.ended is None or run.pod_uid == seen.identity or not context.policy.watches:
        return result
    if seen.ended.reason not in OF_THE_PROBE or seen.known_at(context.now) >= at:
        return result
    end = _ending(seen, seen.ended, node=context.node.name, at=at) if seen.ended.message else None
    return overtaking(result, end.result) if end is not None and end.result is not None else result


def _follows(seen: WatchView, before: ProbeStatus) -> bool:
    """Whether the last run was an earlier end of the same pod."""
    return before.last_run is not None and seen.follows(before.last_run.pod_uid)


def _is_older(seen: WatchView, before: ProbeStatus, *, now: float) -> bool:
    """Whether the container ended before the last reading.  Times are whole seconds: what ended in the second
    of that reading may be news."""
    return not _follows(seen, before) and seen.known_at(now) < unstamp(before.read_at)


def _boot(end: RunEnd) -> str:
    """The boot that the result is of, in the words of its kernel."""
    boot = end.result.host.boot_id if end.result is not None else ""
    return boot if isinstance(boot, str) else ""


def expected_by(context: Context) -> float:
    """When a health pod brings a first reading of this boot, as the container has not, epoch seconds."""
    if not context.watch_since:
        return NEVER
    return max(context.watch_since, context.node.ready_since) + start_grace(context.policy)


LATE_SHARE = 0.1
"""Part of the interval by which a regular reading may be late: nodes are due at times of their own within a
twentieth of it (the probe's watch.schedule), and the kubelet may be waiting with a restart."""


def overdue_after(policy: Policy) -> float:
    """Seconds from one reading until a health pod brings the next, as the container has not."""
    return policy.interval_of(names.PROBE_HEALTH) * (1 + LATE_SHARE) + start_grace(policy)


def start_grace(policy: Policy) -> float:
    """Seconds that a reading may be late before a health pod brings it: a pod may take as long to start."""
    return seconds(policy.spec.limits.not_started)


def by_pods(policy: Policy) -> Policy:
    """The same policy in mode Periodic, where there can be no DaemonSet."""
    spec, probes = policy.spec, policy.spec.probes
    probes = replace(probes, health=replace(probes.health, mode=HealthMode.PERIODIC))
    return replace(policy, spec=replace(spec, probes=probes))


def image(policy: Policy, defaults: ProbeDefaults) -> str:
    """The probe image, as the policy or the installation names it."""
    return policy.spec.pod_template.image or defaults.image


def _ending(seen: WatchView, ended: Terminated, *, node: str, at: float) -> RunEnd | None:
    """None if the container was only asked to end."""
    try:
        result = decode(ended.message)
    except ContractError as error:
        message = f"{error} (exit code {ended.exit_code})"[:400]
        return RunEnd(outcome=Outcome.UNKNOWN, reason="ResultUnreadable", message=message, finished_at=at)
    if (result.run, result.node, result.probe) != (seen.uid, node, names.PROBE_HEALTH):
        received = f"probe {result.probe[:40]!r} run {result.run[:40]!r} node {result.node[:80]!r}"
        message = f"the result is of {received}; expected a health reading of pod {seen.uid} on {node!r}"
        return RunEnd(outcome=Outcome.UNKNOWN, reason="WrongRun", message=message, finished_at=at)
    if result.problem is not None and result.problem.kind == ProblemKind.TERMINATED:
        return None
    return RunEnd(outcome=Outcome.READ, reason="Read", result=result, finished_at=at)


def daemon_set(policy: Policy, defaults: ProbeDefaults) -> dict[str, Any]:
    """The DaemonSet that keeps a watch container on each node of the policy.

    It leaves nodes where the GPU Operator changes the driver or the MIG layout: an open NVML client would be
    in its way.
    """
    name = names.watch_set_name(instance=defaults.instance, policy=policy.name)
    marks = {
        "app.kubernetes.io/name": "nodegauge-probe",
        "app.kubernetes.io/instance": defaults.instance,
        names.WATCH_SET: name,
    }
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.POLICY_KIND,
        "name": policy.name,
        "uid": policy.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    labels, annotations = pod_labels(policy, defaults, probe=names.PROBE_WATCH)
    annotations[names.WATCH_JUDGED_BY] = _judged_by(policy)
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": name,
            "namespace": defaults.namespace,
            "labels": labels | marks,
            "ownerReferences": [owner],
        },
        "spec": {
            "selector": {"matchLabels": marks},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": ROLLED_AT_ONCE}},
            "template": {
                "metadata": {"labels": labels | marks, "annotations": annotations},
                "spec": _pod_spec(policy, defaults),
            },
        },
    }


def _pod_spec(policy: Policy, defaults: ProbeDefaults) -> dict[str, Any]:
    template, health = policy.spec.pod_template, policy.spec.probes.health
    body = probe_container(policy, defaults)
    body |= {
        "image": image(policy, defaults),
        "command": ["python", "-m", "nodegauge_probes", names.PROBE_WATCH],
        "args": [
            f"--interval={policy.interval_of(names.PROBE_HEALTH):g}",
            f"--window={min(seconds(WINDOW), seconds(health.window)):g}",
            f"--slowed-window={seconds(health.window):g}",
            f"--deadline={seconds(health.deadline):g}",
            f"--state={STATE_FOLDER}/{STATE_FILE}",
            *_thresholds(policy),
        ],
        "env": [
            {"name": "NODEGAUGE_RUN", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            {"name": "NODEGAUGE_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
        ],
        "resources": {
            kind: own | defaults.resources.get(kind, {}) | template.resources.get(kind, {})
            for kind, own in (("requests", REQUESTS), ("limits", LIMITS))
        },
        "volumeMounts": [{"name": "state", "mountPath": STATE_FOLDER}],
    }
    required = {"nodeSelectorTerms": _terms(policy.spec.node_selector, defaults.nodes)}
    return skeleton(policy, defaults) | {
        "restartPolicy": "Always",
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "containers": [body],
        "volumes": [{"name": "state", "emptyDir": {"medium": "Memory", "sizeLimit": STATE_BYTES}}],
    }


def _judged_by(policy: Policy) -> str:
    """Changes with everything in the policy by which a reading is judged: a calm node would be judged by it
    with its next regular reading."""
    spec = policy.spec
    judges = (spec.thresholds, spec.expected_gpus, spec.power_inventory, spec.xids)
    return names.digest(msgspec.json.encode(judges, order="deterministic").decode())


def _thresholds(policy: Policy) -> list[str]:
    """What the policy's thresholds make of the container's options."""
    values = {option: getattr(policy.spec.thresholds, name) for option, name in LIKELY_CHANGES.items()}
    return [
        f"--{option}={min(value, MOST_THROTTLED) if option.endswith('-seconds') else value:g}"
        for option, value in values.items()
    ]


def _terms(selector: Selector, watched: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The policy's selector as node affinity, among the watched nodes and where no driver is under change.

    Terms are alternatives: no label of an upgrade, or one that is done or has not begun.
    """
    own = [{"key": k, "operator": "In", "values": [v]} for k, v in sorted(selector.match_labels.items())]
    for wanted in selector.match_expressions:
        one = {"key": wanted.key, "operator": wanted.operator.value}
        own.append(one | ({"values": list(wanted.values)} if wanted.values else {}))
    busy = {names.MIG_CONFIG_STATE: names.MIG_CONFIG_UNDER_WAY}
    busy |= dict.fromkeys(names.GPU_DEPLOY, names.GPU_PAUSED)
    own += [{"key": key, "operator": "NotIn", "values": list(values)} for key, values in busy.items()]
    own += watched
    no_upgrade = {"key": names.GPU_UPGRADE_STATE, "operator": "DoesNotExist"}
    still = [names.GPU_UPGRADE_DONE, names.GPU_UPGRADE_AHEAD]
    driver_is_still = {"key": names.GPU_UPGRADE_STATE, "operator": "In", "values": still}
    return [{"matchExpressions": [*own, state]} for state in (no_upgrade, driver_is_still)]
