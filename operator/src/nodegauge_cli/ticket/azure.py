"""`--for azure`: a request to Azure's Guest Health Reporting (GHR), and what is missing to send it.

Sources, all of Microsoft: the request and its fields
<https://learn.microsoft.com/azure/azure-impact-reporting/guest-health-impact-report>, the categories
<https://learn.microsoft.com/azure/azure-impact-reporting/guest-health-impact-categories>, the upload of a log
<https://learn.microsoft.com/azure/azure-impact-reporting/guest-health-log-upload>, and how to choose a
category <https://github.com/Azure/ai-infrastructure-on-azure>, skills/ai-infra/references/ghr.md.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any

import msgspec

from nodegauge_cli.ticket.facts import Ask, Board, Log, Part, Problem, TicketFacts

CATEGORIES = "https://learn.microsoft.com/azure/azure-impact-reporting/guest-health-impact-categories"
API = "2023-02-01-preview"
ARM = "https://management.azure.com"
_URL = f"{ARM}/subscriptions/{{}}/providers/Microsoft.Impact/workloadImpacts/NAME?api-version={{}}"
KVP = "tr -d '\\0' < /var/lib/hyperv/.kvp_pool_3 | sed -e 's/.*Qualified\\(.*\\)VirtualMachineDynamic.*/\\1/'"
"""Reads the name of the physical host from Hyper-V's key-value pairs (the skill's ghr.md)."""
MAX_DESCRIPTION = 1000
"""Characters of `impactDescription`.  Chosen by this project: Microsoft names no limit."""
_RESOURCE = re.compile(r"azure://(/subscriptions/([0-9A-Fa-f-]{36})/resourceGroups/[\w./()-]+)", re.ASCII)
_U = "Resource.Hpc.Unhealthy."


class Category(StrEnum):
    """All impact categories of GHR, in Microsoft's order."""

    RESET = "Resource.Hpc.Reset"
    REBOOT = "Resource.Hpc.Reboot"
    MISSING_GPU = _U + "HpcMissingGpu"
    MISSING_IB = _U + "MissingIB"
    IB_PERFORMANCE = _U + "IBPerformance"
    IB_PORT_DOWN = _U + "IBPortDown"
    IB_PORT_FLAPPING = _U + "IBPortFlapping"
    DCGM_DIAG = _U + "HpcGpuDcgmDiagFailure"
    ROW_REMAP = _U + "HpcRowRemapFailure"
    INFOROM = _U + "HpcInforomCorruption"
    GENERIC = _U + "HpcGenericFailure"
    MANUAL = _U + "ManualInvestigation"
    XID_95 = _U + "XID95UncontainedECCError"
    XID_94 = _U + "XID94ContainedECCError"
    XID_79 = _U + "XID79FallenOffBus"
    XID_48 = _U + "XID48DoubleBitECC"
    NVIDIA_SMI = _U + "UnhealthyGPUNvidiasmi"
    NVLINK = _U + "NvLink"
    THERMAL = _U + "HpcDcgmiThermalReport"
    PAGES_FULL = _U + "ECCPageRetirementTableFull"
    PAGES_FAST = _U + "DBEOverLimit"
    XID = _U + "GpuXIDError"
    AMD = _U + "AmdGpuResetFailed"
    EROT = _U + "EROTFailure"
    MEMORY_BANDWIDTH = _U + "GPUMemoryBWFailure"
    CPU = _U + "CPUPerformance"


