"""GPUValidationPolicy: what to measure on which nodes, how often, how strict.

Field names are those of the CRD in camelCase; every default here equals the CRD's (a test compares).
`parse` returns the policy, or raises `PolicyInvalid` with the path of the field that cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from nodegauge_judge import Cause, Severity, Thresholds, XidRule
from nodegauge_judge.nccl.expectations import Expectation
from nodegauge_judge.power_inventory import PowerInventory
from nodegauge_operator import names
from nodegauge_operator.api.probe_settings import DURATION, Duration, HealthMode, Probes
from nodegauge_operator.api.selector import Selector, key_problem

_DURATION_PART = re.compile(r"([0-9]+)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

ExpectedGpus = Annotated[int, Meta(ge=0, le=64)]
CountOrPercent = Annotated[int, Meta(ge=0, le=100_000)] | Annotated[str, Meta(pattern=r"^(100|[0-9]{1,2})%$")]

IMAGE = r"^(localhost|[^/]*[.:][^/]*)/"
"""Begins with a registry's host, as container runtimes tell one from the first part of a name."""


def names_registry(image: str) -> bool:
    """Whether the reference begins with its registry.  A node would pull any other from its default registry,
    whoever published something there under that name."""
    return re.match(IMAGE, image) is not None


@lru_cache(maxsize=1024)
def seconds(duration: str) -> float:
    """Seconds in a Go-style duration such as `15m` or `1h30m`; `ValueError` names a text that is none."""
    if not re.fullmatch(DURATION, duration):
        raise ValueError(f"{duration!r} is not a duration: write 30s, 15m or 1h30m")
    return sum(int(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(duration))


class Mode(StrEnum):
    """`Observe` writes reports, events and metrics, nothing on nodes; `Enforce` labels and conditions too;
    `Paused` starts no run, and leaves the nodes as they are."""

    OBSERVE = "Observe"
    ENFORCE = "Enforce"
    PAUSED = "Paused"


class XidSeverity(StrEnum):
    """How bad a finding of a rule about Xids is; `None`: its codes raise none."""

    FAIL = "Fail"
    WARN = "Warn"
    NONE = "None"


class XidRuleSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """From `count` of these codes on, together, within `window` on one GPU.  Not judged by the catalogue."""

    codes: Annotated[tuple[Annotated[int, Meta(ge=1, le=65_535)], ...], Meta(min_length=1, max_length=32)]
    severity: XidSeverity
    count: Annotated[int, Meta(ge=1, le=1000)] = 1
    window: Duration = "24h"

    def rule(self) -> XidRule:
        """As the judge takes it."""
        severity = None if self.severity is XidSeverity.NONE else Severity(self.severity.lower())
        return XidRule(codes=self.codes, severity=severity, count=self.count, window=seconds(self.window))


class Labels(Struct, frozen=True, rename="camel", kw_only=True):
    """`interconnectKey`: the short label key beside nodegauge.dev/interconnect; empty for none.

    `takeOver`: also overwrite a value under the short key that is not known to be ours.
    """

    interconnect_key: str = "interconnect"
    take_over: bool = False


class Effect(StrEnum):
    """What a taint does to pods that do not tolerate it; `None` for no taint at all."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"
    NONE = "None"


class Unvalidated(StrEnum):
    """The taint `nodegauge.dev/unvalidated`.  `Lift`: remove it at the first pass, whoever set it (kubelets
    may register with it).  `Set`: also put it on nodes that have no report yet."""

    LIFT = "Lift"
    SET = "Set"


class Until(StrEnum):
    """What ends `unvalidated`: the first health run that passes or warns, or the first such NCCL run (on
    nodes where none can be made, with one GPU or shared ones, a health run)."""

    HEALTH = "Health"
    NCCL = "Nccl"


class Taints(Struct, frozen=True, rename="camel", kw_only=True):
    """`effect` of every cause that `causes` does not name: cause (the taint's value) to effect.

    `unreadable` has the effect None unless `causes` names it: missing data changes nothing by default.
    """

    effect: Effect = Effect.NO_SCHEDULE
    causes: dict[Cause, Effect] = {}
    unvalidated: Unvalidated = Unvalidated.LIFT
    unvalidated_until: Until = Until.HEALTH

    def effect_of(self, cause: Cause) -> Effect:
        """The effect of one cause."""
        return self.causes.get(cause, Effect.NONE if cause is Cause.UNREADABLE else self.effect)


class Hysteresis(Struct, frozen=True, rename="camel", kw_only=True):
    """When gates are entered and left (promise 4, docs/promises.md).

    The numbers are chosen by this project: one bad run may be a passing event.

    `enterRuns`: bad runs in a row, for findings that need more than one (a lost GPU needs one).
    `unreadableRuns`: runs in a row that fail alike, for the cause `unreadable`.  `leaveRuns`: good runs in a
    row.  `dwell`: how long a gate stands at least.  `probationAfter`: dwell after which a gate
    that only loaded runs can lift is lifted on trial: the first entry of it, and one further for each relapse
    within `relapseWindow`; empty for never.  `probation`: how long the trial lasts at most.
    """

    enter_runs: Annotated[int, Meta(ge=1, le=20)] = 2
    unreadable_runs: Annotated[int, Meta(ge=2, le=20)] = 5
    leave_runs: Annotated[int, Meta(ge=1, le=20)] = 3
    dwell: Duration = "10m"
    probation_after: Annotated[tuple[Duration, ...], Meta(max_length=8)] = ("1h", "4h", "24h")
    probation: Duration = "24h"
    relapse_window: Duration = "168h"


class Budget(Struct, frozen=True, rename="camel", kw_only=True):
    """`concurrentProbes`: probe pods at a time: a count, or per cent of the policy's nodes (rounded down, at
    least 1), within the installation's limit; 0 pauses the policy.  `gatedNodes`: nodes that may carry a
    taint of ours for a fault at a time (`unvalidated` is not one): a count, or per cent (rounded down, at
    least 1); 0 for none.  `gatedNodesPerHour`: nodes that may newly take such a taint within any hour,
    counted in the same way.  Its default is chosen by this project (ADR 0030).
    `concurrentNcclProbes`: nodes that NCCL and load runs may hold or wait for at a time, counted like
    `concurrentProbes` and apart from it; 0 pauses them.
    """

    concurrent_probes: CountOrPercent = "10%"
    gated_nodes: CountOrPercent = "20%"
    gated_nodes_per_hour: CountOrPercent = "5%"
    concurrent_nccl_probes: CountOrPercent = "10%"


class Breaker(Struct, frozen=True, rename="camel", kw_only=True):
    """When faults of one cause are one incident, which holds their taints back (ADR 0030).

    The numbers are chosen by this project.  `nodes`: more than so many nodes with the cause are an incident
    wherever they are; `share`: so is a larger part of the policy's nodes, or of a group of them, of at least
    three.  `window`: the time within which the cause came up on them.  `groupLabels`: keys of node labels
    whose values make groups, beside those of the driver, the GPU's model and the probe's image.
    """

    nodes: Annotated[int, Meta(ge=3, le=100_000)] = 20
    share: Annotated[str, Meta(pattern=r"^(100|[0-9]{1,2})%$")] = "10%"
    window: Duration = "30m"
    group_labels: Annotated[tuple[str, ...], Meta(max_length=8)] = (
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/rack",
        "nvidia.com/gpu.clique",
    )


class Limits(Struct, frozen=True, rename="camel", kw_only=True):
    """When the operator ends a pod itself: not scheduled, not started, not gone after delete.

    `overtime`: how long after its deadline a running pod is waited for.  A kubelet that is alive ends it at
    the deadline; after this much more it is taken as silent.
    """

    not_scheduled: Duration = "1m"
    not_started: Duration = "5m"
    not_gone: Duration = "2m"
    overtime: Duration = "60s"


class PodTemplate(Struct, frozen=True, rename="camel", kw_only=True):
    """What probe pods carry beyond what nodegauge sets; empty values mean the operator's own defaults."""

    image: str = ""
    nccl_image: str = ""
    image_pull_policy: str = ""
    image_pull_secrets: list[dict[str, str]] = []
    runtime_class_name: str = ""
    priority_class_name: str = ""
    tolerations: list[dict[str, Any]] = []
    resources: dict[str, dict[str, str]] = {}
    nccl_resources: dict[str, dict[str, str]] = {}
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class PolicySpec(Struct, frozen=True, rename="camel", kw_only=True):
    """All of `spec`.  `expectedGpus`: GPUs that every node of the policy should have; 0 to work it out."""

    node_selector: Selector
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] = 0
    mode: Mode = Mode.ENFORCE
    probes: Probes = Probes()
    stale_after_intervals: Annotated[int, Meta(ge=2, le=100)] = 3
    expected_gpus: ExpectedGpus = 0
    thresholds: Thresholds = field(default_factory=Thresholds)
    expectations: Annotated[list[Expectation], Meta(max_length=64)] = []
    power_inventory: PowerInventory = PowerInventory()
    xids: Annotated[tuple[XidRuleSpec, ...], Meta(max_length=16)] = ()
    labels: Labels = Labels()
    taints: Taints = Taints()
    hysteresis: Hysteresis = Hysteresis()
    budget: Budget = Budget()
    breaker: Breaker = Breaker()
    limits: Limits = Limits()
    pod_template: PodTemplate = PodTemplate()


