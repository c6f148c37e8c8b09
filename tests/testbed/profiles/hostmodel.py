"""The shape of a profile's host and chassis.  Texts are as sysfs prints them."""

import msgspec


class Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every part of a profile: read-only, and strict about its keys."""


class NumaNode(Base, frozen=True, kw_only=True):
    """A NUMA node; `cpus` as the kernel lists them, "0-19,40-59"."""

    id: int
    cpus: str


class PciKind(Base, frozen=True, kw_only=True):
    """What PCI functions of one kind have in common, as sysfs prints it; `speed` and `width`: its link;
    `driver`: the kernel driver that is bound to it, if the machine's own GPU driver is not."""

    class_: str = msgspec.field(name="class")
    vendor: str
    device: str
    subsystem: tuple[str, str] = ("0x0000", "0x0000")
    speed: str = ""
    width: int = 0
    driver: str = ""


class PciRoot(Base, frozen=True, kw_only=True):
    """A host bridge, which sysfs names by its first function's bus: the NUMA node it belongs to, and what
    hangs below it.  `functions`: a line each, `ADDRESS KIND`, indented by two spaces per bridge above it; of
    bridges alike a profile has the kinds in `host.shapes`, and here `shape` and `at`, the addresses."""

    numa: int
    functions: str


class Nic(Base, frozen=True, kw_only=True):
    """An RDMA device: its PCI function and what sysfs prints of its one port."""

    name: str
    address: str
    rate: str
    link_layer: str
    node_guid: str
    """As NCCL prints it, 16 hexadecimal digits at most."""


class HwmonSensor(Base, frozen=True, kw_only=True):
    """A sensor as hwmon names it (in1, power1, curr1, fan1, temp1) in hwmon's units: mV, µW, mA, rpm, m°C.  A
    file that the chip does not have is None."""

    name: str
    value: int
    label: str | None = None
    alarm: int | None = None
    min: int | None = None
    max: int | None = None
    lcrit: int | None = None
    crit: int | None = None


class HwmonChip(Base, frozen=True, kw_only=True):
    """A chip of the hardware monitor, by its driver's name (nct6798, corsairpsu, pmbus, acpi...)."""

    name: str
    sensors: tuple[HwmonSensor, ...]


class Host(Base, frozen=True, kw_only=True):
    """`numa_reported`: whether the firmware tells which device belongs to which node (if not: numa_node -1).
    `nics` stand in the order in which their drivers registered them (uverbs0, uverbs1, ...). `disks`: NVMe
    controllers, all of them well. `pci_visible`: False where a hypervisor or sandbox shows no PCI devices in
    sysfs at all."""

    nodes: tuple[NumaNode, ...]
    numa_reported: bool = True
    kinds: dict[str, PciKind]
    roots: tuple[PciRoot, ...]
    nics: tuple[Nic, ...] = ()
    hwmon: tuple[HwmonChip, ...] = ()
    disks: tuple[str, ...] = ("nvme0",)
    pci_visible: bool = True


class Supplies(Base, frozen=True, kw_only=True):
    """Equal supplies that share the load: how many, and the watts (DC) that each gives."""

    count: int
    watts: int


class Chassis(Base, frozen=True, kw_only=True):
    """What a machine's BMC sees; a machine without one has none.  Watts are DC, of everything but the GPUs:
    idle, and while all GPUs work.  `supplies` None: a shelf of the rack feeds it.  `inlet_max`: °C at which
    the BMC warns.  `board`: a BMC of a GPU baseboard is there, too."""

    vendor: str
    product: str
    supplies: Supplies | None = None
    host_idle: int
    host_full: int
    fans: int
    fan_rpm: int
    inlet: int
    inlet_max: int
    leak_detectors: int = 0
    board: bool = False
