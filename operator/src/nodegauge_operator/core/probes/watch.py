"""Mode Watch: a resident container on every node of a policy, from a DaemonSet that the operator keeps.

The container reads what the health probe reads, whenever something has changed or a reading is due, and
writes it into the node's NodeReading (ADR 0035).  Where it brings nothing for too long, a health pod reads
the node instead, and its run says what is wrong there.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.policy import Mode, Policy, seconds
from nodegauge_operator.api.probe_settings import HealthMode
from nodegauge_operator.api.report import Run
from nodegauge_operator.api.selector import Selector
from nodegauge_operator.api.times import NEVER, stamp
from nodegauge_operator.core import pod_outcome
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.driver_access import DriverAccess, Needs, with_access
from nodegauge_operator.core.model import ProbeDefaults
from nodegauge_operator.core.probes import feed
from nodegauge_operator.core.probes.kind import EndedRun
from nodegauge_operator.core.probes.pod import (
    TOKEN_MOUNT,
    TOKEN_VARIABLE,
    pod_labels,
    probe_container,
    skeleton,
    token_volume,
    with_kernel_log,
)

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
ASKED_EVERY, ALIVE_SECONDS = 30, 60
"""Seconds between two questions of the kubelet, and for how long the container may not have gone on.
Chosen by this project: a question starts a Python for 20 ms."""
MOST_THROTTLED = 60.0
"""Seconds of slowdown that the container looks for: it counts them within a minute."""
ROLLED_AT_ONCE = "10%"
"""Pods that a roll-out replaces at a time: the others go on watching."""


def reading(context: Context) -> EndedRun | None:
    """What the node's watch container wrote last, as a run of the health probe; None if that was judged, or
    is not to be: of another pod, of an earlier boot, or older than an interval."""
    part, before = context.unjudged_part(names.PROBE_HEALTH), context.status.probe[names.PROBE_HEALTH]
    if part is None or part.pod_uid not in context.watchers:
        return None
    if context.rebooted_since(before) and part.boot_id == before.boot_id != "":
        return None
    if context.now - part.known_at(context.now) > context.interval_of(before.name):
        return None
    end = pod_outcome.checked(
        part, run=part.pod_uid, probe=names.PROBE_HEALTH, node=context.node.name, now=context.now
    )
    run = Run(
        number=before.next_number,
        pod_uid=part.pod_uid,
        pod_name=context.watchers[part.pod_uid],
        started_at=stamp(part.known_at(context.now)),
    )
    # A health pod that was made before brings nothing that this reading does not: it and its request end.
    pods = (pod for pod in context.pods if pod.probe == before.name and context.is_next_run(pod))
    answered = next((pod.request for pod in pods if pod.created_at <= part.arrived), "")
    own = {"request": answered or before.request, "image": image(context.policy, context.defaults)}
    return EndedRun(run=run, end=end, reading=part.identity, **own)


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


def reaches(policy: Policy, access: DriverAccess) -> bool:
    """Whether a DaemonSet can keep a container on such nodes of the policy: it finds those with DRA alone by
    a label, which mode Observe does not set."""
    return policy.watches and not (access is DriverAccess.DRA and policy.spec.mode is Mode.OBSERVE)


def image(policy: Policy, defaults: ProbeDefaults) -> str:
    """The probe image, as the policy or the installation names it."""
    return policy.spec.pod_template.image or defaults.image


def daemon_set(
    policy: Policy,
    defaults: ProbeDefaults,
    *,
    trusted: str = "",
    access: DriverAccess = DriverAccess.RUNTIME,
) -> dict[str, Any]:
    """The DaemonSet that keeps a watch container on each node of the policy; `trusted`: the admission policy
    under which its readings count; `access`: how its pods reach the driver, and so the nodes that it is for.

    It leaves nodes where the GPU Operator changes the driver or the MIG layout: an open NVML client would be
    in its way.
    """
    by_claim = access is DriverAccess.DRA
    name = names.watch_set_name(instance=defaults.instance, policy=policy.name, by_claim=by_claim)
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
    annotations |= {names.WATCH_JUDGED_BY: _judged_by(policy), names.POD_TRUST: trusted}
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
                "spec": _pod_spec(policy, defaults, access),
            },
        },
    }


def _pod_spec(policy: Policy, defaults: ProbeDefaults, access: DriverAccess) -> dict[str, Any]:
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
            TOKEN_VARIABLE,
        ],
        "resources": {
            kind: own | defaults.resources.get(kind, {}) | template.resources.get(kind, {})
            for kind, own in (("requests", REQUESTS), ("limits", LIMITS))
        },
        "volumeMounts": [{"name": "state", "mountPath": STATE_FOLDER}, TOKEN_MOUNT],
        "livenessProbe": _asked("alive", failures=4),
        "readinessProbe": _asked("ready", failures=1),
    }
    required = {"nodeSelectorTerms": _terms(policy.spec.node_selector, defaults.nodes, access)}
    spec = skeleton(policy, defaults) | {
        "restartPolicy": "Always",
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "containers": [body],
        "volumes": [
            {"name": "state", "emptyDir": {"medium": "Memory", "sizeLimit": STATE_BYTES}},
            token_volume(),
        ],
    }
    spec = feed.with_windows(policy, with_kernel_log(policy, spec))
    return with_access(spec, access, defaults, needs=Needs.DRIVER)


def _asked(file: str, *, failures: int) -> dict[str, Any]:
    """What the kubelet asks of the container: the age of a file that it touches."""
    command = ["python", "-m", "nodegauge_probes.alive", STATE_FOLDER, f"{ALIVE_SECONDS}", file]
    return {
        "exec": {"command": command},
        "periodSeconds": ASKED_EVERY,
        "timeoutSeconds": 10,
        "failureThreshold": failures,
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


def _terms(selector: Selector, watched: list[dict[str, Any]], access: DriverAccess) -> list[dict[str, Any]]:
    """The policy's selector as node affinity, among the watched nodes and where no driver is under change.

    Terms are alternatives: no label of an upgrade, or one that is done or has not begun.  Nodes with DRA
    alone carry our label, and perhaps no label of GPU feature discovery (`NodeView.selected_by`).
    """
    by_claim = access is DriverAccess.DRA
    labels = dict(selector.match_labels)
    if by_claim and labels.get(names.GPU_PRESENT) == "true":
        del labels[names.GPU_PRESENT]
    own = [{"key": k, "operator": "In", "values": [v]} for k, v in sorted(labels.items())]
    for wanted in selector.match_expressions:
        if by_claim and wanted.key == names.GPU_PRESENT:
            continue
        expression = {"key": wanted.key, "operator": wanted.operator.value}
        own.append(expression | ({"values": list(wanted.values)} if wanted.values else {}))
    busy: dict[str, tuple[str, ...]] = {names.MIG_CONFIG_STATE: names.MIG_CONFIG_UNDER_WAY}
    busy |= dict.fromkeys(names.GPU_DEPLOY, names.GPU_PAUSED)
    busy |= {key: (value,) for key, value in names.OTHER_SYSTEMS}
    own += [{"key": key, "operator": "NotIn", "values": list(values)} for key, values in busy.items()]
    operator = "In" if by_claim else "NotIn"
    own.append({"key": names.LABEL_DRIVER_ACCESS, "operator": operator, "values": [names.BY_CLAIM]})
    own += watched
    no_upgrade = {"key": names.GPU_UPGRADE_STATE, "operator": "DoesNotExist"}
    still = [names.GPU_UPGRADE_DONE, names.GPU_UPGRADE_AHEAD]
    driver_is_still = {"key": names.GPU_UPGRADE_STATE, "operator": "In", "values": still}
    return [{"matchExpressions": [*own, state]} for state in (no_upgrade, driver_is_still)]