NOT_OURS = {
    Category.RESET: "for a node that is well again",
    Category.MISSING_IB: "nodegauge does not know how many ports a machine should have",
    Category.DCGM_DIAG: "needs a result of `dcgmi diag -r 3`",
    Category.PAGES_FAST: "needs the dates of seven days; nodegauge looks at thirty",
    Category.AMD: "nodegauge reads NVIDIA GPUs",
    Category.EROT: "nodegauge does not read it",
    Category.CPU: "nodegauge does not measure it",
}
"""Categories that no finding leads to by itself, and why."""
CATEGORY_OF: dict[str, Category] = {
    "node-unreadable": Category.NVIDIA_SMI,
    "never-validated": Category.MANUAL,
    "gpu-lost": Category.MISSING_GPU,
    "reset-required": Category.REBOOT,
    "insufficient-power": Category.GENERIC,
    "gpu-fault": Category.GENERIC,
    "p2p-refused": Category.NVLINK,
    "nvlink-degraded": Category.NVLINK,
    "nvlink-errors": Category.NVLINK,
    "sw-thermal-slowdown": Category.THERMAL,
    "hw-thermal-slowdown": Category.THERMAL,
    "power-brake": Category.GENERIC,
    "hw-slowdown": Category.GENERIC,
    "hot": Category.THERMAL,
    "memory-hot": Category.THERMAL,
    "slow-clock": Category.GENERIC,
    "recovery-action": Category.REBOOT,
    "xid": Category.XID,
    "ecc": Category.GENERIC,
    "row-remap": Category.ROW_REMAP,
    "memory-worn": Category.PAGES_FULL,
    "compute-prohibited": Category.REBOOT,
    "pcie-narrow": Category.GENERIC,
    "psu-fault": Category.GENERIC,
    "rail": Category.GENERIC,
    "nccl-wrong-data": Category.MANUAL,
    "p2p-broken": Category.MANUAL,
    "nccl-hang": Category.MANUAL,
    "busbw-low": Category.MANUAL,
    "busbw-below-peers": Category.MANUAL,
    "supplies-short": Category.GENERIC,
    "chassis-rail": Category.GENERIC,
    "load-corruption": Category.GENERIC,
    "load-slow-gpu": Category.GENERIC,
    "load-slow-memory": Category.MEMORY_BANDWIDTH,
    "load-below-peers": Category.MANUAL,
    "load-heat-slowdown": Category.THERMAL,
    "load-power-brake": Category.GENERIC,
    "load-hw-slowdown": Category.GENERIC,
    "load-hot": Category.THERMAL,
    # findings without a taint, which a person may report
    "nic-down": Category.IB_PORT_DOWN,
    "nic-slow": Category.IB_PERFORMANCE,
    "call-hung": Category.NVIDIA_SMI,
    "gpus-not-visible": Category.MISSING_GPU,
    "board-incomplete": Category.MISSING_GPU,
    "nvlink-down": Category.NVLINK,
    "fabric-cliques": Category.NVLINK,
    "kernel-log": Category.XID,
}
"""Every finding that may set a taint, and some that may not.  Any other asks for an investigation."""
OF_XID = {79: Category.XID_79, 95: Category.XID_95, 48: Category.XID_48, 94: Category.XID_94}
"""The worst first: a GPU that fell off the bus may have told of its memory before."""
_WITH_XIDS = ("xid", "ecc", "gpu-lost", "kernel-log")
"""Findings that such an Xid explains."""
_BY_TEXT = {
    "gpu-fault": (re.compile("inforom", re.IGNORECASE), Category.INFOROM),
    "nic-down": (re.compile(r"lost its link|times", re.IGNORECASE), Category.IB_PORT_FLAPPING),
}
"""Findings of which the measurement tells more."""
UNCONFIRMED = "Too few runs have shown it: wait for the next ones."
_BEFORE = {
    "reset-required": "Reset the GPU or restart the VM yourself first.",
    "recovery-action": "Do what the driver asks for first; a restart of the VM does most of it.",
    "compute-prohibited": "A setting of this VM: `nvidia-smi --compute-mode=0` may be all that it needs.",
    "load-corruption": f"If `dcgmi diag -r 3` fails too, report {Category.DCGM_DIAG.value} with its output.",
    "memory-worn": f"More than 10 pages within seven days are {Category.PAGES_FAST.value}.",
}


class Choice(Part, frozen=True, kw_only=True):
    """The category, and what to think of before."""

    name: Category
    """What goes into `impactCategory`."""
    finding: str
    """The finding that leads to it."""
    before: str = ""
    """What to try or to check first; empty for nothing."""


class Request(Part, frozen=True, kw_only=True):
    """What `--for azure` prints."""

    method: str = "PUT"
    """Of the request."""
    url: str
    """Where it goes; `NAME` is any new GUID, `SUBSCRIPTION` one that is onboarded."""
    body: dict[str, Any]
    """The request's body, without what is `missing`."""
    missing: list[Ask]
    """Fields that Kubernetes does not know: put them into `body`."""
    category: Choice
    """Why this category."""
    save_first: list[Log]
    """Logs that a restart would take away.  `LogUrl` points to the first."""


