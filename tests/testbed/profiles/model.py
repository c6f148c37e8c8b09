"""The shape of a profile.  An absent group is what the hardware lacks; unknown keys are errors."""

from typing import Literal

import msgspec

from testbed.profiles.hostmodel import Base, Chassis, Host
from testbed.simulated_nccl.machine import Way

FAR_SWITCH = "switch"
"""The far end of a link to an NVSwitch that is no PCI function of this machine, as in a rack."""


class Source(Base, frozen=True, kw_only=True):
    """Where a group of facts comes from; `made up` facts say so here."""

    facts: str
    where: str


class Driver(Base, frozen=True, kw_only=True):
    """`version` also decides which functions and fields exist; `cuda` as NVML's integer (12040 is 12.4)."""

    version: str
    nvml: str
    cuda: int


class Memory(Base, frozen=True, kw_only=True):
    total_mib: int
    reserved_mib: int = 0
    used_mib: int = 0


class Power(Base, frozen=True, kw_only=True):
    """Milliwatts; `full`: what it draws under full load; `averaged`: NVML reports the mean of a second.
    Limits are None on a chip that shares one with its CPU, as GB10 does."""

    idle: int
    full: int
    default: int | None = None
    min: int | None = None
    max: int | None = None
    averaged: bool = False


class Sensor(Base, frozen=True, kw_only=True):
    """°C at idle, and where it settles under full load."""

    idle: int
    full: int


class Limits(Base, frozen=True, kw_only=True):
    """°C: absolute thresholds, or distances (T.Limit) where they come with `max_operating`."""

    shutdown: int
    slowdown: int
    gpu_max: int
    memory_max: int | None = None


class TLimits(Limits, frozen=True, kw_only=True):
    """Distances to the events; `max_operating` is the temperature at which the margin is 0."""

    max_operating: int


class Clock(Base, frozen=True, kw_only=True):
    """MHz."""

    idle: int
    loaded: int
    max: int


class Clocks(Base, frozen=True, kw_only=True):
    sm: Clock
    memory: Clock
    video: Clock
    pstate_idle: int
    pstate_loaded: int


class Pcie(Base, frozen=True, kw_only=True):
    """Generation and lanes: at most for card and slot together, of the card alone, and while idle."""

    max_generation: int
    card_generation: int
    max_width: int
    idle_generation: int
    idle_width: int


class Links(Base, frozen=True, kw_only=True):
    """NVLinks of a GPU model: `slots` on the chip, NVML's version number, raw MB/s per direction.  `remote`:
    what NVML names as the far end: the far end, the GPU's `own` address (as in some virtual machines), or
    nothing it can tell.  `remote_type_known`: whether it tells what kind of device that is."""

    slots: int
    version: int
    mbps: int
    remote: Literal["far", "own", "hidden"] = "far"
    remote_type_known: bool = True


class C2C(Base, frozen=True, kw_only=True):
    """Links to the CPU of a Grace superchip: how many, and MB/s of each."""

    links: int
    mbps: int


class Fans(Base, frozen=True, kw_only=True):
    """Fans of the card: how many, their per cent at idle and under full load, rpm at 100 per cent.  A card
    may stop its fans while idle (0 per cent, 0 rpm)."""

    count: int
    idle: int
    full: int
    rpm: int


class Model(Base, frozen=True, kw_only=True):
    """A GPU model.  Numbers are NVML's."""

    name: str
    brand: int
    architecture: int
    compute: tuple[int, int]
    vbios: str
    memory: Memory | None = None
    """None: it has no memory of its own, and NVML tells none (GB10)."""
    persistence: bool
    power: Power
    temperature: Sensor | None = None
    """None: nothing tells it, as in a vGPU's guest."""
    memory_temperature: Sensor | None = None
    thresholds: Limits | None = None
    tlimits: TLimits | None = None
    clocks: Clocks
    pcie: Pcie
    violations: bool = True
    """Whether the driver keeps performance-policy counters for it."""
    ecc: bool = False
    mig: bool = False
    virtualization: int = 0
    """NVML_GPU_VIRTUALIZATION_MODE_*: 0 on bare metal, 1 passed through to a virtual machine, 2 a vGPU."""
    confidential: int | None = None
    """Whether confidential computing is on (1), off (0), or nothing the driver can tell of these GPUs."""
    mig_enabled: bool = False
    """MIG is on: NVML then reports every NVLink down, and neither utilisation nor remapped rows."""
    retired_pages: bool = False
    remapped_row_banks: int | None = None
    recovery_action: bool = False
    serial: bool = True
    links: Links | None = None
    c2c: C2C | None = None
    fans: Fans | None = None
    """None: passively cooled."""


