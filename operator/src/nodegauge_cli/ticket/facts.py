"""What a ticket holds: one struct, filled from the objects of a node or from the record of one that is gone.

This is also the document of `--for json`.  Every field of every form comes from here, so that nothing else of
an object (annotations, addresses of BMCs, names of people) can reach a vendor.  A value that nobody read is
empty or None; `gaps` and `ask` say what is missing and who knows it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from nodegauge_operator.api.report import GateState

FORM = "nodegauge.dev/ticket"
VERSION = 1
_UNSAFE = re.compile(r"[<>]")


class Part(Struct, frozen=True, rename="camel", kw_only=True):
    """All structs here: JSON in camel case, every field written."""


class Machine(Part, frozen=True, kw_only=True):
    """The computer, as its Node and its BMC name it."""

    provider_id: str = ""
    """`spec.providerID` of the Node."""
    machine_id: str = ""
    """`status.nodeInfo.machineID`."""
    system_uuid: str = ""
    """`status.nodeInfo.systemUUID`, from SMBIOS."""
    boot_id: str = ""
    """Boot of the last health reading, else of the Node."""
    instance_type: str = ""
    """Label `node.kubernetes.io/instance-type`."""
    zone: str = ""
    """Label `topology.kubernetes.io/zone`."""
    os_image: str = ""
    """`status.nodeInfo.osImage`."""
    kernel: str = ""
    """Release of the kernel."""
    vendor: str = ""
    """Manufacturer, by the BMC."""
    product: str = ""
    """Model, by the BMC."""
    serial: str = ""
    """Serial number of the machine, by the BMC."""


class Board(Part, frozen=True, kw_only=True):
    """One GPU of the node, or one that it lost."""

    index: int | None = None
    """As in nvidia-smi; it may change at a reboot."""
    serial: str = ""
    """Serial number, which is printed on the board."""
    uuid: str = ""
    """As NVML gives it."""
    pci: str = ""
    """PCI address, as in sysfs."""
    module: int | None = None
    """Number of the module on its baseboard; None if there is none."""
    product: str = ""
    """Product name."""
    vbios: str = ""
    """Version of the VBIOS."""
    memory_mib: int | None = None
    """Total memory, MiB."""
    lost: bool = False
    """Earlier runs read it, and the last one did not."""
    accused: bool = False
    """Whether the ticket's fault names it."""
    counters: dict[str, int] = {}
    """Counters and states that were read, by the paths of `hardware.COUNTERS`."""


class Xid(Part, frozen=True, kw_only=True):
    """One Xid of one GPU."""

    code: int
    """Its number."""
    gpu: int | None = None
    """Index of the GPU; None if unknown."""
    pci: str = ""
    """Address of the GPU; empty if unknown."""
    count: int | None = None
    """How often it came; None if unknown."""
    first: str = ""
    """When the first one came (RFC 3339, UTC); empty if unknown."""
    last: str = ""
    """When the last one came."""
    source: str = ""
    """Who told: `driver`, `kernel log` or `record`."""


class Problem(Part, frozen=True, kw_only=True):
    """One fault, with the evidence of its last bad run."""

    code: str
    """The finding."""
    title: str = ""
    """What is wrong, in a few words."""
    severity: str = ""
    """`fail` or `warn`."""
    cause: str = ""
    """Value of the taint that it sets or would set; empty if it never sets one."""
    state: str = ""
    """State of its gate: watching, held-back, gated or probation; empty without a gate."""
    probe: str = ""
    """The probe that found it."""
    bad_runs: int = 0
    """Bad runs in a row; 0 if unknown."""
    relapses: int = 0
    """How often it came back after its taint was lifted."""
    since: str = ""
    """The first run that showed it (RFC 3339, UTC)."""
    confirmed: str = ""
    """When enough runs had shown it; empty if they have not."""
    last_seen: str = ""
    """The last run that showed it."""
    last_good: str = ""
    """The last run before it that is known to be good; empty if none is."""
    subject: str = ""
    """The worst location, and how many more there are."""
    scope: str = ""
    """How much of the node has it, such as `1 of 8 GPUs`."""
    gpus: list[int] = []
    """Positions in `boards` of the GPUs of the worst location."""
    measured: str = ""
    """What was measured, with the limit."""
    also: str = ""
    """Further locations."""
    xids: list[int] = []
    """Xids that its evidence names."""
    steps: list[str] = []
    """What to do, in order."""


class Observed(Part, frozen=True, kw_only=True):
    """One probe on this node."""

    probe: str
    """Its name."""
    runs: int = 0
    """Number of its last run."""
    read_at: str = ""
    """The last run that could be read (RFC 3339, UTC); empty if none could."""
    verdict: str = ""
    """Verdict of that run."""
    streak: int = 0
    """Readable runs in a row with this verdict."""
    since: str = ""
    """The first run of that streak."""
    coverage: str = ""
    """What it read of what it should have read."""
    failing: str = ""
    """Since when and why its runs read nothing; empty if the last one did."""


