"""What NVLinks a GPU should have by its board and by how a virtual machine holds it, before any history.

Links that are all down look alike on a dead HGX machine and on cards that nobody bridged.  What tells them
apart is the form of the board: an SXM module or a superchip sits on a board that always wires its NVLinks, a
PCIe card has connectors that may stay empty.

- The product name has it: NVML's names of modules contain SXM, or are Hopper and Blackwell models that exist
  as modules (H100, H200, H800, H20, B200, GB200); their cards are named PCIe or NVL.
- Compute capability 7.5, 8.6, 8.9 and 12.x: these chips exist on cards alone.
- Otherwise a GPU that is wired to NVSwitches (field 147) or is registered with a fabric is a module.
- Everything else is unknown, also GH200, whose system decides whether its links lead anywhere.

Two signs mislead.  NVML's module id is documented as 0 without a baseboard, but recordings of RTX 3060 and
RTX 4000 Ada cards have 1.  The driver lists links for some unbridged cards (NVIDIA/NVSentinel pull 1481: an
A100 PCIe whose 12 links read as down) and none for others (NOT_SUPPORTED).
"""

from __future__ import annotations

import re
from enum import StrEnum

from nodegauge_contract import Gpu
from nodegauge_contract.nvlink import INACTIVE
from nodegauge_judge.case import Case, once
from nodegauge_judge.interconnect import fabric

PASSTHROUGH = 1
SHARED = {
    2: "a vGPU",
    3: "a host that shares its GPUs as vGPUs",
    4: "a host that shares its GPUs as vSGA",
}
"""NVML_GPU_VIRTUALIZATION_MODE_*: whoever has such a GPU may have a part of it, and sees what the hypervisor
shows."""

WHOLE_BOARD = 8
"""GPUs of a baseboard with NVSwitches, and of a DGX-1: as many in one virtual machine are the whole board."""

_CARD = re.compile(
    r"PCIE|\bNVL\b|\bACTIVE\b|FHHL|GEFORCE|QUADRO|\bRTX\b|TITAN|\bCMP\b|\b(?:A|L|T|P)\d{1,2}[A-Z]?\b|\bA100X\b"
)
_MODULE = re.compile(r"SXM|DGXS|\b(?:H100|H200|H800|H20|B100|B200|B300|GB200|GB300)\b")
"""DGXS: the cards of a DGX Station, which a fixed bridge joins."""
_CARD_CHIPS = re.compile(r"7\.5|8\.6|8\.9|12\.\d+")

_LINKS = (
    (re.compile(r"V100-SXM3"), 6),
    (re.compile(r"A100-SXM4"), 12),
    (re.compile(r"A800-SXM4"), 8),
    (re.compile(r"\bH800\b"), 8),
    (re.compile(r"\bH100\b.*\bHBM3\b|\bH200\b|\bH20\b"), 18),
    (re.compile(r"\bG?B[23]00\b"), 18),
)
"""NVLinks of a healthy module behind NVSwitches.  Sources: NVIDIA's fabric manager user guide, GPU baseboard
topologies (V100: one link to each of six switches; A100: two to each of six; H100: 18 to four; B200: 18 to
two); 400 GB/s of A800 and H800 are 8 links x 50 (NVIDIA's product pages; deepseek-ai/DeepSeek-V3 issue 479);
900 GB/s of H200 and H20 are 18 x 50; GB200 18 in `nvidia-smi nvlink -s` (NVIDIA/k8s-test-infra issue 371)."""


class Form(StrEnum):
    """`module`: SXM or superchip, always wired to its peers; `card`: PCIe, bridged or not."""

    MODULE = "module"
    CARD = "card"
    UNKNOWN = "unknown"


def form(gpu: Gpu) -> Form:
    """The form of the GPU's board; see the module's text for the reasons."""
    name = _name(gpu)
    chip = gpu.compute_capability if isinstance(gpu.compute_capability, str) else ""
    if "SXM" not in name and (_CARD.search(name) or _CARD_CHIPS.fullmatch(chip)):
        return Form.CARD
    wired = isinstance(gpu.switch_links, int) and gpu.switch_links > 0
    if _MODULE.search(name) or wired or gpu.fabric.state == fabric.COMPLETED:
        return Form.MODULE
    return Form.UNKNOWN


def links_behind_switch(gpu: Gpu) -> int:
    """NVLinks that a healthy GPU of this model has behind NVSwitches; 0 if no source tells."""
    name = _name(gpu)
    if form(gpu) is not Form.MODULE:
        return 0
    return next((links for pattern, links in _LINKS if pattern.search(name)), 0)


def idle_links(gpu: Gpu) -> int:
    """NVLinks that the driver lists for this GPU, that could carry peer traffic and are inactive."""
    return sum(len(group.links) for group in gpu.links if group.state == INACTIVE and group.p2p != 0)


def shared(gpu: Gpu) -> str:
    """What kind of virtual GPU, or host of virtual GPUs, this is; empty for a whole GPU or an unread mode."""
    return SHARED.get(gpu.virtualization, "") if isinstance(gpu.virtualization, int) else ""


@once
def hides_links(case: Case) -> bool:
    """Whether NVLinks and P2P as NVML shows them say nothing about the node: MIG is on (links then read as
    down), or a hypervisor shares the GPUs.

    A vGPU may have links and refuse P2P by its profile; that is no fault of the node.
    """
    return bool(case.lanes.mig) or any(shared(gpu) for gpu in case.result.gpus)


def may_be_partition(case: Case) -> bool:
    """Whether a virtual machine may hold a part of a board, with fewer NVLinks by design or none.

    The fabric manager gives a single GPU's partition no NVLink at all (`maxNumNvLinks` 0; NVIDIA's GPU
    operator, KubeVirt passthrough), and a virtual machine can hold several of these.  Two GPUs of a DGX-1
    mesh need not be neighbours.  Eight GPUs are a whole board.
    """
    gpus = case.result.gpus
    return len(gpus) < WHOLE_BOARD and any(gpu.virtualization == PASSTHROUGH for gpu in gpus)


def _name(gpu: Gpu) -> str:
    return gpu.name.upper() if isinstance(gpu.name, str) else ""
