"""The operator's settings: read once from the environment; one error lists every bad value.

The chart writes these variables; `docs/reference/values.md` lists the chart value of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from nodegauge_operator.api.policy import CountOrPercent, names_registry, seconds
from nodegauge_operator.api.report import whole
from nodegauge_operator.api.selector import match_expressions
from nodegauge_operator.core.driver_access import DriverAccess
from nodegauge_operator.core.model import ProbeDefaults

T = TypeVar("T")


class SettingsError(Exception):
    """One or more variables are invalid; the message lists each, and what to set."""


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of one installation.  Times in seconds, rates in calls per second."""

    probe: ProbeDefaults
    """Namespace, image and the like of probe pods."""
    instance: str = "nodegauge"
    """Reported on events; the pod's name."""
    http_port: int = 8080
    """/healthz, /readyz and /metrics.  0 picks a free one."""
    http_host: str = ""
    """Address to listen on; by default all, because the kubelet's probes come from outside the pod."""
    node_label_selector: str = ""
    """Server-side selector of the node watch; empty watches every node."""
    api_rate: float = 100.0
    """Calls per second on average (client-go defaults to 5 to 20; the API server has its own limits too)."""
    api_burst: int = 200
    """Calls that may be made at once after a pause."""
    max_concurrent_probes: int = 200
    """Health runs at a time, of all policies together.  5,000 nodes every 15 min are 5.6 runs a second; at
    20 s each they take 112 slots.  The rest is for nodes whose runs fail, and for catching up.  200 runs of
    10 s are 60 calls a second, within `api_rate`."""
    max_concurrent_nccl_probes: int = 50
    """Nodes at a time that NCCL and load runs hold or wait for, of all policies together: 5,000 nodes of 90 s
    each are measured in 2.5 h of the 24.  Chosen by this project: it bounds what a wrong policy can hold at
    once."""
    workers: int = 8
    """Nodes reconciled at a time; 4 already reach the API server's patch rate."""
    sweep_interval: float = 5.0
    """Seconds between passes of the loop if nothing wakes it."""
    relist_interval: float = 600.0
    """Seconds between full lists: an interrupted watch does not report deletions."""
    release_grace: float = 600.0
    """Seconds for which a node that no policy selects keeps what it carries: a label that flaps, or a
    policy that is deleted and created again, must not lift a taint."""
    max_gated_nodes: int | str = "20%"
    """Nodes that may carry a taint for a fault at a time, in all policies together: a count, or per cent of
    the nodes that follow a policy (rounded down, at least 1)."""
    max_gated_nodes_per_hour: int | str = "5%"
    """Nodes that may newly take such a taint within any hour, in all policies together; counted likewise."""
    metric_nodes: int = 200
    """Nodes that metrics name, the worst first; 0 for none.  Chosen by this project: a few
    hundred series, and more names than anybody reads."""
    give_way_to: tuple[str, ...] = ()
    """Extended resources and device classes that stand for GPUs: runs that hold GPUs end for pods that wait
    for these.  Empty: the scheduler alone decides who gets GPUs, and no run holds them by claim."""
    interconnect_keys: tuple[str, ...] = ()
    """Interconnect labels that the chart's admission policies let the operator write; empty: any."""
    log_level: str = "info"
    """debug, info, warning or error."""
    log_format: str = "json"
    """json or text."""

    @property
    def bmc(self) -> bool:
        """Whether the installation has a BMC reader; without one there is nothing to watch."""
        return self.probe.bmc_interval > 0