class Fleet(Part, frozen=True, kw_only=True):
    """The other nodes of the class."""

    klass: str = msgspec.field(default="", name="class")
    """Number and model of the GPUs."""
    nodes: int = 0
    """Other nodes of the class that have a report."""
    same: list[str] = []
    """Those on which the same finding stands now, at most `fleet.MOST_NODES`."""
    same_count: int = 0
    """How many these are."""
    drivers: dict[str, int] = {}
    """How many of them run which driver."""


class Peer(Part, frozen=True, kw_only=True):
    """One number of this node beside that of nodes with the same hardware and software."""

    what: str
    """What was measured."""
    unit: str
    """Its unit."""
    own: float
    """This node's."""
    median: float
    """Of the others."""
    lowest: float
    """Of the others."""
    highest: float
    """Of the others."""
    nodes: int
    """How many others."""


class Changed(Part, frozen=True, kw_only=True):
    """One thing that changed on the node since the last good run."""

    at: str
    """When it was seen (RFC 3339, UTC, or a date)."""
    what: str
    """`driver`, `vbios`, `kernel`, `verdict`, a taint or a label."""
    before: str = ""
    """The value before; empty if unknown or none."""
    after: str = ""
    """The value since."""


class Excluded(Part, frozen=True, kw_only=True):
    """A fault that the last readings looked for and did not find."""

    code: str
    """The finding."""
    title: str
    """What would have been wrong."""


class Number(Part, frozen=True, kw_only=True):
    """Something else that was read, for whoever asks for power, heat and links."""

    what: str
    """What it is."""
    value: str
    """The value with its unit."""


class Ask(Part, frozen=True, kw_only=True):
    """What nodegauge does not know, and the command that tells it."""

    field: str
    """What a vendor asks for."""
    command: str
    """What gives it, on the node."""
    why: str = ""
    """Why it is unknown here."""


class Log(Part, frozen=True, kw_only=True):
    """What to save before a reboot or a reset takes it away."""

    what: str
    """What it is."""
    command: str
    """What saves it, on the node as root."""
    note: str = ""
    """What else to know."""


class TicketFacts(Part, frozen=True, kw_only=True):
    """Everything that a ticket may say."""

    form: str = FORM
    """Name of this document."""
    version: int = VERSION
    """Its version: another one if a field is removed or means something else."""
    node: str
    """Name of the node."""
    source: list[str] = []
    """The objects that it comes from."""
    gone_at: str = ""
    """When the node was first seen gone (RFC 3339, UTC); empty if it is there."""
    verdict: str = ""
    """What all probes and gates say together."""
    summary: str = ""
    """The same in a few sentences."""
    machine: Machine = Machine()
    """The computer."""
    product: str = ""
    """Product name of the GPUs."""
    count: int = 0
    """GPUs that the driver reports."""
    driver: str = ""
    """Version of the driver."""
    cuda: str = ""
    """CUDA that the driver supports."""
    vbios: str = ""
    """Versions of the VBIOS, each once."""
    boards: list[Board] = []
    """Every GPU, in the driver's order, then the lost ones."""
    faults: list[Problem] = []
    """What is wrong; the first is what the ticket is about."""
    xids: list[Xid] = []
    """Xids that were seen, the newest first."""
    observed: list[Observed] = []
    """How it was observed, probe by probe."""
    fleet: Fleet | None = None
    """The other nodes; None if they were not read."""
    peers: list[Peer] = []
    """Numbers beside those of comparable nodes."""
    changes: list[Changed] = []
    """What changed since the last good run of the first fault, oldest first."""
    tried: list[str] = []
    """What is known of attempts: reboots, trials, relapses."""
    excluded: list[Excluded] = []
    """What was looked for and not found."""
    numbers: list[Number] = []
    """What else was read."""
    gaps: list[str] = []
    """What was not read or not judged."""
    ask: list[Ask] = []
    """What Kubernetes does not know."""
    logs: list[Log] = []
    """What to save before a reboot or a reset."""

    @property
    def fault(self) -> Problem | None:
        """What the ticket is about; None if no fault is known."""
        return self.faults[0] if self.faults else None

    @property
    def unconfirmed(self) -> bool:
        """Whether too few runs have shown the fault for its taint."""
        return self.fault is not None and self.fault.state == GateState.WATCHING

    def accused(self) -> list[Board]:
        """The boards that the first fault names."""
        return [board for board in self.boards if board.accused]


def cleaned(facts: TicketFacts) -> TicketFacts:
    """The same facts with every text on one line, and without characters that a terminal or a web form could
    take for more than text: probes and people wrote them."""
    return msgspec.convert(_cleaned(msgspec.to_builtins(facts)), TicketFacts)


def line(text: str) -> str:
    """A text as `cleaned` leaves it."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return _UNSAFE.sub(lambda match: "‹" if match[0] == "<" else "›", " ".join(shown.split()))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return line(value)
    if isinstance(value, list):
        return [_cleaned(each) for each in value]
    if isinstance(value, dict):
        return {line(key): _cleaned(each) for key, each in value.items()}
    return value
