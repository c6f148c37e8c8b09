"""The demo's machines, and what their hardware demands of the labels and taints: nothing is taken from a run.

Interconnect and rates by the NVLink counts and rates of the profiles' sources; what is broken is broken
before the node joins.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

PREFIX = "nodegauge.dev/"
HOT_NODE = "gpu-3090"
"""Two cards on a bridge: the node that the demo heats under load."""
BUSY_NODE = "gpu-h100"
"""It works from the start and stays cool, so its throttling can be judged."""
BROKEN_LINKS = "gpu-h800"
"""Its NVLinks are up in name and carry nothing in fact: only a benchmark tells."""
SEVEN_NODE = "gpu-a100"
"""Its device plugin gives out seven of its eight GPUs."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a node must carry in the end; an empty text is an absent label.  `taints`: KEY=VALUE:EFFECT."""

    interconnect: str = ""
    gbps: str = ""
    evidence: str = ""
    health: str = "pass"
    throttled: str = ""
    psu: str = ""
    taints: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One node: its hardware profile, what is wrong with it, and what that demands.

    `expected` by what NVML and the system tell; `busbw`: GB/s that NCCL's all_reduce reaches there (profile's
    nccl group; 0 where nothing is measured), and `after`: what the node must carry then, where that is not
    the same with `measured` as evidence.
    """

    profile: str
    expected: Expected
    fault: str = ""
    parameters: dict[str, str | int] = field(default_factory=dict)
    busbw: float = 0.0
    after: Expected | None = None

    @property
    def measured(self) -> Expected:
        """What the node must carry once benchmarks have run."""
        if self.after is not None or not self.busbw:
            return self.after or self.expected
        return replace(self.expected, evidence="measured")


def _nvlink(gbps: int, *, throttled: str = "", psu: str = "") -> Expected:
    return Expected(interconnect="nvlink", gbps=str(gbps), evidence="reported", throttled=throttled, psu=psu)


def _unhealthy(cause: str) -> tuple[str, ...]:
    return (f"{PREFIX}unhealthy={cause}:NoSchedule",)


FLEET: dict[str, Machine] = {
    BUSY_NODE: Machine(profile="h100-sxm-8", expected=_nvlink(450, throttled="none"), busbw=462),
    "gpu-gb200": Machine(profile="gb200-4", expected=_nvlink(900), busbw=646),
    BROKEN_LINKS: Machine(
        profile="h800-sxm-8",
        fault="nvlink-down-in-fact",
        expected=_nvlink(200),
        busbw=28,
        after=Expected(taints=_unhealthy("busbw")),
    ),
    SEVEN_NODE: Machine(
        profile="a100-sxm-8",
        fault="device-unhealthy",
        parameters={"gpu": 5},
        expected=_nvlink(300),
        busbw=222,
    ),
    "gpu-mesh4": Machine(profile="hgx-a100-4", expected=_nvlink(300, psu="ok"), busbw=230),
    "gpu-dgx2": Machine(profile="dgx2-v100-16", expected=_nvlink(150), busbw=118),
    "gpu-dgx1": Machine(profile="dgx1-v100-8", expected=_nvlink(150), busbw=121),
    "gpu-titan": Machine(profile="titan-rtx-nv2", expected=_nvlink(50), busbw=40),
    HOT_NODE: Machine(profile="rtx3090-nv4-2", expected=_nvlink(56, psu="ok"), busbw=44),
    "gpu-pairs": Machine(
        profile="a100-pcie-4-pairs",
        expected=Expected(interconnect="nvlink-pairs", evidence="reported"),
        busbw=27,
    ),
    "gpu-phb": Machine(
        profile="pcie-phb-2", expected=Expected(interconnect="pcie", evidence="reported"), busbw=4.2
    ),
    "gpu-single": Machine(profile="rtx4000ada-1", expected=Expected()),
    "gpu-mig": Machine(profile="a100-mig-4", expected=Expected(psu="ok")),
    "gpu-hidden": Machine(profile="h100-runtime-hides-8", expected=Expected(health="")),
    "gpu-cable": Machine(
        profile="pcie-phb-2",
        fault="insufficient-power",
        parameters={"gpu": 1},
        expected=Expected(health="fail", psu="fault", taints=_unhealthy("power-cable")),
    ),
    "gpu-p2p": Machine(
        profile="h100-sxm-8",
        fault="p2p-refused",
        expected=Expected(health="fail", taints=_unhealthy("p2p")),
    ),
}

VALUES = """\
operator: {sweepInterval: 1s, nodeSelector: {kubernetes.io/hostname: system-1}}
crds: {keep: false}
policy:
  spec:
    probes:
      health: {interval: 60s, deadline: 30s, window: 1s}
      nccl: {interval: 1h, deadline: 2m, recheck: 5s}   # 24h, 8m, 10m
    budget: {concurrentProbes: 6, concurrentNcclProbes: 0, gatedNodes: "25%"}
    hysteresis: {dwell: 5s}
    thresholds:
      intervalFloor: 1          # seconds between two runs whose counters are compared; 120 by default
      busyFloor: 1              # seconds of work without which nothing is said of throttling; 60
      swThermalWarnSeconds: 0.5 # 5
      swThermalFailSeconds: 1   # 60
"""
"""Everything else is the chart's default: the same code path on the same clock, with shorter times."""
