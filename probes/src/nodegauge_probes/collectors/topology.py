"""How GPUs hang together: pairs, NVLinks and the fabric, as the driver reports them, without counting.

Each link is asked as NCCL asks it (src/graph/xml.cc): capability, state, far end; from Hopper on the state is
a field.  Whoever counts NV# does it from the document (`nodegauge_contract.nvlink`).

Drivers before 470 do not say what a link leads to, and those before 460 not even how many lead to switches.
There the class of the far end's PCI function decides, as it does for NCCL.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodegauge_contract import Fabric, Int, Unavailable
from nodegauge_probes.host.sysfs import function_class
from nodegauge_probes.nvml import library as seam
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.result_builder import Draft, GpuDraft, Parts

P2P_SUPPORTED = 0
"""NVML_NVLINK_CAP_P2P_SUPPORTED."""

STATE_BY_FIELD_FROM = (9, 0)
"""From this compute capability on nvmlDeviceGetNvLinkState is replaced by field 165."""

FI_SWITCH_LINKS = 147
FI_LINK_SPEED, FI_LINK_STATE, FI_LINK_SPEED_COMMON = 164, 165, 90
FI_LINK_SPEED_OF = (84, 85, 86, 87, 88, 89, 132, 133, 134, 135, 136, 137)
"""NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 to _L11."""

UP = frozenset({1, 2, 3})
"""Active, asleep, active with traffic disabled: states in which a link has a far end to ask about."""

REMOTE_NPU, REMOTE_SWITCH = 1, 2
"""NVML_NVLINK_DEVICE_TYPE_*."""
BRIDGES = {"0x068000": REMOTE_SWITCH, "0x068001": REMOTE_NPU}
"""Classes of PCI functions at the far end of a link: an NVSwitch, a POWER CPU (NCCL src/graph/xml.cc)."""

NOT_UP = Unavailable("link is not active")


def pairs(nvml: Nvml, devices: list[Device], draft: Draft) -> None:
    """The common ancestor and the three P2P statuses of every ordered pair."""
    for name, call, arguments in (
        ("ancestor", "nvmlDeviceGetTopologyCommonAncestor", ()),
        ("read", "nvmlDeviceGetP2PStatus", (seam.READ,)),
        ("write", "nvmlDeviceGetP2PStatus", (seam.WRITE,)),
        ("nvlink", "nvmlDeviceGetP2PStatus", (seam.NVLINK,)),
    ):
        cells = draft.grids.cells[name]
        for i, one in enumerate(devices):
            for j, other in enumerate(devices):
                if i != j:
                    cells[i][j] = nvml.pair(one, other, call, *arguments)


def links(nvml: Nvml, device: Device, gpu: GpuDraft) -> None:
    """Every NVLink of one GPU, until the driver says that there is no such link."""
    gpu.own["switch_links"] = nvml.whole_field(device, FI_SWITCH_LINKS)
    state_by_field = _at_least(gpu.own.get("compute_capability"), STATE_BY_FIELD_FROM)
    for link in range(seam.MAX_LINKS):
        answers = _link(nvml, device, link, state_by_field=state_by_field)
        if seam.NO_SUCH_LINK in (answers["p2p"], answers["state"]):
            return
        gpu.links.append((link, answers))
        if answers["p2p"] == answers["state"] == seam.NO_SUCH_CALL or device.gone is not None:
            return


def name_far_ends(gpu: GpuDraft, root: Path) -> None:
    """Fill in what a link leads to from the PCI tree, where the driver has no call for it.

    GPUs are not looked for: their links name them, and a virtual machine lets a link name its own GPU.
    """
    for _, answers in gpu.links:
        remote, known = answers.get("remote"), answers.get("remote_type")
        if isinstance(remote, str) and remote and known == seam.NO_SUCH_CALL:
            kind = function_class(root, remote)
            answers["remote_type"] = BRIDGES.get(kind, known) if isinstance(kind, str) else known


def fabric(nvml: Nvml, device: Device, gpu: GpuDraft) -> None:
    """The GPU's place in a fabric; a refusal is the reason of every member."""
    answer = nvml.fabric(device)
    if isinstance(answer, Unavailable):
        answer = dict.fromkeys(Fabric.__struct_fields__, answer)
    gpu.fabric.update(answer)


def _link(nvml: Nvml, device: Device, link: int, *, state_by_field: bool) -> Parts:
    p2p = nvml.integer(device, "nvmlDeviceGetNvLinkCapability", link, P2P_SUPPORTED)
    state = _state(nvml, device, link, by_field=state_by_field)
    answers: dict[str, Any] = {"p2p": p2p, "state": state}
    if state not in UP:
        return {**answers, **dict.fromkeys(("remote", "remote_type", "mbps", "version"), NOT_UP)}
    answers["remote"] = nvml.remote_pci(device, link)
    answers["remote_type"] = nvml.integer(device, "nvmlDeviceGetNvLinkRemoteDeviceType", link)
    older = (FI_LINK_SPEED_OF[link],) if link < len(FI_LINK_SPEED_OF) else ()
    answers["mbps"] = nvml.whole_field(device, (FI_LINK_SPEED, link), *older, FI_LINK_SPEED_COMMON)
    answers["version"] = nvml.integer(device, "nvmlDeviceGetNvLinkVersion", link)
    return answers


def _state(nvml: Nvml, device: Device, link: int, *, by_field: bool) -> Int:
    if not by_field:
        return nvml.integer(device, "nvmlDeviceGetNvLinkState", link)
    value = nvml.fields(device, (FI_LINK_STATE, link))[0]
    if not isinstance(value, Unavailable):
        return Unavailable("not a whole number") if isinstance(value, float) else value
    # A B200 says of all 36 numbers that they are capable, and which of its 18 links exist only by refusing.
    older = nvml.integer(device, "nvmlDeviceGetNvLinkState", link)
    return older if older == seam.NO_SUCH_LINK else value


def _at_least(capability: Any, wanted: tuple[int, int]) -> bool:
    if not isinstance(capability, str):
        return False
    major, _, minor = capability.partition(".")
    return (int(major), int(minor)) >= wanted