class Policy(Struct, frozen=True, kw_only=True):
    """A policy in force: its identity and its spec; `close_incident` names one that somebody ends."""

    name: str
    uid: str
    generation: int
    spec: PolicySpec
    close_incident: str = ""

    @property
    def paused(self) -> bool:
        """Mode `Paused`, or `budget.concurrentProbes` is 0: no run starts, and nothing on the nodes changes
        with time."""
        return self.spec.mode is Mode.PAUSED or self.spec.budget.concurrent_probes in (0, "0%")

    @property
    def watches(self) -> bool:
        """A resident container on each node brings the health readings."""
        health = self.spec.probes.health
        return health.enabled and health.mode is HealthMode.WATCH and not self.paused

    def interval_of(self, probe: str) -> float:
        """Seconds between two runs of a probe."""
        settings = getattr(self.spec.probes, probe)
        return seconds(getattr(settings, "period", settings.interval))

    def run_interval_of(self, probe: str) -> float:
        """Seconds between two runs by pods; also in mode Watch, failed readings are counted in these."""
        return seconds(getattr(self.spec.probes, probe).interval)


def ranked(policies: Iterable[Policy], labels: Mapping[str, str]) -> list[Policy]:
    """The policies that select a node with these labels; the first is in force (priority, then the name)."""
    selecting = [policy for policy in policies if policy.spec.node_selector.matches(labels)]
    return sorted(selecting, key=lambda policy: rank_of(policy.name, policy.spec.priority))


