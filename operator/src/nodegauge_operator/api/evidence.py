"""NodeEvidence: everything that was read on a node and behind its findings, for people and tools.

Named as its node and owned by the node's report.  The operator only writes it: no decision reads it, and no
cache holds it.  One member of `probes` for each probe; `NAME-unreadable` holds a later run of that probe that
could not be judged, so that what was read before stays.
"""

from __future__ import annotations

from msgspec import Struct, field

from nodegauge_judge import Finding, GpuIdentity, Verdict

MAX_FINDINGS = 1024
MAX_MATRIX = 65_536
UNREADABLE = "-unreadable"
"""Ends the key of a run that could not be judged."""


class GpuEvidence(GpuIdentity, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One GPU: its identity, and some readings.  What could not be read is left out.

    `module_id`: the socket on the board; `nvlinks`: active ones; `error`: why it could not be read.
    """

    index: int
    name: str = ""
    vbios: str = ""
    compute_capability: str = ""
    memory_mib: int | None = None
    module_id: int | None = None
    nvlinks: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    celsius: int | None = None
    memory_celsius: int | None = None
    watts: int | None = None
    sm_mhz: int | None = None
    error: str = ""


class PortEvidence(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One port of a network card, as the kernel names its state."""

    port: int
    state: str = ""
    physical: str = ""
    rate_gbps: float | None = None
    link_layer: str = ""


class NicEvidence(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One network card (RDMA device)."""

    name: str
    pci: str = ""
    ports: list[PortEvidence] = []


class SensorEvidence(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One sensor of the machine: `value` with its unit; `alarm`: the chip raises one."""

    chip: str
    name: str
    label: str = ""
    value: str = ""
    alarm: bool = False


class ProbeEvidence(Struct, frozen=True, rename="camel", kw_only=True):
    """One run of one probe in full.  `findings`: one for each location; `cut`: what was left out because the
    object would be too large."""

    run: int
    read_at: str
    verdict: Verdict
    pod: str = ""
    policy: str = ""
    boot_id: str = field(default="", name="bootID")
    summary: str = ""
    driver: str = ""
    nvml: str = ""
    findings: list[Finding] = []
    gpus: list[GpuEvidence] = []
    missing: list[GpuIdentity] = []
    matrix: str = ""
    nics: list[NicEvidence] = []
    sensors: list[SensorEvidence] = []
    cut: list[str] = []


class NodeEvidence(Struct, frozen=True, kw_only=True):
    """What the object holds besides its metadata."""

    probes: dict[str, ProbeEvidence] = {}
