"""What NVLinks a GPU should have by its board and by how a virtual machine holds it, before any history.

Links that are all down look alike on a dead HGX machine and on cards that nobody bridged.  What tells them
apart is the form of the board: an SXM module or a superchip sits on a board that always wires its NVLinks, a
PCIe card has connectors that may stay empty.

- The product name has it (`gpu_models`).
- Compute capability 7.5, 8.6, 8.9 and 12.x: these chips exist on cards alone.
- Otherwise a GPU that is wired to NVSwitches (field 147) or is registered with a fabric is a module.
- Everything else is unknown, also GH200, whose system decides whether its links lead anywhere.

Two signs mislead.  NVML's module id is documented as 0 without a baseboard, but recordings of RTX 3060 and
RTX 4000 Ada cards have 1.  The driver lists links for some unbridged cards (NVIDIA/NVSentinel pull 1481: an
A100 PCIe whose 12 links read as down) and none for others (NOT_SUPPORTED).
"""

from __future__ import annotations

import re

from nodegauge_contract import Gpu
from nodegauge_contract.nvlink import INACTIVE
from nodegauge_judge.case import Case, once
from nodegauge_judge.gpu_models import Form, known_models
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

_CARD_CHIPS = re.compile(r"7\.5|8\.6|8\.9|12\.\d+")
"""Compute capabilities of chips that exist on cards alone."""


def form(gpu: Gpu) -> Form:
    """The form of the GPU's board; see the module's text for the reasons."""
    named = known_models().find(gpu.name).form
    chip = gpu.compute_capability if isinstance(gpu.compute_capability, str) else ""
    if named is not Form.UNKNOWN:
        return named
    if _CARD_CHIPS.fullmatch(chip):
        return Form.CARD
    wired = isinstance(gpu.switch_links, int) and gpu.switch_links > 0
    return Form.MODULE if wired or gpu.fabric.state == fabric.COMPLETED else Form.UNKNOWN


def links_behind_switch(gpu: Gpu) -> int:
    """NVLinks that a healthy GPU of this model has behind NVSwitches; 0 if no source tells."""
    return known_models().find(gpu.name).links_behind_switch


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