def category_of(fault: Problem) -> Category:
    """The category of a finding, by its code, its Xids and its words."""
    if fault.code in _WITH_XIDS:
        for xid, category in OF_XID.items():
            if xid in fault.xids:
                return category
    more = _BY_TEXT.get(fault.code)
    if more is not None and more[0].search(fault.measured):
        return more[1]
    return CATEGORY_OF.get(fault.code, Category.MANUAL)


def azure(facts: TicketFacts) -> str:
    """The request as JSON.  `facts` has a fault."""
    fault = facts.fault
    assert fault is not None, "the command asks for none without a fault"
    category = category_of(fault)
    resource = _RESOURCE.fullmatch(facts.machine.provider_id)
    properties: dict[str, Any] = {
        "startDateTime": fault.since or fault.last_seen,
        "impactCategory": category.value,
        "impactDescription": _description(facts, fault),
    }
    properties |= {"impactedResourceId": resource[1]} if resource else {}
    properties["additionalProperties"] = _of_gpu(facts, category)
    unsure = f"{UNCONFIRMED} " if facts.unconfirmed else ""
    request = Request(
        url=_URL.format(resource[2] if resource else "SUBSCRIPTION", API),
        body={"properties": properties},
        missing=_missing(resource[2] if resource else ""),
        category=Choice(
            name=category, finding=fault.code, before=f"{unsure}{_BEFORE.get(fault.code, '')}".strip()
        ),
        save_first=facts.logs,
    )
    return msgspec.json.format(msgspec.json.encode(request), indent=2).decode() + "\n"


def _description(facts: TicketFacts, fault: Problem) -> str:
    gpus = "; ".join(_named(board) for board in facts.accused())
    runs = f", bad runs in a row: {fault.bad_runs}" if fault.bad_runs else ""
    parts = [
        f"{fault.title} [{fault.code}]: {fault.measured or fault.subject}",
        gpus,
        f"node {facts.node}, driver {facts.driver or 'unknown'}, probe {fault.probe}{runs}",
    ]
    return ". ".join(part.rstrip(".") for part in parts if part)[:MAX_DESCRIPTION]


def _named(board: Board) -> str:
    index = f"GPU {board.index}" if board.index is not None else "GPU"
    return " ".join([index, *(part for part in (board.pci, board.serial, board.uuid) if part)])


def _of_gpu(facts: TicketFacts, category: Category) -> dict[str, str]:
    """Fields of the GPU: of the first that the fault names, because a request has one."""
    boards = facts.accused()
    if not category.startswith(_U) or not boards:
        return {}
    board = boards[0]
    known = {"SerialNumber": board.serial, "ModelNumber": board.product, "Location": board.pci}
    if category is Category.ROW_REMAP and "repair.rows_uncorrected" in board.counters:
        known["UCE"] = str(board.counters["repair.rows_uncorrected"])
    return {"Manufacturer": "NVIDIA"} | {name: value for name, value in known.items() if value}


def _missing(subscription: str) -> list[Ask]:
    """What only the VM or Azure knows; `subscription` is empty where the Node does not name it."""
    imds = 'curl -s -H Metadata:true "http://169.254.169.254/metadata/instance/compute{}?api-version=2021-02-01{}"'
    asks = [
        Ask(
            field="additionalProperties.PhysicalHostName",
            command=KVP,
            why="Hyper-V tells it inside of the VM alone; it or VmUniqueId is required",
        ),
        Ask(
            field="additionalProperties.VmUniqueId",
            command=imds.format("/vmId", "&format=text"),
            why="a Node has the UUID of SMBIOS, whose bytes may be in another order",
        ),
        Ask(
            field="additionalProperties.LogUrl",
            command=f"az rest --method post --url {ARM}/subscriptions/{subscription or 'SUBSCRIPTION'}"
            "/providers/Microsoft.Impact/getUploadToken?api-version=2025-01-01-preview",
            why="optional: upload nvidia-bug-report.log.gz there, then leave out the token after `?`",
        ),
    ]
    if not subscription:
        asks.insert(
            0,
            Ask(
                field="impactedResourceId, and SUBSCRIPTION in the URL",
                command=imds.format("", ""),
                why="the Node has no providerID of Azure; join subscriptionId, resourceGroupName and name",
            ),
        )
    return asks
