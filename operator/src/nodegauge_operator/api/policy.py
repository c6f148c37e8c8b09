"""GPUValidationPolicy: what to measure on which nodes, how often, how strict.

Field names are those of the CRD in camelCase; every default here equals the CRD's (a test compares).
`parse` returns the policy, or raises `PolicyInvalid` with the path of the field that cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property, lru_cache
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


TAINT_KEY = r"(?:[a-z0-9](?:[-a-z0-9]*[a-z0-9])?[.])*[a-z0-9](?:[-a-z0-9]*[a-z0-9])?/nodegauge-"
"""What a policy writes before the name of a taint: a DNS subdomain, as of any key of Kubernetes."""
FOREIGN_TAINTS = re.compile(
    r"([^/]*[.])?(nodegauge[.]dev|kubernetes[.]io|(x-)?k8s[.]io|nvidia[.]com|karpenter[.]sh)/"
)
"""Domains whose taints other controllers set, remove and act on."""
READ_BY_OTHERS = re.compile(
    r"nodegauge[.]dev/(throttled|unhealthy|unvalidated)$|"
    r"((startup|status|ignore)-taint[.]cluster-autoscaler[.]kubernetes[.]io|readiness[.]k8s[.]io)/"
)
"""What may stand below these all the same: autoscalers know such keys by their prefix (kubernetes/autoscaler,
utils/taints/taints.go; kubernetes-sigs/karpenter, pkg/scheduling/taints.go)."""


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
    """`Observe` writes reports, events and metrics, nothing on nodes; `Enforce` labels, taints and
    conditions too; `Paused` starts no run, and leaves the nodes as they are."""

    OBSERVE = "Observe"
    ENFORCE = "Enforce"
    PAUSED = "Paused"


class XidSeverity(StrEnum):
    """How bad a finding of a rule about Xids is; `None`: its codes raise none."""

    FAIL = "Fail"
    WARN = "Warn"
    NONE = "None"


class XidRuleSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """A finding from `count` of these codes on, together, within `window` on one GPU.  It takes the place of
    the catalogue for its codes."""

    codes: Annotated[tuple[Annotated[int, Meta(ge=1, le=65_535)], ...], Meta(min_length=1, max_length=32)]
    """Xid codes that count together."""
    severity: XidSeverity
    """How bad the finding is.  `None`: these codes raise none."""
    count: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Xids that raise the finding."""
    window: Duration = "24h"
    """Time within which they must come."""

    def rule(self) -> XidRule:
        """As the judge takes it."""
        severity = None if self.severity is XidSeverity.NONE else Severity(self.severity.lower())
        return XidRule(codes=self.codes, severity=severity, count=self.count, window=seconds(self.window))


class Labels(Struct, frozen=True, rename="camel", kw_only=True):
    """How nodes are labelled."""

    interconnect_key: str = "interconnect"
    """Short label key with the value of nodegauge.dev/interconnect; empty for none."""
    take_over: bool = False
    """Whether to overwrite a value under the short key that nodegauge did not write."""


class Effect(StrEnum):
    """What a taint does to pods that do not tolerate it; `None` for no taint at all."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"
    NONE = "None"


class DeviceRules(StrEnum):
    """Whether a fault of single GPUs gates them by DeviceTaintRules instead of the node (ADR 0060).

    `DryRun`: rules with effect None beside the node's taint; `NoSchedule`: rules in place of that taint."""

    NONE = "None"
    DRY_RUN = "DryRun"
    NO_SCHEDULE = "NoSchedule"


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


