"""The demo's machines, and the labels and taints that their hardware calls for; no value comes from a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

PREFIX = "nodegauge.dev/"
HOT_NODE = "gpu-3090"
"""Two cards on a bridge: the node that the demo heats under load."""
BUSY_NODE = "gpu-h100"
"""Under load from the start, and cool: its throttling can be judged."""
BROKEN_LINKS = "gpu-h800"
"""Its driver reports NVLinks as up, but they carry no data: only the NCCL probe can tell."""
SEVEN_NODE = "gpu-a100"
"""Its device plugin gives out seven of its eight GPUs."""


STARVED_NODE = "gpu-single"
"""Its job waits for its disk."""


@dataclass(frozen=True, kw_only=True)
class Marks:
    interconnect: str = ""
    gbps: str = ""
    evidence: str = ""
    health: str = "pass"
    throttled: str = ""
    psu: str = ""
    taints: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Machine:
    """`expected`: from NVML and the system alone.  `busbw`: GB/s of NCCL's all_reduce on this machine (the
    profile's nccl group; 0 where NCCL does not run).  `after`: labels and taints after the NCCL probe, where
    they differ from `expected` by more than the evidence."""

    profile: str
    expected: Marks
    fault: str = ""
    parameters: dict[str, str | int] = field(default_factory=dict)
    busbw: float = 0.0
    after: Marks | None = None

    @property
    def measured(self) -> Marks:
        if self.after is not None or not self.busbw:
            return self.after or self.expected
        return replace(self.expected, evidence="measured")


def _nvlink(gbps: int, *, throttled: str = "", psu: str = "") -> Marks:
    return Marks(interconnect="nvlink", gbps=str(gbps), evidence="reported", throttled=throttled, psu=psu)


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
        after=Marks(health="fail", taints=_unhealthy("busbw")),
    ),
    SEVEN_NODE: Machine(
        profile="a100-sxm-8",
        fault="device-unhealthy",
        parameters={"gpu": 5},
        expected=_nvlink(300),
        busbw=222,
        after=Marks(interconnect="nvlink", gbps="300", evidence="measured", health="warn"),
    ),
    "gpu-mesh4": Machine(profile="hgx-a100-4", expected=_nvlink(300, psu="ok"), busbw=230),
    "gpu-dgx2": Machine(profile="dgx2-v100-16", expected=_nvlink(150), busbw=118),
    "gpu-dgx1": Machine(profile="dgx1-v100-8", expected=_nvlink(150), busbw=121),
    "gpu-titan": Machine(profile="titan-rtx-nv2", expected=_nvlink(50), busbw=40),
    HOT_NODE: Machine(profile="rtx3090-nv4-2", expected=_nvlink(56, psu="ok"), busbw=44),
    "gpu-pairs": Machine(
        profile="a100-pcie-4-pairs",
        expected=Marks(interconnect="nvlink-pairs", evidence="reported"),
        busbw=27,
    ),
    "gpu-phb": Machine(
        profile="pcie-phb-2", expected=Marks(interconnect="pcie", evidence="reported"), busbw=4.2
    ),
    "gpu-single": Machine(profile="rtx4000ada-1", expected=Marks()),
    "gpu-mig": Machine(profile="a100-mig-4", expected=Marks(psu="ok")),
    "gpu-hidden": Machine(profile="h100-runtime-hides-8", expected=Marks(health="")),
    "gpu-cable": Machine(
        profile="pcie-phb-2",
        fault="insufficient-power",
        parameters={"gpu": 1},
        expected=Marks(health="fail", taints=_unhealthy("power-cable")),
    ),
    "gpu-p2p": Machine(
        profile="h100-sxm-8", fault="p2p-refused", expected=Marks(health="fail", taints=_unhealthy("p2p"))
    ),
}

VALUES = Path(__file__).with_name("values.yaml").read_text("utf-8")
"""All other values are the chart's.  Failure begins below the floor of load: a run that sees the last second
of heat under load is bad, never good."""