Rank = tuple[float, str]
"""Of two policies that select a node, the one of lower rank is in force."""


def rank_of(name: str, priority: float) -> Rank:
    """By priority, then by name."""
    return -priority, name


def without_key(policy: Policy) -> Policy:
    """The same policy without a short label key."""
    spec = policy.spec
    return replace(policy, spec=replace(spec, labels=replace(spec.labels, interconnect_key="")))


class PolicyInvalid(Exception):
    """The spec cannot be read; the message names the field and what it should be."""


class Unreadable(Struct, frozen=True, kw_only=True):
    """What can be read of a policy that cannot be read: which nodes it selects, and how it ranks.

    `selector` None: not even that.  Without a readable priority it ranks first.
    """

    rank: Rank
    selector: Selector | None


def readable_part(body: dict[str, Any]) -> Unreadable:
    """What nodes have to know of a policy for which `parse` raised."""
    spec, name = body.get("spec"), str(body["metadata"]["name"])
    given: dict[str, Any] = spec if isinstance(spec, dict) else {}
    try:
        selector = msgspec.convert(given.get("nodeSelector"), Selector)
    except msgspec.ValidationError:
        selector = None
    try:
        priority: float = msgspec.convert(given.get("priority", 0), int)
    except msgspec.ValidationError:
        priority = float("inf")
    return Unreadable(rank=rank_of(name, priority), selector=selector)


def parse(body: dict[str, Any]) -> Policy:
    """The typed policy in a Kubernetes object; raises `PolicyInvalid` with the field's path.

    The API server refuses most of this already (schema and CEL): what arrives here is what an older CRD let
    through.
    """
    metadata = body.get("metadata", {})
    try:
        spec = msgspec.convert(body.get("spec", {}), PolicySpec)
    except msgspec.ValidationError as error:
        raise PolicyInvalid(str(error).replace("`$", "`spec")) from None
    _check_images(spec)
    if problem := key_problem(spec.node_selector, short_key=spec.labels.interconnect_key):
        raise PolicyInvalid(problem)
    return Policy(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        generation=int(metadata.get("generation", 0)),
        spec=spec,
        close_incident=(metadata.get("annotations") or {}).get(names.CLOSE_INCIDENT, ""),
    )


def _check_images(spec: PolicySpec) -> None:
    images = {"image": spec.pod_template.image, "ncclImage": spec.pod_template.nccl_image}
    for name, image in images.items():
        if image and not names_registry(image):
            raise PolicyInvalid(
                f"{image!r} names no registry: write its registry too, such as registry.example.com/{image} "
                f"- at `spec.podTemplate.{name}`"
            )