class TaintKeys(Struct, frozen=True, kw_only=True):
    """The key of each taint, for others that know taints by their keys.  Only the part before the slash is
    the policy's: behind any but `nodegauge.dev/` stands `nodegauge-NAME` (ADR 0061)."""

    throttled: str = names.TAINT_THROTTLED
    """Key of nodegauge.dev/throttled."""
    unhealthy: str = names.TAINT_UNHEALTHY
    """Key of nodegauge.dev/unhealthy."""
    unvalidated: str = names.TAINT_UNVALIDATED
    """Key of nodegauge.dev/unvalidated."""

    def key_of(self, own: str) -> str:
        """The key under which this policy sets a taint of `names.NODE_TAINTS`."""
        return {
            names.TAINT_THROTTLED: self.throttled,
            names.TAINT_UNHEALTHY: self.unhealthy,
            names.TAINT_UNVALIDATED: self.unvalidated,
        }[own]

    @property
    def tolerated(self) -> tuple[str, ...]:
        """Keys that our pods tolerate: ours as kubelets register with them, and the policy's."""
        return tuple(dict.fromkeys([*names.NODE_TAINTS, *map(self.key_of, names.NODE_TAINTS)]))


class Taints(Struct, frozen=True, rename="camel", kw_only=True):
    """How nodes with a fault are tainted (mode Enforce)."""

    effect: Effect = Effect.NO_SCHEDULE
    """Effect for each cause that `causes` does not name.  None sets no taint."""
    causes: dict[Cause, Effect] = {}
    """Effect by cause, which is the taint's value.  Unless it is named here, `unreadable` has
    PreferNoSchedule for a driver that does not answer, and no verdict follows from it (ADR 0043)."""
    devices: DeviceRules = DeviceRules.NONE
    """What a fault of single GPUs does where they come by DRA alone; elsewhere the node is tainted."""
    unvalidated: Unvalidated = Unvalidated.LIFT
    """What to do with the taint nodegauge.dev/unvalidated."""
    unvalidated_until: Until = Until.HEALTH
    """What removes that taint."""
    validated_within: Annotated[str, Meta(pattern=rf"^$|{DURATION}", max_length=32)] = ""
    """Time from the making of node and report until a node that has not passed is `never-validated`; empty
    for no deadline."""
    keys: TaintKeys = TaintKeys()
    """Keys of the taints."""

    @property
    def soft(self) -> frozenset[Cause]:
        """Causes for whose effect nobody asked: it steers new pods away, and makes no fault of missing
        data."""
        return frozenset({Cause.UNREADABLE} - self.causes.keys())


class Hysteresis(Struct, frozen=True, rename="camel", kw_only=True):
    """When gates are entered and left (promise 4, docs/promises.md).  The numbers are chosen by this project:
    one bad run may be a passing event."""

    enter_runs: Annotated[int, Meta(ge=1, le=20)] = 2
    """Bad runs in a row that set a taint, for findings that need more than one (a lost GPU needs one)."""
    unreadable_runs: Annotated[int, Meta(ge=2, le=20)] = 5
    """Runs in a row that fail alike and set the taint of cause `unreadable`."""
    leave_runs: Annotated[int, Meta(ge=1, le=20)] = 3
    """Good runs in a row that remove a taint."""
    dwell: Duration = "10m"
    """Shortest time that a taint stays."""
    probation_after: Annotated[tuple[Duration, ...], Meta(max_length=8)] = ("1h", "4h", "24h")
    """Time after which a taint that only runs under load can lift is lifted on trial: the first entry for a
    first fault, a further one for each relapse.  Empty for never."""
    probation: Duration = "24h"
    """Longest time of a trial.  One bad run ends it with the taint, `leaveRuns` good runs under load
    without."""
    relapse_window: Duration = "168h"
    """Time after a taint was removed within which a fault that returns is a relapse."""

    @property
    def probation_steps(self) -> tuple[float, ...]:
        """`probation_after` in seconds."""
        return tuple(seconds(step) for step in self.probation_after)

    @property
    def relapse_seconds(self) -> float:
        """`relapse_window` in seconds."""
        return seconds(self.relapse_window)