def parse(environ: Mapping[str, str]) -> Settings:
    """Settings from environment variables.  Raises `SettingsError` naming every bad one."""
    read = Reader(environ)
    probe = ProbeDefaults(
        namespace=read.text("POD_NAMESPACE", required="the namespace for probe pods, e.g. nodegauge"),
        image=read.image(
            "NODEGAUGE_PROBE_IMAGE", required="the probe image, e.g. localhost/nodegauge/probe:0.1.0"
        ),
        image_pull_policy=read.choice(
            "NODEGAUGE_PROBE_IMAGE_PULL_POLICY", ("", "Always", "IfNotPresent", "Never")
        ),
        image_pull_secrets=read.separated("NODEGAUGE_IMAGE_PULL_SECRETS"),
        priority_class_name=read.text("NODEGAUGE_PROBE_PRIORITY_CLASS"),
        runtime_class_name=read.text("NODEGAUGE_PROBE_RUNTIME_CLASS"),
        service_account_name=read.text("NODEGAUGE_PROBE_SERVICE_ACCOUNT"),
        labels=read.json("NODEGAUGE_PROBE_LABELS", {}, dict[str, str]),
        annotations=read.json("NODEGAUGE_PROBE_ANNOTATIONS", {}, dict[str, str]),
        tolerations=read.json("NODEGAUGE_PROBE_TOLERATIONS", [], list[dict[str, Any]]),
        resources=read.json("NODEGAUGE_PROBE_RESOURCES", {}, dict[str, dict[str, str]]),
        nodes=read.selector("NODEGAUGE_NODE_LABEL_SELECTOR"),
        nccl_image=read.image("NODEGAUGE_NCCL_IMAGE"),
        nccl_priority_class_name=read.text("NODEGAUGE_NCCL_PRIORITY_CLASS"),
        nccl_resources=read.json("NODEGAUGE_NCCL_RESOURCES", {}, dict[str, dict[str, str]]),
        instance=read.text("NODEGAUGE_INSTANCE") or "nodegauge",
        host_driver_folder=read.text("NODEGAUGE_HOST_DRIVER_FOLDER"),
        driver_access=read.choice("NODEGAUGE_DRIVER_ACCESS", tuple(DriverAccess)),
        gives_way=bool(read.separated("NODEGAUGE_GIVE_WAY_TO")),
        bmc_interval=read.duration("NODEGAUGE_BMC_INTERVAL", 0.0, low=0, high=86_400),
    )
    settings = Settings(
        probe=probe,
        instance=read.text("POD_NAME") or "nodegauge",
        http_port=read.number("NODEGAUGE_HTTP_PORT", 8080, int, low=0, high=65535),
        http_host=read.text("NODEGAUGE_HTTP_HOST"),
        node_label_selector=read.text("NODEGAUGE_NODE_LABEL_SELECTOR"),
        api_rate=read.number("NODEGAUGE_API_RATE", 100.0, float, low=1, high=10_000),
        api_burst=read.number("NODEGAUGE_API_BURST", 200, int, low=1, high=100_000),
        max_concurrent_probes=read.number("NODEGAUGE_MAX_CONCURRENT_PROBES", 200, int, low=1, high=10_000),
        max_concurrent_nccl_probes=read.number(
            "NODEGAUGE_MAX_CONCURRENT_NCCL_PROBES", 50, int, low=1, high=10_000
        ),
        workers=read.number("NODEGAUGE_WORKERS", 8, int, low=1, high=64),
        sweep_interval=read.duration("NODEGAUGE_SWEEP_INTERVAL", 5.0, low=0.1, high=300),
        relist_interval=read.duration("NODEGAUGE_RELIST_INTERVAL", 600.0, low=5, high=86_400),
        release_grace=read.duration("NODEGAUGE_RELEASE_GRACE", 600.0, low=0, high=86_400),
        max_gated_nodes=read.count_or_percent("NODEGAUGE_MAX_GATED_NODES", "20%"),
        max_gated_nodes_per_hour=read.count_or_percent("NODEGAUGE_MAX_GATED_NODES_PER_HOUR", "5%"),
        metric_nodes=read.number("NODEGAUGE_METRIC_NODES", 200, int, low=0, high=10_000),
        give_way_to=read.separated("NODEGAUGE_GIVE_WAY_TO"),
        interconnect_keys=read.separated("NODEGAUGE_INTERCONNECT_KEYS"),
        log_level=read.choice("NODEGAUGE_LOG_LEVEL", ("info", "debug", "warning", "error")),
        log_format=read.choice("NODEGAUGE_LOG_FORMAT", ("json", "text")),
    )
    if read.errors:
        raise SettingsError("invalid settings:\n  " + "\n  ".join(read.errors))
    return settings


class Reader:
    """Reads variables and collects what is wrong with them in `errors`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.errors: list[str] = []

    def text(self, name: str, *, required: str = "") -> str:
        """The text, stripped; `required` says what to set."""
        value = self._environ.get(name, "").strip()
        if required and not value:
            self.errors.append(f"{name} is not set: set it to {required}")
        return value

    def separated(self, name: str) -> tuple[str, ...]:
        """Texts with commas between them."""
        return tuple(word.strip() for word in self.text(name).split(",") if word.strip())

    def selector(self, name: str) -> list[dict[str, Any]]:
        """A label selector, as match expressions."""
        value = self.text(name)
        try:
            return match_expressions(value)
        except ValueError as error:
            self.errors.append(f"{name} is {value!r}: {error}: set it to e.g. pool in (a,b),!spot")
            return []

    def image(self, name: str, *, required: str = "") -> str:
        """An image, which names its registry."""
        value = self.text(name, required=required)
        if value and not names_registry(value):
            self.errors.append(
                f"{name} is {value}: set it to the image with its registry, e.g. localhost/{value}"
            )
        return value

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """One of the words; the first is the default."""
        value = self._environ.get(name, "").strip() or allowed[0]
        if value not in allowed:
            self.errors.append(f"{name} is {value!r}: set it to one of {', '.join(a for a in allowed if a)}")
            return allowed[0]
        return value

    def json(self, name: str, default: T, kind: type[T]) -> T:
        """A value in JSON."""
        value = self._environ.get(name, "").strip()
        if not value:
            return default
        try:
            return msgspec.json.decode(value, type=kind)
        except msgspec.MsgspecError as error:
            shape = "a list of objects" if isinstance(default, list) else "an object with string values"
            self.errors.append(f"{name} is {value}: must be {shape} in JSON ({error})")
            return default

    def number(self, name: str, default: T, kind: Callable[[str], T], *, low: float, high: float) -> T:
        """A number within bounds."""
        value = self._environ.get(name, "").strip()
        if not value:
            return default
        try:
            number = kind(value)
        except ValueError:
            self.errors.append(f"{name} is {value!r}: must be a number from {low:g} to {high:g}")
            return default
        if not low <= float(number) <= high:  # type: ignore[arg-type]
            self.errors.append(f"{name} is {value}: must be a number from {low:g} to {high:g}")
        return number

    def count_or_percent(self, name: str, default: int | str) -> int | str:
        """A count or a percentage."""
        value = self._environ.get(name, "").strip() or str(default)
        count = whole(value)
        setting: int | str = value if count is None else count
        try:
            msgspec.convert(setting, CountOrPercent)
        except msgspec.ValidationError:
            self.errors.append(
                f"{name} is {value!r}: must be a count of nodes, or a percentage from 0% to 100%"
            )
            return default
        return setting

    def duration(self, name: str, default: float, *, low: float, high: float) -> float:
        """Seconds, of a duration such as 15m."""
        value = self._environ.get(name, "").strip()
        if not value:
            return default
        try:
            duration = seconds(value)
        except ValueError as error:
            self.errors.append(f"{name}: {error}")
            return default
        if not low <= duration <= high:
            self.errors.append(f"{name} is {value}: must be from {low:g}s to {high:g}s")
        return duration