class Gpu(Base, frozen=True, kw_only=True):
    """One GPU: where it sits, and of each of its links in order the PCI address of the far end ("": none;
    "switch": an NVSwitch elsewhere).  `counted`: seconds that a throttle counter already stood at when the
    driver was loaded (sw_power_cap, sw_thermal, hw_thermal, power_brake, sync_boost)."""

    address: str
    minor: int
    module: int = 0
    links: tuple[str, ...] = ()
    counted: dict[str, int] = msgspec.field(default_factory=dict)


class P2P(Base, frozen=True, kw_only=True):
    """NVML_P2P_STATUS_* of READ and WRITE where no NVLink joins: below one host bridge (near), and beyond."""

    near: int = 0
    far: int = 0


class Fabric(Base, frozen=True, kw_only=True):
    """What every GPU answers about its NVLink fabric; `cluster_uuid` as 32 hexadecimal digits."""

    state: int
    status: int
    cluster_uuid: str
    clique: int
    health_mask: int
    health_summary: int


class Recording(Base, frozen=True, kw_only=True):
    """What `nvidia-smi topo -m` printed on the machine that a profile models: a file in tests/fixtures.
    `drawn_as`: the driver release whose columns the text has, where whoever kept it drew the table anew."""

    file: str
    drawn_as: str = ""


class Node(Base, frozen=True, kw_only=True):
    """What the cluster knows of the node: the device plugin's count of nvidia.com/gpu where it is not that of
    the GPUs (time-slicing and MPS multiply it), and labels that GPU feature discovery adds or changes."""

    gpu_capacity: int | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class NcclResult(Base, frozen=True, kw_only=True):
    """`ways`: nvls takes all_reduce on NVSwitches, p2p is NVLink or PCIe between GPUs, host goes through host
    memory.  `link_gbps`: one way over one NVLink by copies, `pcie_gbps`: over PCIe; `nvls_from`: ranks from
    which NCCL chooses NVLS.  Without `p2p` NCCL uses none: A equals B."""

    ways: dict[str, Way]
    pcie_gbps: float
    link_gbps: float = 0.0
    nvls_from: int = 0
    init_seconds: float = 2.5
    load_seconds: float = 0.3


class Healthy(Base, frozen=True, kw_only=True, rename="kebab"):
    """What must follow while the machine is healthy: what its hardware demands, not what a run printed.
    `gbps`: links of the weakest GPU x the advertised rate per link and direction, floored; only for the class
    nvlink; `one_less`: the same once a link is down.  `findings`: code and severity, above info.  `why`:
    whence the class.  `has`: words that the matrix's scenarios ask for: several GPUs or a single one | links
    that NVML counts or no-links | two-links in all | own-remote (links name their own GPU) | fabric | nvlink5
    | ecc | rows (remapped) | pages (retired) | action (recovery action, driver 570 and on) | no-events
    (driver before 450) | nics | alarms of hwmon chips | superio (they are those of a SuperIO) | volts of
    hwmon chips | fans, and no-rpm (driver before 570) | sram-status (driver 550, Ampere) | repair-status
    (driver 580) | power-source (driver 510) | core-limit or no-core-limit (that this driver tells in degrees
    or as a margin) | a memory-sensor, with a memory-limit or no-memory-limit | no-thermal-counter | mig |
    hidden | no-pci.  The matrix itself adds core-sensor, power-limit, lanes (PCIe lanes to lose), supply (one
    that shows itself) and no-twelve (no sensor called 12 V)."""

    interconnect: str = ""
    gbps: str = ""
    one_less: str = ""
    verdict: str = "pass"
    findings: dict[str, str] = msgspec.field(default_factory=dict)
    psu: str = ""
    has: tuple[str, ...] = ()
    why: str


class Profile(Base, frozen=True, kw_only=True):
    """A machine.  `visible`: how many GPUs, from the first, a container is shown (None: all of them).
    `nccl`: what NCCL would measure; None where it has nothing to measure.  `chassis`: what a BMC sees of
    it."""

    name: str
    title: str
    sources: tuple[Source, ...]
    driver: Driver
    host: Host
    model: Model
    gpus: tuple[Gpu, ...]
    p2p: P2P = P2P()
    fabric: Fabric | None = None
    recording: Recording | None = None
    chassis: Chassis | None = None
    nccl: NcclResult | None = None
    node: Node = Node()
    healthy: Healthy
    visible: int | None = None