class Budget(Struct, frozen=True, rename="camel", kw_only=True):
    """How many nodes may be probed or tainted at a time.  A percentage is of the policy's nodes, rounded
    down, at least 1."""

    concurrent_probes: CountOrPercent = "10%"
    """Health probe pods at a time, within the installation's limit.  0 pauses the policy."""
    gated_nodes: CountOrPercent = "20%"
    """Nodes that may carry a taint for a fault at a time (`unvalidated` is not one); 0 for none."""
    gated_nodes_per_hour: CountOrPercent = "5%"
    """Nodes that may newly take such a taint within any hour; 0 for none.  Default chosen by this project
    (ADR 0030)."""
    gated_devices: CountOrPercent = "20%"
    """Devices that may be gated by DeviceTaintRules at a time, apart from `gatedNodes`; a percentage is of
    all devices of the policy's nodes; 0 for none."""
    concurrent_nccl_probes: CountOrPercent = "10%"
    """Nodes that NCCL and load runs may hold or wait for at a time, apart from `concurrentProbes`; 0 pauses
    these runs."""


class Breaker(Struct, frozen=True, rename="camel", kw_only=True):
    """When one cause on many nodes is one incident, which holds new taints back (ADR 0030).  The numbers are
    chosen by this project."""

    nodes: Annotated[int, Meta(ge=3, le=100_000)] = 20
    """More nodes than this with one cause are an incident, however large their group."""
    share: Annotated[str, Meta(pattern=r"^(100|[0-9]{1,2})%$")] = "10%"
    """A larger share than this of the policy's nodes, or of one of its groups, is one too, from three nodes
    on."""
    window: Duration = "30m"
    """Time within which the cause must come up on these nodes."""
    group_labels: Annotated[tuple[str, ...], Meta(max_length=8)] = (
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/rack",
        "nvidia.com/gpu.clique",
    )
    """Keys of node labels whose values make groups.  Driver, GPU model and the image of NCCL and load runs
    make groups too."""


class Limits(Struct, frozen=True, rename="camel", kw_only=True):
    """When the operator ends a probe pod that makes no progress."""

    not_scheduled: Duration = "1m"
    """Longest time that a pod may wait to be scheduled."""
    not_started: Duration = "5m"
    """Longest time from a pod's creation to the start of its container, with the image pull (a pull of the
    NCCL image has at least 30 min).  Mode Watch: as late may a reading be."""
    not_gone: Duration = "2m"
    """Longest time that a deleted pod may take to end; after it, it is removed by force."""
    overtime: Duration = "60s"
    """Time beyond its deadline that a running pod is waited for.  A kubelet that is alive ends the pod at the
    deadline; after this time it is taken as silent."""


class PodTemplate(Struct, frozen=True, rename="camel", kw_only=True):
    """What probe pods carry beyond what nodegauge sets; an empty value means the installation's default."""

    image: str = ""
    """Image of the health and load probes, with its registry."""
    nccl_image: str = ""
    """Image of NCCL runs, with its registry.  Without one here and in the installation there are none."""
    image_pull_policy: str = ""
    """Pull policy of the images."""
    image_pull_secrets: list[dict[str, str]] = []
    """Image pull secrets in nodegauge's namespace, as `{"name": NAME}`."""
    runtime_class_name: str = ""
    """RuntimeClass that gives pods access to the GPU driver, such as nvidia."""
    priority_class_name: str = ""
    """PriorityClass of health probe pods and pulls; NCCL and load pods have the installation's own."""
    tolerations: list[dict[str, Any]] = []
    """Tolerations of probe pods, as in any pod."""
    resources: dict[str, dict[str, str]] = {}
    """Requests and limits of the health probe's container, merged into the installation's."""
    nccl_resources: dict[str, dict[str, str]] = {}
    """The same for NCCL and load runs, which always get all allocatable GPUs of the node."""
    labels: dict[str, str] = {}
    """Labels of probe pods, beside the installation's."""
    annotations: dict[str, str] = {}
    """Annotations of probe pods, beside the installation's."""


class PolicySpec(Struct, frozen=True, rename="camel", kw_only=True):
    """All of `spec`; the API server has filled in the CRD's defaults."""

    node_selector: Selector
    """Selects the nodes by label."""
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] = 0
    """Of two policies that select a node, the one of higher priority is in force."""
    mode: Mode = Mode.ENFORCE
    """What nodegauge may write to nodes."""
    probes: Probes = Probes()
    """Settings of each kind of reading."""
    stale_after_intervals: Annotated[int, Meta(ge=2, le=100)] = 3
    """Intervals of failed runs after which a reading no longer counts.  Waiting does not count, but a health
    reading that only waits is believed for 7 days at most, or these intervals."""
    expected_gpus: ExpectedGpus = 0
    """GPUs that the driver should list on every node.  0: compare with earlier runs, the PCI bus and
    nvidia.com/gpu."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    """Numbers that findings compare with."""
    expectations: Annotated[list[Expectation], Meta(max_length=64)] = []
    """Bandwidths that NCCL runs should reach; they come before the built-in table."""
    power_inventory: PowerInventory = PowerInventory()
    """What feeds the GPUs: sockets, cables and supplies."""
    xids: Annotated[tuple[XidRuleSpec, ...], Meta(max_length=16)] = ()
    """Rules about Xids, each in place of the catalogue for its codes."""
    labels: Labels = Labels()
    """How nodes are labelled."""
    taints: Taints = Taints()
    """How nodes with a fault are tainted."""
    hysteresis: Hysteresis = Hysteresis()
    """When taints are set and removed."""
    budget: Budget = Budget()
    """How many nodes may be probed or tainted at a time."""
    breaker: Breaker = Breaker()
    """When one cause on many nodes is one incident."""
    limits: Limits = Limits()
    """When a pod that makes no progress is ended."""
    pod_template: PodTemplate = PodTemplate()
    """Settings of probe pods."""


class Policy(Struct, frozen=True, kw_only=True, dict=True):
    """A policy in force: its identity and its spec."""

    name: str
    """Name of the object; part of the order of policies."""
    uid: str
    """UID of the object."""
    generation: int
    """`metadata.generation`; the status repeats it."""
    spec: PolicySpec
    """What it asks for."""
    close_incident: str = ""
    """The incident that somebody ends by annotation; empty for none."""

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

    @cached_property
    def effects(self) -> dict[Cause, Effect]:
        """The effect of each cause."""
        asked = self.spec.taints
        soft = Effect.NONE if asked.effect is Effect.NONE else Effect.PREFER_NO_SCHEDULE
        every = {cause: soft if cause in asked.soft else asked.effect for cause in Cause}
        return every | asked.causes

    @property
    def closes_new_nodes(self) -> bool:
        """It taints a node until its first pass; not if no health run could lift the taint."""
        wanted = self.spec.taints.unvalidated is Unvalidated.SET
        return wanted and self.spec.mode is Mode.ENFORCE and self.spec.probes.health.enabled

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
    """What can be read of a policy that cannot be read: which nodes it selects, and how it ranks."""

    rank: Rank
    """Without a readable priority it ranks first."""
    selector: Selector | None
    """None if not even that can be read."""


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
    _check_taint_keys(spec.taints.keys)
    if problem := key_problem(spec.node_selector, short_key=spec.labels.interconnect_key):
        raise PolicyInvalid(problem)
    return Policy(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        generation=int(metadata.get("generation", 0)),
        spec=spec,
        close_incident=(metadata.get("annotations") or {}).get(names.CLOSE_INCIDENT, ""),
    )


def _check_taint_keys(keys: TaintKeys) -> None:
    for own in names.NODE_TAINTS:
        name, key = own.removeprefix(names.PREFIX), keys.key_of(own)
        well_formed = key == own or re.fullmatch(TAINT_KEY + name, key)
        if not well_formed or (FOREIGN_TAINTS.match(key) and not READ_BY_OTHERS.match(key)):
            raise PolicyInvalid(
                f"{key!r} is no key for this taint: write {own}, or a prefix of your own or of an autoscaler "
                f"with /nodegauge-{name}, such as startup-taint.cluster-autoscaler.kubernetes.io/nodegauge-"
                f"{name} - at `spec.taints.keys.{name}`"
            )


def _check_images(spec: PolicySpec) -> None:
    images = {"image": spec.pod_template.image, "ncclImage": spec.pod_template.nccl_image}
    for name, image in images.items():
        if image and not names_registry(image):
            raise PolicyInvalid(
                f"{image!r} names no registry: write its registry too, such as registry.example.com/{image} "
                f"- at `spec.podTemplate.{name}`"
            )
